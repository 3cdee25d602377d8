//! Elements of one region, in flight both ways at once.

use verbs_core::{ReceiveWorkRequest, SendWorkRequest};
use verbs_harness::begin;
use verbs_harness::pair::{Pair, pattern};

#[test]
#[ignore = "needs an RDMA device"]
fn one_region_sends_and_receives_at_once() {
    let _test = begin!();
    for pair in Pair::everywhere() {
        let mut here = pair.a.pd().reg_mr(pattern(1, 8192)).unwrap();
        let mut there = pair.b.pd().reg_mr(pattern(2, 8192)).unwrap();
        let (sent_here, sent_there) = (here[..4096].to_vec(), there[4096..].to_vec());
        let (head, tail) = here
            .scatter_element(..)
            .unwrap()
            .split_at_mut(4096)
            .unwrap();
        let (mut from_here, mut into_here) = ([head.into_gather()], [tail]);
        let (head, tail) = there
            .scatter_element(..)
            .unwrap()
            .split_at_mut(4096)
            .unwrap();
        let (mut into_there, mut from_there) = ([head], [tail.into_gather()]);
        pair.a.receive(ReceiveWorkRequest::new(&mut into_here));
        pair.b.receive(ReceiveWorkRequest::new(&mut into_there));
        pair.a.post_one(SendWorkRequest::new(&mut from_here));
        pair.b.post_one(SendWorkRequest::new(&mut from_there));
        for end in [&pair.a, &pair.b] {
            end.sent();
            end.received();
        }
        assert!(into_here[0][..] == sent_there && into_there[0][..] == sent_here);
        // The buffers sent from are unchanged.
        assert!(from_here[0][..] == sent_here && from_there[0][..] == sent_there);
        assert!(here[4096..] == sent_there && there[..4096] == sent_here);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn chunks_of_a_region_are_a_ring_of_buffers() {
    let _test = begin!();
    let pair = Pair::new();
    let mut from = pair.a.pd().reg_mr(vec![0_u8; 8 * 128]).unwrap();
    let mut into = pair.b.pd().reg_mr(vec![0_u8; 8 * 128]).unwrap();
    let mut sinks: Vec<_> = into
        .scatter_element(..)
        .unwrap()
        .chunks_mut(128)
        .unwrap()
        .collect();
    let mut sources: Vec<_> = from
        .scatter_element(..)
        .unwrap()
        .chunks_mut(128)
        .unwrap()
        .collect();
    for round in 0..10 {
        for (slot, (source, sink)) in sources.iter_mut().zip(&mut sinks).enumerate() {
            source.copy_from_slice(&pattern(round * 8 + slot, 128));
            pair.b
                .receive(ReceiveWorkRequest::new(&mut [sink.reborrow()]));
            pair.a
                .post_one(SendWorkRequest::new(&mut [source.as_gather()]));
        }
        for (slot, sink) in sinks.iter().enumerate() {
            pair.a.sent();
            pair.b.received();
            assert!(
                sink[..] == pattern(round * 8 + slot, 128),
                "round {round}, slot {slot}"
            );
        }
    }
}
