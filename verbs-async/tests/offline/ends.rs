//! After a failure that ends all completions, every waiter gets the reason.

use fake_libibverbs::{assert_all_is_well, with};
use verbs_async::Error;
use verbs_async::verbs_channel::verbs_core::PollSlot;

use crate::bench::{Bench, Task, done, now};

type Fails = fn(&Bench);

#[test]
fn failure_ends_every_wait_with_its_reason() {
    let ways: [(&str, Fails); 3] = [
        ("poll", |_| {
            with(|library| library.poll_answer = Some(-2));
        }),
        ("event", |_| {
            with(|library| library.refuse.push(("ibv_get_cq_event", libc::EIO)));
        }),
        ("notifier", |bench| bench.hand.over()),
    ];
    for (way, fails) in ways {
        {
            let bench = Bench::new();
            let cq = bench.cq();
            let mut slots = [PollSlot::new()];
            let mut any = Task::new(cq.poll(&mut slots)).waits();
            let mut one = Task::new(cq.poll_wr_id(1)).waits();
            fails(&bench);
            bench.announce([cq.cq()]);
            assert_eq!((any.was_woken(), one.was_woken()), (1, 1), "{way}");
            // A later waiter gets the error, too.
            let errors = [
                any.ends().map(drop).unwrap_err(),
                one.ends().map(drop).unwrap_err(),
                now(cq.poll_wr_id(2)).map(drop).unwrap_err(),
            ];
            for error in errors {
                assert_eq!(matches!(error, Error::Poll(_)), way == "poll", "{error}");
            }
            if way == "notifier" {
                // A queue that is created later does not wait forever either.
                now(bench.cq().poll_wr_id(1)).unwrap_err();
            }
        }
        assert_all_is_well();
    }
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
