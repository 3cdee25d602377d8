//! Two hosts, the link between them, and what happens to them.

use std::path::Path;
use std::time::Duration;

use soft_verbs::{Fabric, Host, Profile};
use verbs_channel::verbs_core::{Context, MaxAckRetries, MaximumTransferUnit, ProtectionDomain};
use verbs_channel::{Channel, ChannelConfig, PollStrategy};

/// A generator of numbers (`SplitMix64`).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.number() % count as u64).expect("below a `usize`")
    }

    /// Whether it is one of `count` cases.
    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// A probability below 6 %, often none.
    fn rarely(&mut self) -> f64 {
        [0.0, 0.005, 0.02, 0.06][self.below(4)]
    }
}

/// Events that may happen at any time.
pub(crate) const TROUBLES: [&str; 8] = [
    "cuts",
    "mended",
    "stops",
    "resumed",
    "deaths",
    "verbs to be refused",
    "QP_FATAL",
    "CQ_ERR",
];

/// Verbs that may fail. With those that end something, memory may be leaked.
const VERBS: [(&str, i32); 9] = [
    ("ibv_post_send", libc::ENOMEM),
    ("ibv_post_recv", libc::EINVAL),
    ("ibv_poll_cq", libc::EIO),
    ("ibv_modify_qp", libc::EIO),
    ("ibv_req_notify_cq", libc::EIO),
    ("ibv_create_qp", libc::ENOMEM),
    ("ibv_reg_mr", libc::ENOMEM),
    ("ibv_dereg_mr", libc::EBUSY),
    ("ibv_destroy_qp", libc::EBUSY),
];
/// How many of them end nothing.
const HARMLESS: usize = 7;

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) fabric: Fabric,
    pub(crate) hosts: [Host; 2],
    /// Nothing ends a connection: all has to go well, however often packets are lost.
    pub(crate) is_gentle: bool,
    /// Something else than packets has been lost on this host: it may not see what the other has seen.
    pub(crate) is_hurt: [bool; 2],
    /// A driver has not let go of something: its memory stays with it.
    pub(crate) leaks: bool,
    /// The seed decides all that happens: no other thread has a part in it.
    pub(crate) is_repeatable: bool,
    pub(crate) troubles: [u64; TROUBLES.len()],
}

impl World {
    pub(crate) fn new(seed: u64, packets: &Path) -> Self {
        let (mut random, fabric) = (Random(seed), Fabric::seeded(seed));
        let is_gentle = random.one_in(3);
        let profile = match random.below(2) {
            0 => Profile::default(),
            _ if is_gentle => Profile {
                // Seven would not always be enough.
                retries_seven_for_ever: true,
                ..Profile::hostile()
            },
            _ => Profile::hostile(),
        };
        let hosts = ["a", "b"].map(|name| fabric.host_with(name, profile.clone()));
        fabric
            .link(&hosts[0], &hosts[1])
            .loss(random.rarely())
            .duplication(random.rarely())
            .reordering(random.rarely())
            .corruption(random.rarely())
            .delay(Duration::from_micros([1, 10, 3000][random.below(3)]));
        fabric.pcap(packets).expect("packets are written to a file");
        Self {
            random,
            fabric,
            hosts,
            is_gentle,
            is_hurt: [false; 2],
            leaks: false,
            is_repeatable: true,
            troubles: [0; TROUBLES.len()],
        }
    }

    /// Something happens. With `borrows`, nothing that makes a driver keep borrowed memory.
    pub(crate) fn trouble(&mut self, borrows: bool, qp_nums: [Option<u32>; 2]) {
        if self.is_gentle {
            return;
        }
        let which = self.random.below(2);
        let later = self.fabric.steps() + self.random.number() % 16;
        let host = self.hosts[which].at_step(later);
        let link = match self.random.below(3) {
            0 => self.fabric.link(&self.hosts[0], &self.hosts[1]),
            _ => self
                .fabric
                .one_way(&self.hosts[which], &self.hosts[1 - which]),
        };
        let link = link.at_step(later);
        let trouble = match self.random.below(24) {
            0..4 => 0,
            4..10 => 1,
            10..12 => 2,
            12..16 => 3,
            16 if self.random.one_in(4) => 4,
            17..21 => 5,
            21..23 => 6,
            _ => 7,
        };
        match trouble {
            0 => drop(link.cut()),
            1 => drop(link.mend()),
            2 => drop(host.stop()),
            3 => drop(host.resume()),
            4 => drop(host.die()),
            5 => {
                let count = if borrows { HARMLESS } else { VERBS.len() };
                let at = self.random.below(count);
                self.leaks |= at >= HARMLESS;
                let (verb, errno) = VERBS[at];
                host.refuse_after(self.random.number() % 4, verb, errno);
            }
            6 => match qp_nums[which] {
                Some(qp_num) => drop(host.qp_fatal(qp_num)),
                None => return,
            },
            _ => drop(host.cq_err()),
        }
        self.is_hurt[which] |= trouble >= 4;
        self.troubles[trouble] += 1;
    }

    /// Time passes, a little or much.
    pub(crate) fn pass(&mut self) {
        match self.random.below(3) {
            0 => drop(self.fabric.step()),
            1 => self.fabric.run_for(Duration::from_micros(50)),
            _ => self.fabric.run_for(Duration::from_millis(80)),
        }
    }

    /// Runs a function on a host.
    pub(crate) fn on<T>(&self, which: usize, run: impl FnOnce() -> T) -> T {
        self.hosts[which].enter(run)
    }

    /// The domain of a device that has just been opened; none if a verb fails.
    pub(crate) fn domain(&self, which: usize) -> Option<ProtectionDomain> {
        let domain = self.on(which, || Context::first_active()?.alloc_pd());
        assert!(domain.is_ok() || !self.is_gentle, "{domain:?}");
        domain.ok()
    }

    /// Settings of a channel.
    pub(crate) fn builder(&mut self, pd: &ProtectionDomain) -> ChannelConfig {
        let strategy = match self.random.below(3) {
            0 => PollStrategy::Spin,
            1 => PollStrategy::Notify { after: 2 },
            _ => PollStrategy::default(),
        };
        let (retry_cnt, timeout) = match self.is_gentle {
            // For ever.
            true => (MaxAckRetries::MAX, Duration::from_secs(100)),
            false => (MaxAckRetries::default(), Duration::from_secs(5)),
        };
        // Messages of several packets are short.
        Channel::builder(pd)
            .max_send_wr(8)
            .max_recv_wr(8)
            .strategy(strategy)
            .path_mtu(MaximumTransferUnit::Mtu256)
            .retry_cnt(retry_cnt)
            .timeout(timeout)
            .config()
    }

    /// Two connected channels, one on each host; none if a verb fails.
    pub(crate) fn channels(&mut self, pds: [&ProtectionDomain; 2]) -> Option<[Channel; 2]> {
        let connect = |world: &mut Self| -> verbs_channel::Result<[Channel; 2]> {
            let [left, right] = pds.map(|pd| world.builder(pd).build());
            let (left, right) = (left?, right?);
            let (to_left, to_right) = (left.endpoint(), right.endpoint());
            Ok([left.handshake(&to_right)?, right.handshake(&to_left)?])
        };
        let channels = connect(self);
        assert!(channels.is_ok() || !self.is_gentle, "{channels:?}");
        channels.ok()
    }
}

/// The bytes of a message.
pub(crate) fn bytes(number: usize, length: usize) -> Vec<u8> {
    let number = number.to_le_bytes()[0];
    (0..length)
        .map(|at| number.wrapping_mul(7) ^ at.to_le_bytes()[0])
        .collect()
}
