//! Leaked values of each type: nothing becomes unsound, and nothing hangs.
#![expect(clippy::mem_forget, reason = "it is what these tests are about")]

use std::mem::forget;

use verbs_channel::{BufferPool, Channel};
use verbs_harness::{PATIENCE, begin};

use super::ends::{filled, here, meet, pair, pattern};

#[test]
#[ignore = "needs an RDMA device"]
fn buffer_of_a_lost_ticket_is_found_or_dropped_with_the_channel() {
    let _test = begin!();
    let (mut a, mut b) = pair();
    let pool = BufferPool::new(b.pd(), 64, 4).unwrap();
    for _ in 0..4 {
        let _ticket = b.start_receive(pool.take().unwrap()).unwrap();
    }
    for seed in 0..2 {
        let from = filled(&a, seed, 64);
        a.send(from.gather_element(..).unwrap()).unwrap();
        let found = b.wait_completed(Some(PATIENCE)).unwrap();
        assert!(found.buffer.unwrap()[..] == pattern(seed, 64));
    }
    assert_eq!(pool.available(), 2);
    drop(b);
    assert_eq!(pool.available(), 4);
}

#[test]
#[ignore = "needs an RDMA device"]
fn leaked_channel_keeps_the_buffers_in_flight() {
    let _test = begin!();
    let pd = here();
    let (mut a, b) = Channel::loopback(&pd).unwrap();
    let mut b = b;
    let pool = BufferPool::new(&pd, 64, 8).unwrap();
    for _ in 0..4 {
        let _ticket = b.start_receive(pool.take().unwrap()).unwrap();
    }
    forget(b);
    drop(pd);
    // It still receives; its blocks are never returned.
    for seed in 0..4 {
        let from = filled(&a, seed, 64);
        a.send(from.gather_element(..).unwrap()).unwrap();
    }
    assert_eq!(pool.available(), 4);
    let prepared = Channel::builder(a.pd()).build().unwrap();
    forget(prepared);
}

#[test]
#[ignore = "needs an RDMA device"]
fn leaked_group_member_takes_no_place() {
    let _test = begin!();
    let pd = here();
    let mut group = Channel::builder(&pd)
        .max_send_wr(4)
        .max_recv_wr(4)
        .group(2)
        .unwrap();
    for _ in 0..3 {
        forget(group.prepare().unwrap());
    }
    let (member, peer) = (group.prepare().unwrap(), group.prepare().unwrap());
    let (member, peer) = meet(member, peer);
    let peer = group.join(peer).unwrap();
    let member = group.join(member).unwrap();
    let mut into = pd.reg_mr(vec![0_u8; 64]).unwrap();
    let _ticket = group
        .channel(member)
        .unwrap()
        .start_receive(pd.reg_mr(vec![0_u8; 64]).unwrap())
        .unwrap();
    let from = pd.reg_mr(pattern(1, 64)).unwrap();
    group
        .channel(peer)
        .unwrap()
        .send(from.gather_element(..).unwrap())
        .unwrap();
    let done = group.wait_completed(Some(PATIENCE)).unwrap();
    into.copy_from_slice(&done.buffer.unwrap());
    assert!(into[..] == from[..]);
}
