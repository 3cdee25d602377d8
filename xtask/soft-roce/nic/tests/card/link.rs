//! The link and the hosts at its ends.
#![expect(unsafe_code, reason = "registers memory, and looks at it from outside")]

use std::collections::VecDeque;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::time::Duration;

use soft_nic::packet::{Body, Header};
use soft_nic::{
    Access, AddressVector, AttributeMask, Completion, CompletionQueueId, Data, DomainId, Element,
    Errno, Event, Nic, Profile, Psn, QueuePairAttributes, QueuePairOptions, ReceiveRequest,
    Refused, Registered, RemoteAddress, Route, SendOpcode, SendRequest, Status, Transport,
};

/// All that a peer may be allowed to do.
pub(crate) const ALL: Access = Access::all().difference(Access::ZERO_BASED);

/// Memory that a card may use, and a test looks at.
pub(crate) struct Buffer {
    base: *mut u8,
    length: usize,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

impl Buffer {
    pub(crate) fn address(&self) -> u64 {
        self.base.expose_provenance() as u64
    }

    /// The bytes, as they are now.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // SAFETY: `base` begins `length` bytes that `Host::buffer` leaked, and no card runs meanwhile.
        unsafe { ptr::copy_nonoverlapping(self.base, bytes.as_mut_ptr(), self.length) };
        bytes
    }

    pub(crate) fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.length);
        // SAFETY: `base` begins `length` bytes, not fewer than `bytes` has, that `Host::buffer` leaked, and
        // no card runs meanwhile.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base, bytes.len()) };
    }

    pub(crate) fn element(&self) -> Element {
        self.part(0, self.length)
    }

    pub(crate) fn part(&self, start: usize, length: usize) -> Element {
        Element {
            address: self.address() + start as u64,
            length: u32::try_from(length).unwrap(),
            lkey: self.lkey,
        }
    }

    pub(crate) fn remote(&self, start: usize) -> RemoteAddress {
        RemoteAddress::new(self.address() + start as u64, self.rkey)
    }

    /// Part of it, to be registered by itself.
    pub(crate) fn middle(&self, range: std::ops::Range<usize>) -> Registered {
        assert!(range.end <= self.length);
        // SAFETY: The range is within memory that was leaked, so it stays; tests have no references to it
        // while a card runs.
        unsafe { Registered::new(self.base.wrapping_add(range.start), range.len()) }
    }

    pub(crate) fn registered(&self) -> Registered {
        // SAFETY: The memory was leaked, so it stays; tests have no references to it while a card runs.
        unsafe { Registered::new(self.base, self.length) }
    }
}

/// A card with a protection domain and a completion queue.
pub(crate) struct Host {
    pub(crate) nic: Nic,
    pub(crate) gid: Ipv6Addr,
    pub(crate) pd: DomainId,
    pub(crate) cq: CompletionQueueId,
}

impl Host {
    pub(crate) fn new(profile: Profile, last: u8) -> Self {
        let mut nic = Nic::new(profile, u64::from(last));
        let gid = Ipv4Addr::new(127, 0, 0, last).to_ipv6_mapped();
        nic.set_gid(0, Some(gid));
        assert_eq!(nic.poll_event(), Some(Event::GidChange));
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(1023).unwrap();
        Self { nic, gid, pd, cq }
    }

    /// Memory of zeros.
    pub(crate) fn buffer(&mut self, length: usize, access: Access) -> Buffer {
        // Aligned as memory of allocators is.
        let base = Box::leak(vec![0_u64; length.div_ceil(8)].into_boxed_slice());
        let mut buffer = Buffer {
            base: base.as_mut_ptr().cast(),
            length,
            lkey: 0,
            rkey: 0,
        };
        let (registered, address) = (buffer.registered(), buffer.address());
        (buffer.lkey, buffer.rkey) = self
            .nic
            .reg_mr(self.pd, registered, address, access)
            .unwrap();
        buffer
    }

    pub(crate) fn filled(&mut self, bytes: &[u8]) -> Buffer {
        let buffer = self.buffer(bytes.len(), ALL);
        buffer.fill(bytes);
        buffer
    }

    pub(crate) fn options(&self, transport: Transport) -> QueuePairOptions {
        let profile = self.nic.profile();
        QueuePairOptions {
            max_send_wr: 255,
            max_recv_wr: 255,
            max_inline_data: profile.max_inline_data,
            ..QueuePairOptions::new(transport, self.pd, self.cq)
        }
    }

    pub(crate) fn post(&mut self, qp: u32, wr_id: u64, opcode: SendOpcode, elements: &[Element]) {
        let request = SendRequest::new(wr_id, opcode, Data::Elements(elements.to_vec()));
        self.nic.post_send(qp, request).unwrap();
    }

    pub(crate) fn post_receive(&mut self, qp: u32, wr_id: u64, elements: &[Element]) {
        self.nic
            .post_receive(
                qp,
                ReceiveRequest {
                    wr_id,
                    elements: elements.to_vec(),
                },
            )
            .unwrap();
    }

    pub(crate) fn poll(&mut self) -> Option<Completion> {
        self.nic.poll_cq(self.cq)
    }

    /// The status of all completions, by the requests' numbers.
    pub(crate) fn statuses(&mut self) -> Vec<(u64, Status)> {
        std::iter::from_fn(|| self.poll())
            .map(|completion| (completion.wr_id, completion.status))
            .collect()
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.nic.poll_event()).collect()
    }

    /// Changes attributes, or the state, of a queue pair.
    pub(crate) fn modify(
        &mut self,
        qp: u32,
        mask: AttributeMask,
        change: impl FnOnce(&mut QueuePairAttributes),
    ) -> Result<(), Refused> {
        let mut attributes = self.nic.query_qp(qp).unwrap();
        change(&mut attributes);
        self.nic.modify_qp(qp, &attributes, mask)
    }

    pub(crate) fn go(&mut self, qp: u32, state: soft_nic::QueuePairState) -> Result<(), Refused> {
        self.modify(qp, AttributeMask::STATE, |attributes| {
            attributes.state = state;
        })
    }
}

/// Faults of the link, in thousandths of the packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) repeat: u64,
    pub(crate) reorder: u64,
    pub(crate) damage: u64,
}

/// How often the link did something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fired {
    pub(crate) lost: u32,
    pub(crate) repeated: u32,
    pub(crate) reordered: u32,
    pub(crate) damaged: u32,
}

/// A packet on the link: whether it goes to `b`, and what it is.
type Packet = (bool, Route, Vec<u8>);

/// Two hosts and the link between them.
pub(crate) struct World {
    pub(crate) a: Host,
    pub(crate) b: Host,
    pub(crate) now: Duration,
    pub(crate) faults: Faults,
    pub(crate) fired: Fired,
    /// Packets that a test wants to be lost.
    pub(crate) loses: Box<dyn FnMut(&Header) -> bool>,
    /// All packets that were sent, in order.
    pub(crate) seen: Vec<(bool, Header)>,
    pub(crate) raw: Vec<Packet>,
    wire: VecDeque<Packet>,
    seed: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::of(Profile::default(), 1)
    }

    /// Two hosts with a queue pair each, connected with each other.
    pub(crate) fn joined(transport: Transport) -> (Self, u32, u32) {
        let mut world = Self::new();
        let (qa, qb) = world.pair(transport);
        (world, qa, qb)
    }

    pub(crate) fn of(profile: Profile, seed: u64) -> Self {
        Self {
            a: Host::new(profile.clone(), 1),
            b: Host::new(profile, 2),
            now: Duration::ZERO,
            faults: Faults::default(),
            fired: Fired::default(),
            loses: Box::new(|_| false),
            seen: Vec::new(),
            raw: Vec::new(),
            wire: VecDeque::new(),
            seed,
        }
    }

    /// Connects a queue pair of `a` with one of `b`. The PSNs wrap soon.
    pub(crate) fn pair(&mut self, transport: Transport) -> (u32, u32) {
        let (a, b) = (self.a.options(transport), self.b.options(transport));
        self.pair_of(&a, &b)
    }

    pub(crate) fn pair_of(&mut self, a: &QueuePairOptions, b: &QueuePairOptions) -> (u32, u32) {
        let (qa, qb) = (
            self.a.nic.create_qp(a).unwrap(),
            self.b.nic.create_qp(b).unwrap(),
        );
        let (pa, pb) = (Psn::new(0xff_fffe), Psn::new(0xff_fff0));
        let (ga, gb) = (self.a.gid, self.b.gid);
        self.a
            .nic
            .connect(qa, AddressVector::to(gb), pa, qb, pb)
            .unwrap();
        self.b
            .nic
            .connect(qb, AddressVector::to(ga), pb, qa, pa)
            .unwrap();
        (qa, qb)
    }

    pub(crate) fn post_a(&mut self, qp: u32, wr_id: u64, opcode: SendOpcode, elements: &[Element]) {
        self.a.post(qp, wr_id, opcode, elements);
    }

    pub(crate) fn post_b(&mut self, qp: u32, wr_id: u64, opcode: SendOpcode, elements: &[Element]) {
        self.b.post(qp, wr_id, opcode, elements);
    }

    pub(crate) fn receive_a(&mut self, qp: u32, wr_id: u64, elements: &[Element]) {
        self.a.post_receive(qp, wr_id, elements);
    }

    pub(crate) fn receive_b(&mut self, qp: u32, wr_id: u64, elements: &[Element]) {
        self.b.post_receive(qp, wr_id, elements);
    }

    fn chance(&mut self, thousandths: u64) -> bool {
        self.random() % 1000 < thousandths
    }

    pub(crate) fn random(&mut self) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mut x = self.seed;
        x ^= x >> 33;
        x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
        x ^ x >> 33
    }

    /// Everything that can be sent now is put on the link.
    pub(crate) fn send(&mut self) {
        for to_b in [true, false] {
            loop {
                let host = if to_b { &mut self.a } else { &mut self.b };
                let mut packet = Vec::new();
                let Some(route) = host.nic.transmit(self.now, &mut packet) else {
                    break;
                };
                let (header, _) = Header::parse(&packet).expect("cards send packets");
                self.seen.push((to_b, header));
                self.raw.push((to_b, route, packet.clone()));
                if (self.loses)(&header) || self.chance(self.faults.loss) {
                    self.fired.lost += 1;
                    continue;
                }
                if self.chance(self.faults.repeat) {
                    self.fired.repeated += 1;
                    self.wire.push_back((to_b, route, packet.clone()));
                }
                if self.chance(self.faults.damage) {
                    self.fired.damaged += 1;
                    let at = self.random() as usize % packet.len();
                    packet[at] ^= 1 << (self.random() % 8);
                }
                self.wire.push_back((to_b, route, packet));
                if self.wire.len() > 1 && self.chance(self.faults.reorder) {
                    self.fired.reordered += 1;
                    let other = self.random() as usize % self.wire.len();
                    let last = self.wire.len() - 1;
                    self.wire.swap(other, last);
                }
            }
        }
    }

    /// Everything on the link arrives; returns whether anything did.
    pub(crate) fn arrive(&mut self) -> bool {
        let arrived: Vec<Packet> = self.wire.drain(..).collect();
        for (to_b, route, packet) in &arrived {
            let host = if *to_b { &mut self.b } else { &mut self.a };
            host.nic.receive(self.now, route, packet);
        }
        !arrived.is_empty()
    }

    /// Runs until nothing moves any more, timers included, or this much time has passed.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..1_000_000 {
            self.send();
            if self.arrive() {
                continue;
            }
            let next = [&self.a, &self.b]
                .into_iter()
                .filter_map(|host| host.nic.next_timer())
                .min();
            match next {
                Some(next) if next <= end => {
                    self.now = self.now.max(next);
                    self.a.nic.expire(self.now);
                    self.b.nic.expire(self.now);
                }
                _ => return self.now = end,
            }
        }
        panic!("the cards never come to rest");
    }

    /// Runs until nothing moves without a timer.
    pub(crate) fn run(&mut self) {
        self.run_for(Duration::ZERO);
    }

    /// How many packets of a kind were sent.
    pub(crate) fn count(&self, is_kind: impl Fn(&Body) -> bool) -> usize {
        self.seen
            .iter()
            .filter(|(_, header)| is_kind(&header.body))
            .count()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("now", &self.now)
            .field("fired", &self.fired)
            .finish_non_exhaustive()
    }
}

/// The errno of a verb that was refused.
pub(crate) fn errno<T>(refused: Result<T, Refused>) -> Errno {
    refused.err().expect("the card refuses it").errno
}

/// The statuses of these requests, all of which have succeeded.
pub(crate) fn succeeded<const N: usize>(numbers: [u64; N]) -> [(u64, Status); N] {
    numbers.map(|number| (number, Status::SUCCESS))
}

/// A request to send no bytes.
pub(crate) const fn empty(wr_id: u64) -> SendRequest {
    SendRequest::new(wr_id, SendOpcode::Send, Data::Elements(Vec::new()))
}

/// Bytes that differ from their neighbours.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (index * 7 + index / 256) as u8)
        .collect()
}

/// `count` random cases of a property, or `PROPTEST_CASES`.
pub(crate) fn cases(count: u32) -> proptest::test_runner::Config {
    let set = std::env::var("PROPTEST_CASES").ok();
    let set = set.map(|text| text.parse().expect("PROPTEST_CASES is a number"));
    proptest::test_runner::Config {
        failure_persistence: None,
        cases: set.unwrap_or(count),
        ..Default::default()
    }
}
