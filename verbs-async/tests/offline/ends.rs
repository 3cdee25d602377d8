//! After a failure that ends all completions, every waiter gets the reason.

use fake_libibverbs::{assert_all_is_well, with};
use verbs_async::Error;
use verbs_async::verbs_channel::verbs_core::PollSlot;

use crate::bench::{Bench, Task, done, now};

#[test]
fn a_queue_that_cannot_be_polled_ends_every_wait() {
    {
        let bench = Bench::new();
        let cq = bench.cq();
        let mut slots = [PollSlot::new()];
        let mut any = Task::new(cq.poll(&mut slots)).waits();
        let mut one = Task::new(cq.poll_wr_id(1)).waits();
        with(|library| library.poll_answer = Some(-2));
        bench.announce([cq.cq()]);
        assert_eq!((any.was_woken(), one.was_woken()), (1, 1));
        assert!(matches!(any.ends(), Err(Error::Poll(_))));
        assert!(matches!(one.ends(), Err(Error::Poll(_))));
        // A later waiter gets the error, too.
        assert!(matches!(now(cq.poll_wr_id(2)), Err(Error::Poll(_))));
    }
    assert_all_is_well();
}

#[test]
fn failed_notifier_ends_every_wait_of_every_queue() {
    {
        let bench = Bench::new();
        let (first, second) = (bench.cq(), bench.cq());
        let mut slots = [PollSlot::new()];
        let mut any = Task::new(first.poll(&mut slots)).waits();
        let mut one = Task::new(second.poll_wr_id(1)).waits();
        bench.hand.over();
        assert_eq!((any.was_woken(), one.was_woken()), (1, 1));
        assert!(matches!(any.ends(), Err(Error::Io(_))));
        assert!(matches!(one.ends(), Err(Error::Io(_))));
        // A queue that is created later, or was not awaited then, does not wait forever either.
        let late = bench.cq();
        assert!(matches!(now(late.poll_wr_id(1)), Err(Error::Io(_))));
    }
    assert_all_is_well();
}

#[test]
fn kept_completions_are_returned_after_a_failure() {
    let bench = Bench::new();
    let cq = bench.cq();
    bench.hand.over();
    done([1, 2]);
    assert_eq!(now(cq.poll_wr_id(2)).unwrap().wr_id(), 2);
    assert_eq!(now(cq.poll_wr_id(1)).unwrap().wr_id(), 1);
    assert!(matches!(now(cq.poll_wr_id(3)), Err(Error::Io(_))));
    done([3]);
    assert_eq!(now(cq.poll_wr_id(3)).unwrap().wr_id(), 3);
}

#[test]
fn failed_arming_ends_the_wait() {
    let bench = Bench::new();
    let cq = bench.cq();
    with(|library| library.refuse.push(("ibv_req_notify_cq", libc::EIO)));
    assert!(matches!(now(cq.poll_wr_id(1)), Err(Error::Io(_))));
}

#[test]
fn events_that_cannot_be_taken_end_every_wait() {
    let bench = Bench::new();
    let cq = bench.cq();
    let mut task = Task::new(cq.poll_wr_id(1)).waits();
    with(|library| library.refuse.push(("ibv_get_cq_event", libc::EIO)));
    bench.announce([cq.cq()]);
    assert_eq!(task.was_woken(), 1);
    assert!(matches!(task.ends(), Err(Error::Io(_))));
}
