//! Completions that one poll has found, and that others take: in any order, and after anything else.

use fake_libibverbs::with;
use verbs_channel::verbs_core::GatherElement;
use verbs_channel::verbs_core::verbs_sys::IBV_WC_RETRY_EXC_ERR;
use verbs_channel::{
    Channel, Error, PollingScope, Queue, ScopeError, ScopedPendingWork, TransportError,
};

use crate::driven::polls;
use crate::fake_device::{bounded, channel, ends, flushes, posted, region, succeeds};

/// The device completes everything that is posted. Returns the ids.
fn all_succeeds() -> Vec<u64> {
    let ids = posted();
    ids.iter().copied().for_each(succeeds);
    with(|library| library.posted.clear());
    ids
}

/// Posts `count` sends. Returns their handles.
fn sends<'scope, 'env>(
    scope: &'scope PollingScope<'scope, 'env>,
    element: GatherElement<'env>,
    count: usize,
) -> Result<Vec<ScopedPendingWork<'scope, 'env>>, Error> {
    let posts = (0..count).map(|_| Ok(scope.post_send(element)?));
    posts.collect()
}

/// Runs scopes until slots or credits would be missing if one had lost any.
fn has_all_of_its_room(channel: &mut Channel) {
    let from = region(channel);
    for _ in 0..3 {
        let ended = channel.scope(|scope| {
            for _ in 0..4 {
                scope.post_send(from.gather_element(..)?)?;
            }
            all_succeeds();
            Ok::<_, Error>(())
        });
        ended.unwrap();
    }
    assert!(channel.is_idle());
    assert_eq!(channel.credits(Queue::Send), 4);
}

#[test]
fn handles_take_what_one_poll_has_found_in_any_order() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 1, 3], [1, 0, 3, 2]] {
        let mut channel = channel();
        let from = region(&channel);
        let ended = channel.scope(|scope| {
            let element = from.gather_element(..)?;
            let mut handles = sends(scope, element, 4)?;
            let ids = all_succeeds();
            for at in order {
                let success = handles[at].poll().expect("it has completed")?;
                assert_eq!(success.wr_id(), ids[at]);
                assert!(handles[at].poll().is_none(), "it was taken");
            }
            Ok::<_, Error>(())
        });
        ended.unwrap();
        has_all_of_its_room(&mut channel);
    }
}

#[test]
fn one_poll_is_enough_for_handles_in_order() {
    let mut channel = channel();
    let from = region(&channel);
    let ended = channel.scope(|scope| {
        let element = from.gather_element(..)?;
        let handles = sends(scope, element, 4)?;
        all_succeeds();
        let before = polls();
        let mut handles = handles.into_iter();
        handles.next().expect("there are four").spin_poll()?;
        for mut handle in handles {
            handle.poll().expect("it has completed")?;
        }
        assert_eq!(polls(), before + 1);
        Ok::<_, Error>(polls())
    });
    assert_eq!(polls(), ended.unwrap(), "nothing is in flight at the end");
    has_all_of_its_room(&mut channel);
}

#[test]
fn next_posts_have_the_room_of_all_that_a_poll_has_found() {
    let mut channel = channel();
    let from = region(&channel);
    let ended = channel.scope(|scope| {
        let element = from.gather_element(..)?;
        let mut first = scope.post_send(element)?;
        let others = sends(scope, element, 3)?;
        all_succeeds();
        first.poll().expect("it has completed")?;
        // The queue holds no more than these.
        let more = sends(scope, element, 4)?;
        all_succeeds();
        for mut handle in others.into_iter().chain(more) {
            handle.poll().expect("it has completed")?;
        }
        Ok::<_, Error>(())
    });
    ended.unwrap();
    has_all_of_its_room(&mut channel);
}

#[test]
fn dropped_and_leaked_handles_leave_no_slot_behind() {
    let mut channel = channel();
    let from = region(&channel);
    // More than there are slots.
    for _ in 0..10 {
        let ended = channel.scope(|scope| {
            let element = from.gather_element(..)?;
            let mut first = scope.post_send(element)?;
            let dropped = scope.post_send(element)?;
            let _leaked = std::mem::ManuallyDrop::new(scope.post_send(element)?);
            all_succeeds();
            first.poll().expect("it has completed")?;
            drop(dropped);
            Ok::<_, Error>(())
        });
        ended.unwrap();
    }
    has_all_of_its_room(&mut channel);
}

#[test]
fn handles_that_take_their_outcomes_leave_their_slots_to_the_next() {
    let mut channel = channel();
    let from = region(&channel);
    let ended = channel.scope(|scope| {
        let element = from.gather_element(..)?;
        // Many more operations than there are slots, in one scope.
        for round in 0..10 {
            let handles = [(); 4].map(|()| scope.post_send(element));
            all_succeeds();
            for handle in handles {
                let mut handle = handle.unwrap_or_else(|reason| panic!("{round}: {reason}"));
                handle.poll().expect("it has completed")?;
            }
        }
        Ok::<_, Error>(())
    });
    ended.unwrap();
    has_all_of_its_room(&mut channel);
}

#[test]
fn outcome_that_was_dispatched_is_taken_from_its_slot() {
    let mut channel = channel();
    let from = region(&channel);
    let ended = channel.scope(|scope| {
        let element = from.gather_element(..)?;
        for round in 0..10 {
            let mut handles = [(); 3].map(|()| scope.post_send(element).expect("there is room"));
            all_succeeds();
            // Not the first that was found: all are dispatched.
            handles[1].poll().expect("it has completed")?;
            // One poll finds two, in the places of the first two.
            let later = [(); 2].map(|()| scope.post_send(element));
            all_succeeds();
            for handle in later {
                let mut handle = handle.unwrap_or_else(|reason| panic!("{round}: {reason}"));
                handle.poll().expect("it has completed")?;
            }
            // Its completion may still be in the place behind those.
            for at in [2, 0] {
                handles[at].poll().expect("it has completed")?;
            }
        }
        Ok::<_, Error>(())
    });
    ended.unwrap();
    has_all_of_its_room(&mut channel);
}

#[test]
fn batch_and_receive_return_their_own_credits() {
    let mut channel = channel();
    let (from, mut into) = (region(&channel), region(&channel));
    let ended = channel.scope(|scope| {
        let element = from.gather_element(..)?;
        let mut handles = vec![scope.post_receive(into.scatter_element(..)?)?];
        handles.push(scope.post_send(element)?);
        handles.push(scope.post_batch([element; 3].map(verbs_channel::Outgoing::send))?);
        let ids = posted();
        let [receive, send, .., last] = ids[..] else {
            panic!("five are posted");
        };
        [receive, send, last].into_iter().for_each(succeeds);
        with(|library| library.posted.clear());
        for handle in &mut handles {
            handle.poll().expect("it has completed")?;
        }
        Ok::<_, Error>(())
    });
    ended.unwrap();
    assert_eq!(channel.credits(Queue::Receive), 4);
    has_all_of_its_room(&mut channel);
}

#[test]
fn completion_that_is_repeated_returns_its_credits_once() {
    let mut channel = channel();
    let from = region(&channel);
    let ended = channel.scope(|scope| {
        let element = from.gather_element(..)?;
        let mut handles = sends(scope, element, 2)?;
        let [first, second] = posted()[..] else {
            panic!("two are posted");
        };
        [first, first, second, first].into_iter().for_each(succeeds);
        with(|library| library.posted.clear());
        for handle in &mut handles {
            handle.poll().expect("it has completed")?;
        }
        Ok::<_, Error>(())
    });
    ended.unwrap();
    has_all_of_its_room(&mut channel);
}

#[test]
fn failure_behind_a_success_is_its_own_operations() {
    let mut channel = channel();
    let from = region(&channel);
    let ended = bounded(|| {
        channel.scope(|scope| {
            let element = from.gather_element(..)?;
            let mut handles = sends(scope, element, 3)?;
            let [first, second, third] = posted()[..] else {
                panic!("three are posted");
            };
            succeeds(first);
            ends(second, IBV_WC_RETRY_EXC_ERR);
            flushes(third);
            with(|library| library.posted.clear());
            let [first, second, third] = &mut handles[..] else {
                panic!("there are three");
            };
            first.poll().expect("it has completed")?;
            let failed = second.poll().expect("it has completed").unwrap_err();
            assert!(matches!(failed, TransportError::Work { .. }), "{failed}");
            let flushed = third.poll().expect("it has completed").unwrap_err();
            assert!(matches!(flushed, TransportError::Aborted(_)), "{flushed}");
            assert!(scope.post_send(element).is_err(), "the channel is down");
            Ok::<_, Error>(())
        })
    });
    ended.unwrap();
    assert!(channel.down_reason().is_some());
}

#[test]
fn success_that_was_taken_stays_one_though_the_scope_fails() {
    let mut channel = channel();
    let from = region(&channel);
    let ended: Result<(), ScopeError<Error>> = bounded(|| {
        channel.scope(|scope| {
            let element = from.gather_element(..)?;
            let mut first = scope.post_send(element)?;
            scope.post_send(element)?;
            all_succeeds();
            first.poll().expect("it has completed")?;
            Err(Error::from(TransportError::Taken))
        })
    });
    assert!(matches!(ended, Err(ScopeError::ClosureError(_))));
    assert!(channel.down_reason().is_none(), "all of it has succeeded");
    has_all_of_its_room(&mut channel);
}

#[test]
fn tickets_are_taken_in_any_order_after_one_poll() {
    let mut channel = channel();
    let pd = channel.pd().clone();
    let tickets = [(); 4].map(|()| {
        let buffer = pd.reg_mr(vec![0_u8; 8]).unwrap();
        channel.start_send(buffer).unwrap()
    });
    all_succeeds();
    let before = polls();
    let [first, second, third, fourth] = tickets;
    assert_eq!(channel.poll(first).unwrap().unwrap().ticket, first);
    assert_eq!(channel.poll(second).unwrap().unwrap().ticket, second);
    // Out of order, and without a poll.
    let taken = channel.engine_mut().take(fourth).unwrap().unwrap();
    assert_eq!(taken.ticket, fourth);
    assert_eq!(channel.next_completed().unwrap().ticket, third);
    assert_eq!(polls(), before + 1);
    assert_eq!(channel.credits(Queue::Send), 4);
    assert_eq!(channel.engine_mut().drive(), 0, "the queue is empty");
    assert!(channel.poll(first).is_err(), "it was taken");
    has_all_of_its_room(&mut channel);
}

#[test]
fn drive_dispatches_what_is_held_and_counts_it() {
    let mut channel = channel();
    let pd = channel.pd().clone();
    let start = |channel: &mut Channel| {
        let buffer = pd.reg_mr(vec![0_u8; 8]).unwrap();
        channel.start_send(buffer).unwrap()
    };
    let tickets = [(); 4].map(|()| start(&mut channel));
    all_succeeds();
    assert!(channel.poll(tickets[0]).unwrap().is_some());
    // More are found than were taken.
    let more = start(&mut channel);
    let receive = channel.start_receive(pd.reg_mr(vec![0_u8; 8]).unwrap());
    all_succeeds();
    assert_eq!(channel.engine_mut().drive(), 5, "three are held");
    assert_eq!(channel.engine_mut().drive(), 0);
    let in_order = tickets.into_iter().skip(1).chain([more, receive.unwrap()]);
    for ticket in in_order {
        assert_eq!(channel.next_completed().unwrap().ticket, ticket);
    }
    has_all_of_its_room(&mut channel);
}

#[test]
fn poll_of_a_scope_dispatches_what_its_handles_left() {
    let mut channel = channel();
    let (from, mut into) = (region(&channel), region(&channel));
    let ended = channel.scope(|scope| {
        let element = from.gather_element(..)?;
        let mut handles = Vec::new();
        for _ in 0..3 {
            handles.push(scope.post_send(element)?);
        }
        all_succeeds();
        let first = handles.remove(0);
        first.spin_poll()?;
        // One for each that is held, and for the one that was taken.
        handles.push(scope.post_receive(into.scatter_element(..)?)?);
        handles.push(scope.post_send(element)?);
        all_succeeds();
        assert_eq!(scope.poll(), 5);
        assert_eq!(scope.poll(), 0);
        for mut handle in handles {
            handle.poll().expect("it has completed")?;
        }
        Ok::<_, Error>(())
    });
    ended.unwrap();
    has_all_of_its_room(&mut channel);
}

#[test]
fn requests_find_the_room_of_tickets_that_were_not_polled_for() {
    let mut channel = channel();
    let pd = channel.pd().clone();
    let start = |channel: &mut Channel| {
        let buffer = pd.reg_mr(vec![0_u8; 8]).unwrap();
        channel.start_send(buffer)
    };
    let receives = channel.credits(Queue::Receive);
    for _ in 0..10 {
        let tickets = [(); 4].map(|()| start(&mut channel).unwrap());
        all_succeeds();
        assert_eq!(channel.credits(Queue::Send), 0);
        assert!(channel.poll(tickets[0]).unwrap().is_some());
        // The queue had no room without the others.
        assert_eq!(channel.credits(Queue::Send), 4);
        assert_eq!(channel.credits(Queue::Receive), receives);
        assert_eq!(channel.in_flight(Queue::Send), 3);
        let more = [(); 4].map(|()| start(&mut channel).unwrap());
        all_succeeds();
        for ticket in tickets.into_iter().skip(1).chain(more) {
            assert!(channel.poll(ticket).unwrap().is_some());
        }
    }
    has_all_of_its_room(&mut channel);
}

#[test]
fn blocking_request_loses_no_ticket_that_was_not_polled_for() {
    let mut channel = channel();
    let pd = channel.pd().clone();
    let from = region(&channel);
    let start = |channel: &mut Channel| {
        let buffer = pd.reg_mr(vec![0_u8; 8]).unwrap();
        channel.start_send(buffer).unwrap()
    };
    let rounds = [(); 2].map(|()| {
        let tickets = [(); 4].map(|()| start(&mut channel));
        let mut ids = all_succeeds();
        for ticket in tickets {
            assert!(channel.poll(ticket).unwrap().is_some());
        }
        ids.sort_unstable();
        ids
    });
    let step = rounds[1][0] - rounds[0][0];
    let [first, second] = [(); 2].map(|()| start(&mut channel));
    let in_flight = all_succeeds();
    assert!(channel.poll(first).unwrap().is_some());
    // The second was polled with the first. Among these is the blocking request, whatever slot it gets;
    // the others are unknown.
    let next = rounds[1].iter().flat_map(|id| [id + step, id + 2 * step]);
    next.filter(|id| !in_flight.contains(id)).for_each(succeeds);
    bounded(|| channel.send(from.gather_element(..).unwrap())).unwrap();
    assert!(channel.poll(second).unwrap().is_some(), "it is not lost");
    has_all_of_its_room(&mut channel);
}

#[test]
fn blocking_request_that_finds_another_completion_leaves_their_order() {
    let mut channel = channel();
    let pd = channel.pd().clone();
    let from = region(&channel);
    let start = |channel: &mut Channel| {
        let buffer = pd.reg_mr(vec![0_u8; 8]).unwrap();
        channel.start_send(buffer).unwrap()
    };
    let [first, second] = [(); 2].map(|()| start(&mut channel));
    all_succeeds();
    assert_eq!(channel.poll(first).unwrap().unwrap().ticket, first);
    // The second is held. The next completion is that of the third, and then that of the request.
    with(|library| library.completes_sends = true);
    let third = start(&mut channel);
    bounded(|| channel.send(from.gather_element(..).unwrap())).unwrap();
    for ticket in [second, third] {
        assert_eq!(channel.next_completed().unwrap().ticket, ticket);
    }
    with(|library| library.completes_sends = false);
    has_all_of_its_room(&mut channel);
}
