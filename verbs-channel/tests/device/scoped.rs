//! Scopes and loans on borrowed buffers.

use std::collections::VecDeque;

use verbs_channel::{Error, Incoming};
use verbs_harness::begin;

use super::ends::{bytes, filled, given, pair, pattern, zeros};

#[test]
#[ignore = "needs an RDMA device"]
fn reads_writes_and_receives_mix() {
    let _test = begin!();
    let (mut a, mut b) = pair();
    let there = given(&b, pattern(1, 4000));
    let from = filled(&a, 2, 2000);
    let mut read = zeros(&a, 2000);
    let mut received = zeros(&a, 100);
    let message = filled(&b, 3, 100);
    let ended = a.scope(|scope| {
        let (low, high) = (there.remote().slice(..2000)?, there.remote().slice(2000..)?);
        let write = scope.post_write(from.gather_element(..)?, low)?;
        let read = scope.post_read(read.scatter_element(..)?, high)?;
        let receive = scope.post_receive(received.scatter_element(..)?)?;
        b.send(message.gather_element(..)?)?;
        assert_eq!(receive.spin_poll()?.byte_len(), 100);
        read.spin_poll()?;
        write.spin_poll()?;
        Ok::<_, Error>(())
    });
    ended.unwrap();
    assert!(received[..] == message[..] && read[..] == pattern(1, 4000)[2000..]);
    assert!(bytes(&there)[..2000] == from[..]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn window_of_loans_moves_more_than_it_holds() {
    let _test = begin!();
    let (mut a, b) = pair();
    let wanted = pattern(8, 40 * 1000);
    let source = given(&b, wanted.clone());
    let mut window = zeros(&a, 4 * 1000);
    let ended = a.scope(|scope| {
        let mut blocks = wanted.chunks(1000).zip(0_u64..);
        let mut places =
            (0_u64..40).map(|index| source.remote().slice(index * 1000..(index + 1) * 1000));
        let mut loans = VecDeque::new();
        for element in window.scatter_element(..)?.chunks_mut(1000)? {
            loans.push_back(scope.lend(Incoming::read(element, places.next().unwrap()?))?);
        }
        while let Some(loan) = loans.pop_front() {
            let (result, mut element) = loan.spin_poll();
            result?;
            let (block, index) = blocks.next().unwrap();
            assert!(element[..] == *block, "block {index}");
            element.fill(0);
            if let Some(place) = places.next() {
                loans.push_back(scope.lend(Incoming::read(element, place?))?);
            }
        }
        Ok::<_, Error>(blocks.count())
    });
    assert_eq!(ended.unwrap(), 0);
    assert_eq!(window[..], [0; 4000]);
}
