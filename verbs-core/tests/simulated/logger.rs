//! The log lines of drops, and a logger that panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use soft_verbs::Host;
use verbs_core::completion::CompletionChannel;
use verbs_core::{CompletionQueue, QueuePair};
use verbs_harness::logged::{bombs, lines};

use super::{ladder, on_host};

/// Drops `object`, whose destruction fails in C. The logger panics, which goes no further, and one line is logged.
fn refused<T>(host: &Host, verb: &'static str, object: T) -> String {
    let before = lines().len();
    host.refuse(verb, libc::EIO);
    bombs();
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(object)));
    assert!(dropped.is_ok(), "the logger's panic escaped from {verb}");
    let lines = lines().split_off(before);
    let [line] = &lines[..] else {
        panic!("{verb}: {lines:?}");
    };
    let line = line.strip_prefix("ERROR: ").unwrap();
    // Under Miri the number of an errno is there twice.
    line.replace(" (os error 5) (os", " (os")
}

#[test]
fn a_logger_that_panics_stops_no_drop() {
    on_host(8, |host| {
        let refused = |verb, object: Box<dyn std::any::Any>| refused(host, verb, object);
        let (context, pd, cq) = ladder();
        let channel = CompletionChannel::create(&context).unwrap();
        let announced = CompletionQueue::builder(&context, 16).channel(&channel);
        let announced = announced.build().unwrap();
        let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
        let mr = pd.reg_mr(vec![0_u8; 24]).unwrap();
        let why = "failed: Input/output error (os error 5)";
        assert_eq!(
            refused("ibv_destroy_qp", Box::new(qp)),
            format!("leaked a queue pair: ibv_destroy_qp {why}")
        );
        assert_eq!(
            refused("ibv_dereg_mr", Box::new(mr)),
            format!(
                "leaked a memory region and its 24 bytes, which the device may still reach: \
                 ibv_dereg_mr {why}"
            )
        );
        for cq in [cq, announced] {
            assert_eq!(
                refused("ibv_destroy_cq", Box::new(cq)),
                format!("leaked a completion queue: ibv_destroy_cq {why}")
            );
        }
        // A leaked queue keeps its channel, so this channel is another.
        drop(channel);
        let channel = CompletionChannel::create(&context).unwrap();
        assert_eq!(
            refused("ibv_destroy_comp_channel", Box::new(channel)),
            format!("leaked a completion channel: ibv_destroy_comp_channel {why}")
        );
        assert_eq!(
            refused("ibv_dealloc_pd", Box::new(pd)),
            format!("leaked a protection domain: ibv_dealloc_pd {why}")
        );
        let other = context.device().open().unwrap();
        assert_eq!(
            refused("ibv_close_device", Box::new(other)),
            format!("leaked a device context: ibv_close_device {why}")
        );
    });
}

#[test]
fn a_logger_that_panics_while_a_panic_unwinds_does_not_abort() {
    // The region, and the domain, which C keeps for it.
    on_host(2, |host| {
        let (_, pd, _) = ladder();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            host.refuse("ibv_dereg_mr", libc::EIO);
            let _region = pd.reg_mr(vec![0_u8; 8]).unwrap();
            bombs();
            panic!("the caller's own");
        }));
        let panic = unwound.unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the caller's own"));
    });
}
