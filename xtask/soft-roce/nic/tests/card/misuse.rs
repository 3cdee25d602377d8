//! A program that does anything in any order: calls are refused or carried out, and none panics.

use std::time::Duration;

use proptest::prelude::*;

use crate::link::{ALL, Buffer, World, cases};
use soft_nic::{
    Access, AddressVector, AttributeMask, Bind, CompletionQueueId, Data, DatagramAddress, DomainId,
    Element, Profile, Psn, QueuePairOptions, QueuePairState, ReceiveRequest, RemoteAddress,
    SendOpcode, SendRequest, SharedReceiveId, Transport, WindowKind,
};

/// A call, with numbers that may be those of objects.
#[derive(Clone, Copy, Debug)]
struct Call {
    kind: u8,
    first: u8,
    second: u8,
    third: u32,
}

struct Program {
    world: World,
    buffer: Buffer,
    /// Keys of regions and windows, some of them gone.
    keys: Vec<u32>,
}

impl Program {
    fn new(profile: Profile) -> Self {
        let mut world = World::of(profile, 1);
        world.pair(Transport::Rc);
        let buffer = world.a.buffer(256, ALL);
        let keys = vec![buffer.lkey];
        Self {
            world,
            buffer,
            keys,
        }
    }

    fn key(&self, number: u32) -> u32 {
        self.keys[number as usize % self.keys.len()]
    }

    fn element(&self, call: Call) -> Element {
        Element {
            address: self.buffer.address() + u64::from(call.third % 200),
            length: call.third >> 8 & 127,
            lkey: self.key(call.third >> 16),
        }
    }

    fn opcode(&self, call: Call) -> SendOpcode {
        let rkey = self.key(call.third >> 20);
        let remote = RemoteAddress::new(self.buffer.address() + u64::from(call.third & 0x38), rkey);
        match call.second % 9 {
            0 => SendOpcode::Send,
            1 => SendOpcode::SendWithInvalidate(rkey),
            2 => SendOpcode::Write(remote),
            3 => SendOpcode::WriteWithImmediate(remote, [1; 4]),
            4 => SendOpcode::Read(remote),
            5 => SendOpcode::FetchAdd { remote, add: 1 },
            6 => SendOpcode::LocalInvalidate(rkey),
            _ => SendOpcode::BindWindow(Bind {
                window: rkey,
                rkey: rkey + 1,
                lkey: self.buffer.lkey,
                address: self.buffer.address(),
                length: u64::from(call.third & 0x1ff),
                access: Access::from_bits_truncate(call.third >> 4),
            }),
        }
    }

    fn options(&self, call: Call) -> QueuePairOptions {
        let transport = [Transport::Rc, Transport::Uc, Transport::Ud];
        let shared = call.third & 1 == 1;
        QueuePairOptions {
            shared_receives: shared.then_some(SharedReceiveId(call.third >> 1 & 1)),
            max_send_wr: call.third >> 4 & 7,
            max_recv_wr: call.third >> 8 & 7,
            recv_cq: CompletionQueueId(call.third >> 3 & 1),
            ..QueuePairOptions::new(
                transport[usize::from(call.second % 3)],
                DomainId(u32::from(call.first & 1)),
                CompletionQueueId(0),
            )
        }
    }

    /// Calls the card; whether it is refused makes no difference.
    fn call(&mut self, call: Call) {
        let element = self.element(call);
        let opcode = self.opcode(call);
        let options = self.options(call);
        let key = self.key(call.third);
        let (peer, registered) = (self.world.b.gid, self.buffer.registered());
        let nic = &mut self.world.a.nic;
        let qp = if call.first == 0 {
            1
        } else {
            15 + u32::from(call.first & 7)
        };
        let domain = DomainId(u32::from(call.second & 1));
        let (cq, srq) = (
            CompletionQueueId(call.third & 1),
            SharedReceiveId(call.third & 1),
        );
        let group = "ff02::5".parse().unwrap();
        let receive = ReceiveRequest {
            wr_id: 1,
            elements: vec![element],
        };
        match call.kind {
            0 => ignore(nic.alloc_pd()),
            1 => ignore(nic.dealloc_pd(domain)),
            2 => ignore(nic.create_cq(call.third & 7)),
            3 => ignore(nic.destroy_cq(cq)),
            4 => ignore(nic.resize_cq(cq, call.third >> 1 & 7)),
            5 => ignore(nic.create_srq(domain, call.third & 7, 1, call.third >> 3 & 7)),
            6 => ignore(nic.destroy_srq(srq)),
            7 => ignore(nic.modify_srq(srq, Some(call.third >> 1 & 7), Some(call.third >> 4 & 7))),
            8 => ignore(nic.post_srq_receive(srq, receive.clone())),
            9 => ignore(nic.create_qp(&options)),
            10 => ignore(nic.destroy_qp(qp)),
            11 => {
                let attributes = nic.query_qp(qp);
                if let Some(mut attributes) = attributes {
                    use QueuePairState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
                    let states = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
                    attributes.state = states[usize::from(call.second % 7)];
                    attributes.max_dest_rd_atomic = call.third.to_le_bytes()[0];
                    attributes.timeout = call.third.to_le_bytes()[1];
                    let mask = AttributeMask::from_bits_truncate(call.third >> 8 | 1);
                    ignore(nic.modify_qp(qp, &attributes, AttributeMask::STATE));
                    ignore(nic.modify_qp(qp, &attributes, mask));
                }
            }
            12 | 13 => {
                let (path, psn) = (AddressVector::to(peer), Psn::new(call.third));
                ignore(nic.connect(qp, path, psn, 16, psn));
            }
            14 => ignore(nic.attach_mcast(qp, group)),
            15 => ignore(nic.detach_mcast(qp, group)),
            16 => {
                let access = Access::from_bits_truncate(call.third);
                if let Ok((lkey, _)) = nic.reg_mr(domain, registered, 0x1000, access) {
                    self.keys.push(lkey);
                }
            }
            17 => ignore(nic.dereg_mr(key)),
            18 => {
                let kind = [WindowKind::Type1, WindowKind::Type2][usize::from(call.first & 1)];
                self.keys.extend(nic.alloc_mw(domain, kind));
            }
            19 => ignore(nic.dealloc_mw(key)),
            20..=24 => {
                let elements = [element];
                let mut request = SendRequest::new(1, opcode, Data::Elements(elements.to_vec()));
                request.is_fenced = call.first & 64 != 0;
                request.to = (call.first & 32 != 0).then_some(DatagramAddress {
                    path: AddressVector::to(if call.third & 1 == 0 { peer } else { group }),
                    queue_pair: if call.third & 1 == 0 { 16 } else { 0xff_ffff },
                    qkey: 16,
                });
                ignore(nic.post_send(qp, request));
            }
            25..=27 => ignore(nic.post_receive(qp, receive.clone())),
            28 => ignore(nic.req_notify_cq(cq, call.second & 1 == 0)),
            29 => nic.set_gid(call.second & 1, (call.third & 3 == 0).then_some(peer)),
            30 => nic.set_port_up(call.third & 3 != 0),
            _ => self
                .world
                .run_for(Duration::from_micros(u64::from(call.third >> 12))),
        }
        while self.world.a.nic.poll_event().is_some() {}
        for number in 0..4 {
            self.world.a.nic.poll_cq(CompletionQueueId(number));
        }
    }
}

/// Refused or not.
fn ignore<T>(_: T) {}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn calls_in_any_order_do_not_panic(
        is_hostile in any::<bool>(),
        calls in prop::collection::vec((0..36_u8, any::<u8>(), any::<u8>(), any::<u32>()), 1..200),
    ) {
        let mut program = Program::new(if is_hostile { Profile::hostile() } else { Profile::default() });
        for (kind, first, second, third) in calls {
            program.call(Call { kind, first, second, third });
        }
        program.world.run_for(Duration::from_millis(50));
    }
}
