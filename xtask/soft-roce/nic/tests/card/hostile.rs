//! Hostile peers: any packets at all neither panic, nor make the card work or remember without bound, nor
//! touch memory that no key allows.

use std::time::Duration;

use proptest::prelude::*;

use crate::link::{ALL, Buffer, World, cases};
use soft_nic::packet::{
    Aeth, AtomicEth, Body, Deth, Extra, Header, NakCode, Place, Reth, Syndrome, icrc,
};
use soft_nic::{
    Access, AddressVector, Profile, Psn, QueuePairState, ReceiveRequest, RemoteAddress, Route,
    SendOpcode, Transport,
};

/// A card with a queue pair of each transport, memory, receives and requests.
struct Victim {
    world: World,
    queue_pairs: [u32; 4],
    route: Route,
    /// Written by nobody.
    private: Buffer,
    /// Only the middle of it may be written, through `open`.
    around: Buffer,
    open: (u64, u32),
    readable: Buffer,
}

const OPEN: std::ops::Range<usize> = 1000..2024;

impl Victim {
    fn new(profile: Profile) -> Self {
        let mut world = World::of(profile, 1);
        let (pd, gid) = (world.b.pd, world.a.gid);
        let srq = world.b.nic.create_srq(pd, 31, 2, 4).unwrap();
        let mut shared = world.b.options(Transport::Rc);
        shared.shared_receives = Some(srq);
        let all = [
            world.b.options(Transport::Rc),
            world.b.options(Transport::Uc),
            world.b.options(Transport::Ud),
            shared,
        ];
        let queue_pairs = all.map(|options| world.b.nic.create_qp(&options).unwrap());
        let private = world.b.buffer(4096, Access::LOCAL_WRITE);
        let around = world.b.buffer(4096, Access::LOCAL_WRITE);
        let readable = world.b.buffer(4096, Access::REMOTE_READ);
        let received = world.b.buffer(4096, Access::LOCAL_WRITE);
        let (start, middle) = (around.address() + OPEN.start as u64, around.middle(OPEN));
        let (_, rkey) = world.b.nic.reg_mr(pd, middle, start, ALL).unwrap();
        for qp in queue_pairs {
            let psn = Psn::new(0xff_fffe);
            world
                .b
                .nic
                .connect(qp, AddressVector::to(gid), psn, 0x77, psn)
                .unwrap();
        }
        for number in 0..20 {
            let elements = [received.element()];
            let request = ReceiveRequest {
                wr_id: number,
                elements: elements.to_vec(),
            };
            for qp in &queue_pairs[..3] {
                world.b.nic.post_receive(*qp, request.clone()).unwrap();
            }
            world.b.nic.post_srq_receive(srq, request.clone()).unwrap();
        }
        let remote = readable.remote(0);
        for qp in [queue_pairs[0], queue_pairs[3]] {
            world.post_b(qp, 1, SendOpcode::Send, &[received.element()]);
            world.post_b(qp, 2, SendOpcode::Read(remote), &[received.element()]);
            world.post_b(
                qp,
                3,
                SendOpcode::FetchAdd { remote, add: 1 },
                &[received.part(0, 8)],
            );
        }
        let route = Route::new(gid, world.b.gid);
        Self {
            world,
            queue_pairs,
            route,
            private,
            around,
            open: (start, rkey),
            readable,
        }
    }

    /// Takes a packet, and sends all there is to send.
    fn take(&mut self, packet: &[u8]) {
        self.world
            .b
            .nic
            .receive(self.world.now, &self.route, packet);
        self.drain();
    }

    fn drain(&mut self) {
        let mut buffer = Vec::new();
        let mut count = 0;
        while self
            .world
            .b
            .nic
            .transmit(self.world.now, &mut buffer)
            .is_some()
        {
            assert!(buffer.len() <= 4096 + 64);
            count += 1;
            assert!(count < 300, "one packet makes no flood");
        }
    }

    fn check(&self) {
        assert_eq!(self.private.bytes(), [0; 4096]);
        assert_eq!(self.readable.bytes(), [0; 4096]);
        let around = self.around.bytes();
        assert!(around[..OPEN.start].iter().all(|byte| *byte == 0));
        assert!(around[OPEN.end..].iter().all(|byte| *byte == 0));
    }
}

/// A packet, in terms of the victim's.
#[derive(Clone, Debug)]
struct Attack {
    queue_pair: usize,
    psn: i8,
    body: Body,
    has_deth: bool,
    length: usize,
    wants_ack: bool,
    passed: u16,
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place::First),
        Just(Place::Middle),
        Just(Place::Last),
        Just(Place::Only)
    ]
}

fn syndrome() -> impl Strategy<Value = Syndrome> {
    prop_oneof![
        any::<u8>().prop_map(|code| Syndrome::Ack(code & 31)),
        any::<u8>().prop_map(|code| Syndrome::ReceiverNotReady(code & 31)),
        Just(Syndrome::Nak(NakCode::SequenceError)),
        Just(Syndrome::Nak(NakCode::InvalidRequest)),
        Just(Syndrome::Nak(NakCode::RemoteAccessError)),
        Just(Syndrome::Nak(NakCode::RemoteOperationalError)),
    ]
}

/// Addresses and keys are filled in later: which key, and how far from its beginning.
fn reth() -> impl Strategy<Value = Reth> {
    let address = prop_oneof![0..1200_u64, any::<u64>()];
    let length = prop_oneof![0..1100_u32, Just(2048), Just(5000), any::<u32>()];
    (address, 0..4_u32, length).prop_map(|(address, rkey, length)| Reth {
        remote: RemoteAddress::new(address, rkey),
        length,
    })
}

fn body() -> impl Strategy<Value = Body> {
    let extra = prop_oneof![
        Just(Extra::None),
        any::<[u8; 4]>().prop_map(Extra::Immediate),
        any::<u32>().prop_map(Extra::Invalidate),
    ];
    let aeth = || (syndrome(), any::<u32>()).prop_map(|(syndrome, msn)| Aeth { syndrome, msn });
    let atomic = || {
        (reth(), any::<u64>(), any::<u64>()).prop_map(|(reth, swap_or_add, compare)| AtomicEth {
            remote: reth.remote,
            swap_or_add,
            compare,
        })
    };
    prop_oneof![
        3 => (place(), extra).prop_map(|(place, extra)| Body::Send(place, if place.ends() { extra } else { Extra::None })),
        5 => (place(), reth(), any::<Option<[u8; 4]>>()).prop_map(|(place, reth, immediate)| {
            Body::Write(place, place.starts().then_some(reth), immediate.filter(|_| place.ends()))
        }),
        3 => reth().prop_map(Body::ReadRequest),
        2 => (place(), aeth()).prop_map(|(place, aeth)| {
            Body::ReadResponse(place, (place != Place::Middle).then_some(aeth))
        }),
        2 => aeth().prop_map(Body::Acknowledge),
        1 => (aeth(), any::<u64>()).prop_map(|(aeth, original)| Body::AtomicAcknowledge(aeth, original)),
        2 => atomic().prop_map(Body::CompareSwap),
        2 => atomic().prop_map(Body::FetchAdd),
    ]
}

fn attack() -> impl Strategy<Value = Attack> {
    let length = prop_oneof![0..20_usize, Just(1024), Just(1023), 0..4096_usize];
    let psn = prop_oneof![4 => Just(0_i8), 2 => -3..4_i8, 1 => any::<i8>()];
    let passed = prop_oneof![3 => Just(0_u16), 1 => any::<u16>()];
    (
        0..4_usize,
        psn,
        body(),
        any::<bool>(),
        length,
        any::<bool>(),
        passed,
    )
        .prop_map(
            |(queue_pair, psn, body, has_deth, length, wants_ack, passed)| Attack {
                queue_pair,
                psn,
                body,
                has_deth,
                length,
                wants_ack,
                passed,
            },
        )
}

impl Attack {
    fn packet(&self, victim: &Victim) -> Vec<u8> {
        let transport =
            [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Rc][self.queue_pair];
        let keys = [
            victim.open.1,
            victim.readable.rkey,
            victim.private.lkey,
            0x1234_5678,
        ];
        let starts = [
            victim.open.0,
            victim.readable.address(),
            victim.private.address(),
            0,
        ];
        let aim = |RemoteAddress { address, rkey }| {
            let key = rkey as usize % 4;
            let address = starts[key].wrapping_add(address).wrapping_sub(8);
            RemoteAddress::new(address, keys[key])
        };
        let body = match self.body {
            Body::Write(place, Some(mut reth), immediate) => {
                reth.remote = aim(reth.remote);
                Body::Write(place, Some(reth), immediate)
            }
            Body::ReadRequest(mut reth) => {
                reth.remote = aim(reth.remote);
                Body::ReadRequest(reth)
            }
            Body::CompareSwap(mut atomic) => {
                atomic.remote = aim(atomic.remote);
                Body::CompareSwap(atomic)
            }
            Body::FetchAdd(mut atomic) => {
                atomic.remote = aim(atomic.remote);
                Body::FetchAdd(atomic)
            }
            other => other,
        };
        let number = victim.queue_pairs[self.queue_pair];
        let attributes = victim.world.b.nic.query_qp(number).unwrap();
        let expected = match body.is_request() {
            true => attributes.rq_psn,
            false => attributes.sq_psn.wrapping_sub(3),
        };
        let psn = Psn::new(expected.wrapping_add_signed(self.psn.into()));
        let mut header = Header::new(transport, body, number, psn);
        header.wants_ack = self.wants_ack;
        if transport == Transport::Ud || self.has_deth {
            header.deth = Some(Deth {
                qkey: 0x77,
                source_queue_pair: 1,
            });
        }
        let payload = vec![0xff; if body.has_payload() { self.length } else { 0 }];
        header.packet(&victim.route, &payload)
    }
}

/// A packet with its CRC, so that it is looked at.
fn sealed(route: &Route, mut packet: Vec<u8>) -> Vec<u8> {
    let crc = icrc(route, &packet);
    packet.extend_from_slice(&crc.to_le_bytes());
    packet
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn bytes_behind_a_good_beginning_are_survived(
        attacks in prop::collection::vec((attack(), any::<u16>(), any::<u8>(), 0..100_usize), 1..20),
    ) {
        let mut victim = Victim::new(Profile::default());
        victim.drain();
        for (attack, place, byte, cut) in attacks {
            let mut packet = attack.packet(&victim);
            let at = usize::from(place) % packet.len();
            packet[at] = byte;
            // Its own CRC goes, too.
            packet.truncate(packet.len().saturating_sub(4 + cut % 8));
            victim.take(&sealed(&victim.route, packet));
        }
        victim.check();
    }

    #[test]
    fn any_sequence_of_packets_touches_only_what_a_key_allows(
        is_hostile in any::<bool>(),
        attacks in prop::collection::vec(attack(), 1..60),
    ) {
        let mut victim = Victim::new(if is_hostile { Profile::hostile() } else { Profile::default() });
        victim.drain();
        for attack in attacks {
            let packet = attack.packet(&victim);
            victim.take(&packet);
            victim.world.now += Duration::from_micros(attack.passed.into());
            let now = victim.world.now;
            victim.world.b.nic.expire(now);
            victim.drain();
        }
        victim.check();
        // The card still works: what broke can be taken back and connected anew.
        for qp in victim.queue_pairs {
            victim.world.b.go(qp, QueuePairState::Reset).unwrap();
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "interpreted, 10,000 packets take many minutes")]
fn a_flood_that_nobody_answers_is_bounded() {
    let mut victim = Victim::new(Profile::default());
    victim.drain();
    let read = |psn| {
        let reth = Reth {
            remote: victim.readable.remote(0),
            length: 4096,
        };
        let header = Header::new(
            Transport::Rc,
            Body::ReadRequest(reth),
            victim.queue_pairs[0],
            Psn::new(psn),
        );
        header.packet(&victim.route, &[])
    };
    let packets: Vec<_> = (0..10_000)
        .map(|number| read(0xff_fffe_u32.wrapping_add(number * 4)))
        .collect();
    for packet in &packets {
        victim
            .world
            .b
            .nic
            .receive(Duration::ZERO, &victim.route, packet);
    }
    let mut buffer = Vec::new();
    let mut count = 0;
    while victim
        .world
        .b
        .nic
        .transmit(Duration::ZERO, &mut buffer)
        .is_some()
    {
        count += 1;
    }
    assert!(count < 1000, "{count} packets wait");
}
