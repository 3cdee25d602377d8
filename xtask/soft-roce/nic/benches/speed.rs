//! Speed in process: a small send from post to both completions, and writes of 1 MiB beside `memcpy`.
#![expect(unsafe_code, reason = "registers memory")]
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench")]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use soft_nic::{
    Access, AddressVector, AttributeMask, CompletionQueueId, Data, Element, Nic, Profile, Psn,
    QueuePairAttributes, QueuePairOptions, QueuePairState, ReceiveRequest, Registered,
    RemoteAddress, SendOpcode, SendRequest, Transport,
};

const SIZE: usize = 1 << 20;

struct End {
    nic: Nic,
    cq: CompletionQueueId,
    qp: u32,
    element: Element,
    rkey: u32,
}

impl End {
    fn new(last: u8) -> Self {
        let mut nic = Nic::new(Profile::default(), last.into());
        nic.set_gid(0, Some(gid(last)));
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64).unwrap());
        let options = QueuePairOptions::new(Transport::Rc, pd, cq);
        let qp = nic.create_qp(&options).unwrap();
        let memory = Box::leak(vec![last; SIZE].into_boxed_slice());
        // SAFETY: The memory was leaked, and nothing refers to it.
        let registered = unsafe { Registered::new(memory.as_mut_ptr(), SIZE) };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let (lkey, rkey) = nic.reg_mr(pd, registered, 0x1000, access).unwrap();
        let element = Element {
            address: 0x1000,
            length: 1 << 20,
            lkey,
        };
        Self {
            nic,
            cq,
            qp,
            element,
            rkey,
        }
    }
}

fn gid(last: u8) -> std::net::Ipv6Addr {
    Ipv4Addr::new(127, 0, 0, last).to_ipv6_mapped()
}

/// Carries packets until there are none.
fn carry(a: &mut Nic, b: &mut Nic, packet: &mut Vec<u8>) {
    let now = Duration::ZERO;
    loop {
        if let Some(route) = a.transmit(now, packet) {
            b.receive(now, &route, packet);
        } else if let Some(route) = b.transmit(now, packet) {
            a.receive(now, &route, packet);
        } else {
            return;
        }
    }
}

/// The best of several runs, in nanoseconds for each of `count` operations.
fn best(count: u32, mut operation: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..10 {
        let start = Instant::now();
        (0..count).for_each(|_| operation());
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(count));
    }
    best
}

fn main() {
    let (mut a, mut b) = (End::new(1), End::new(2));
    let psn = Psn::new(0);
    a.nic
        .connect(a.qp, AddressVector::to(gid(2)), psn, b.qp, psn)
        .unwrap();
    b.nic
        .connect(b.qp, AddressVector::to(gid(1)), psn, a.qp, psn)
        .unwrap();
    let mut packet = Vec::new();

    let short = [Element {
        length: 64,
        ..a.element
    }];
    let into = [b.element];
    let send = best(10_000, || {
        let receive = ReceiveRequest {
            wr_id: 1,
            elements: into.to_vec(),
        };
        b.nic.post_receive(b.qp, receive.clone()).unwrap();
        let request = SendRequest::new(2, SendOpcode::Send, Data::Elements(short.to_vec()));
        a.nic.post_send(a.qp, request).unwrap();
        carry(&mut a.nic, &mut b.nic, &mut packet);
        assert!(a.nic.poll_cq(a.cq).is_some() && b.nic.poll_cq(b.cq).is_some());
    });
    println!("a send of 64 bytes, from post to both completions: {send:.0} ns");

    let remote = RemoteAddress::new(0x1000, b.rkey);
    let all = [a.element];
    for mtu in [1024, 4096] {
        let (qa, qb) = (a.qp, b.qp);
        for (end, peer, to) in [(&mut a, qb, gid(2)), (&mut b, qa, gid(1))] {
            reconnect(end, peer, to, mtu);
        }
        let write = best(20, || {
            let request =
                SendRequest::new(3, SendOpcode::Write(remote), Data::Elements(all.to_vec()));
            a.nic.post_send(a.qp, request).unwrap();
            carry(&mut a.nic, &mut b.nic, &mut packet);
            assert!(a.nic.poll_cq(a.cq).is_some());
        });
        let rate = 1048.576 / (write / 1000.0);
        println!(
            "a write of 1 MiB, MTU {mtu}: {:.0} us, {rate:.2} GB/s",
            write / 1000.0
        );
    }
    let (from, mut to) = (vec![1_u8; SIZE], vec![0_u8; SIZE]);
    let copy = best(20, || black_box(&mut to).copy_from_slice(black_box(&from)));
    println!("memcpy of 1 MiB: {:.0} us", copy / 1000.0);
}

/// Takes a queue pair to RESET, and to RTS with another MTU.
fn reconnect(end: &mut End, peer: u32, to: std::net::Ipv6Addr, mtu: u32) {
    use AttributeMask as M;
    let before = end.nic.query_qp(end.qp).unwrap();
    let steps = [
        (QueuePairState::Reset, M::empty()),
        (
            QueuePairState::Init,
            M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
        ),
        (
            QueuePairState::Rtr,
            M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER,
        ),
        (
            QueuePairState::Rts,
            M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
        ),
    ];
    for (state, mask) in steps {
        let attributes = QueuePairAttributes {
            state,
            path: AddressVector::to(to),
            path_mtu: mtu,
            dest_qp_num: peer,
            rq_psn: 0,
            sq_psn: 0,
            ..before
        };
        end.nic
            .modify_qp(end.qp, &attributes, mask | M::STATE)
            .unwrap();
    }
}
