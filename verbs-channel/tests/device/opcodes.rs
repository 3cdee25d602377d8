//! Every opcode, by calls that wait. Offline tests compare the other ways to post a request.

use verbs_channel::verbs_core::codes::WcOpcode;
use verbs_channel::verbs_core::{GatherElement, ScatterElement};
use verbs_channel::{Error, Incoming, Outgoing};
use verbs_harness::begin;
use verbs_harness::iwarp::is_iwarp;

use super::ends::{NOTHING, bytes, filled, given, pair, pattern, zeros};

const LEN: usize = 10_000;

#[test]
#[ignore = "needs an RDMA device"]
fn sends_arrive_with_and_without_immediate_data() {
    let _test = begin!(iwarp lacks "immediates");
    let (mut a, mut b) = pair();
    let from = filled(&a, 1, LEN);
    for imm_data in [None, Some(0x0102_0304)] {
        let mut into = zeros(&b, LEN + 5);
        let mut work = Outgoing::send(from.gather_element(..).unwrap()).solicited();
        if let Some(imm_data) = imm_data {
            work = work.immediate(imm_data);
        }
        let received = b.scope(|scope| {
            let receive = scope.post_receive(into.scatter_element(..)?)?;
            a.run(work)?;
            Ok::<_, Error>(receive.spin_poll()?)
        });
        let received = received.unwrap();
        assert_eq!(received.byte_len() as usize, LEN);
        assert_eq!(received.imm_data(), imm_data);
        assert_eq!(received.opcode(), WcOpcode::RECV);
        assert!(into[..LEN] == pattern(1, LEN));
        assert_eq!(into[LEN..], [0; 5]);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn writes_arrive_and_complete_a_receive_if_they_have_immediate_data() {
    let _test = begin!(iwarp lacks "immediates");
    let (mut a, mut b) = pair();
    let from = filled(&a, 1, LEN);
    let target = given(&b, vec![0; LEN + 20]);
    let remote = target.remote().slice(10..).unwrap();
    let work = Outgoing::write(from.gather_element(..).unwrap(), remote);
    a.run(work).unwrap();
    let around = [0; 10];
    let expected = [&around[..], &pattern(1, LEN), &around].concat();
    assert!(bytes(&target) == expected);

    let received = b.scope(|scope| {
        let receive = scope.post_receive(NOTHING)?;
        a.run(work.immediate(77).fence())?;
        Ok::<_, Error>(receive.spin_poll()?)
    });
    let received = received.unwrap();
    let (imm_data, len) = (received.imm_data(), received.byte_len() as usize);
    assert_eq!((imm_data, len), (Some(77), LEN));
    assert_eq!(received.opcode(), WcOpcode::RECV_RDMA_WITH_IMM);
}

#[test]
#[ignore = "needs an RDMA device"]
fn reads_return_the_peers_bytes() {
    let _test = begin!();
    let (mut a, b) = pair();
    let source = given(&b, pattern(1, LEN));
    let mut into = zeros(&a, LEN);
    let mut work = Incoming::read(into.scatter_element(7..).unwrap(), source.remote());
    // Soft-iWARP rejects a fence.
    if !is_iwarp() {
        work = work.fence();
    }
    a.run(work).unwrap();
    assert_eq!(into[..7], [0; 7]);
    assert!(into[7..] == pattern(1, LEN)[..LEN - 7]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn atomics_change_the_peers_number_and_return_its_previous_value() {
    let _test = begin!(iwarp lacks "atomics");
    let (mut a, b) = pair();
    let number = given(&b, 40_u64.to_ne_bytes().repeat(2));
    let second = number.remote().slice(8..).unwrap();
    let mut before = zeros(&a, 8);
    for (swapped, was, is) in [
        (None, 40, 42),
        (Some((42, 7)), 42, 7),
        (Some((42, 8)), 7, 7),
    ] {
        let into = before.scatter_element(..).unwrap();
        let work = match swapped {
            None => Incoming::fetch_and_add(into, second, 2),
            Some((compare, swap)) => Incoming::compare_and_swap(into, second, compare, swap),
        };
        a.run(work).unwrap();
        assert_eq!(before[..], u64::to_ne_bytes(was));
        let [first, second] = [40, is].map(u64::to_ne_bytes);
        assert_eq!(bytes(&number), [first, second].concat());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn inline_bytes_are_copied_during_the_post() {
    let _test = begin!();
    let (mut a, mut b) = pair();
    let from = filled(&a, 1, 64);
    let mut into = zeros(&b, 64);
    let received = b.scope(|scope| {
        let receive = scope.post_receive(into.scatter_element(..)?)?;
        a.run(Outgoing::send(from.gather_element(..)?).inline())?;
        Ok::<_, Error>(receive.spin_poll()?)
    });
    received.unwrap();
    assert!(into[..] == pattern(1, 64));
    let target = given(&b, vec![0_u8; 64]);
    let work = Outgoing::write(from.gather_element(..).unwrap(), target.remote());
    a.run(work.inline()).unwrap();
    assert!(bytes(&target) == pattern(1, 64));
}

#[test]
#[ignore = "needs an RDMA device"]
fn lists_are_gathered_and_scattered_in_order() {
    let _test = begin!(iwarp lacks "receives without an element");
    let (mut a, mut b) = pair();
    let from = filled(&a, 1, 3000);
    let mut into = zeros(&b, 3000);
    let (x, rest) = from.gather_element(..).unwrap().split_at(1000).unwrap();
    let (y, z) = rest.split_at(1500).unwrap();
    let received = b.scope(|scope| {
        let chunks = into.scatter_element(..)?.chunks_mut(750)?;
        let receive = scope.post_receive(chunks.collect::<Vec<_>>())?;
        a.send([z, x, y])?;
        Ok::<_, Error>(receive.spin_poll()?)
    });
    assert_eq!(received.unwrap().byte_len(), 3000);
    assert!(into[..] == [&from[2500..], &from[..2500]].concat());
    // Elements of memory that the peer may use as well.
    let shared = given(&a, pattern(2, 64));
    let target = given(&b, vec![0_u8; 64]);
    a.write(
        vec![shared.element(32..).unwrap(), shared.element(..32).unwrap()],
        target.remote(),
    )
    .unwrap();
    assert!(bytes(&target) == [&pattern(2, 64)[32..], &pattern(2, 64)[..32]].concat());
    a.read(shared.element(..).unwrap(), target.remote())
        .unwrap();
    assert!(bytes(&shared) == bytes(&target));
    // No bytes at all are a message too.
    let none = b.scope(|scope| {
        let receive = scope.post_receive(Vec::<ScatterElement<'_>>::new())?;
        a.send(Vec::<GatherElement<'_>>::new())?;
        Ok::<_, Error>(receive.spin_poll()?)
    });
    assert_eq!(none.unwrap().byte_len(), 0);
}
