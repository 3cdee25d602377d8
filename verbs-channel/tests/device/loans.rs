//! Loans: elements that are returned before their scope ends.

use std::collections::VecDeque;
use std::time::Duration;

use verbs_channel::error::Queue;
use verbs_channel::{Channel, DownReason, Error, Incoming, Outgoing};
use verbs_harness::{PATIENCE, begin, until};

use super::ends::{
    SOON, bounded, filled, given, inside, pair, pattern, stubborn, was_ended, works, zeros,
};

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

#[test]
#[ignore = "needs an RDMA device"]
fn lent_receives_are_returned_with_their_bytes_and_lent_again() {
    let _test = begin!();
    let (mut a, mut b) = pair();
    let mut into = zeros(&b, 2 * 100);
    let ended = b.scope(|scope| {
        let mut elements = into.scatter_element(..)?.chunks_mut(100)?;
        let mut first = scope.lend(Incoming::receive(elements.next().unwrap()))?;
        let mut second = scope.lend(Incoming::receive([elements.next().unwrap()]))?;
        for round in 0..20 {
            works_one(&mut a, 2 * round)?;
            works_one(&mut a, 2 * round + 1)?;
            let (result, element) = first.spin_poll();
            assert_eq!(result?.byte_len(), 100);
            assert!(element[..] == pattern(2 * round, 100));
            let (result, [mut other]) = second.spin_poll();
            assert_eq!(result?.byte_len(), 100);
            assert!(other[..] == pattern(2 * round + 1, 100));
            other.fill(0);
            // The two are swapped.
            first = scope.lend(Incoming::receive(other))?;
            second = scope.lend(Incoming::receive([element]))?;
        }
        works_one(&mut a, 1)?;
        works_one(&mut a, 2)?;
        Ok::<_, Error>(())
    });
    ended.unwrap();
}

/// Sends a message.
fn works_one(a: &mut Channel, seed: usize) -> Result<(), Error> {
    let from = filled(a, seed, 100);
    Ok(a.send(from.gather_element(..)?)?)
}

#[test]
#[ignore = "needs an RDMA device"]
fn poll_returns_a_loan_in_flight() {
    let _test = begin!();
    let (mut a, mut b) = pair();
    let mut into = zeros(&b, 100);
    let ended = b.scope(|scope| {
        let loan = scope.lend(Incoming::receive(into.scatter_element(..)?))?;
        let loan = loan.poll().expect_err("nothing was sent");
        let loan = loan.wait_timeout(SOON).expect_err("nothing was sent");
        let loan = loan
            .wait_timeout(Duration::ZERO)
            .expect_err("nothing was sent");
        works_one(&mut a, 5)?;
        let mut loan = Some(loan);
        let mut back = None;
        assert!(until(PATIENCE, || {
            match loan.take().unwrap().poll() {
                Ok((result, element)) => back = Some((result, element)),
                Err(again) => loan = Some(again),
            }
            back.is_some()
        }));
        let (result, element) = back.unwrap();
        assert_eq!(result?.byte_len(), 100);
        assert!(element[..] == pattern(5, 100));
        Ok::<_, Error>(())
    });
    ended.unwrap();
    works(&mut a, &mut b, 10);
}

#[test]
#[ignore = "needs an RDMA device"]
fn loan_that_times_out_returns_its_elements_with_the_error() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    let (mut a, _b) = inside(stubborn);
    a.set_timeout(Some(SOON));
    // The abort ends the receive for the reason of the send.
    let timed_out = DownReason::TimedOut {
        queue: Queue::Send,
        after: SOON,
    };
    let from = filled(&a, 1, 64);
    let mut into = zeros(&a, 64);
    let ended = a.scope(|scope| {
        let send = scope.lend(Outgoing::send(from.gather_element(..)?))?;
        let receive = scope.lend(Incoming::receive(into.scatter_element(..)?))?;
        let (result, element) = bounded(|| send.spin_poll());
        let error = result.unwrap_err();
        assert!(was_ended(&error, timed_out), "{error:?}");
        assert!(element[..] == pattern(1, 64));
        // The abort ended the receive, too.
        let (result, mut element) = receive.wait_timeout(Duration::ZERO).unwrap();
        assert!(was_ended(&result.unwrap_err(), timed_out));
        element.fill(3);
        Ok::<_, Error>(())
    });
    ended.unwrap();
    assert_eq!(into[..], [3; 64]);
    assert_eq!(a.down_reason(), Some(timed_out));
}
