//! The log lines of drops, and a logger that panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fake_libibverbs::{ladder, with};
use verbs_core::{CompletionChannel, CompletionQueue, QueuePair};
use verbs_harness::logged::{bombs, lines, listen};

/// Drops `object`, whose destruction fails in C. The logger panics, which goes no further, and one line is logged.
fn refused<T>(verb: &'static str, object: T) -> String {
    listen();
    let before = lines().len();
    with(|library| library.refuse.push((verb, libc::EIO)));
    bombs();
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(object)));
    assert!(dropped.is_ok(), "the logger's panic escaped from {verb}");
    assert_eq!(with(|library| library.refuse.clone()), []);
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
    let (context, pd, cq) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let announced = CompletionQueue::builder(&context, 16).channel(&channel);
    let announced = announced.build().unwrap();
    let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let mr = pd.reg_mr(vec![0_u8; 24]).unwrap();
    let why = "failed: Input/output error (os error 5)";
    assert_eq!(
        refused("ibv_destroy_qp", qp),
        format!("leaked a queue pair: ibv_destroy_qp {why}")
    );
    assert_eq!(
        refused("ibv_dereg_mr", mr),
        format!(
            "leaked a memory region and its 24 bytes, which the device may still reach: \
             ibv_dereg_mr {why}"
        )
    );
    for cq in [cq, announced] {
        assert_eq!(
            refused("ibv_destroy_cq", cq),
            format!("leaked a completion queue: ibv_destroy_cq {why}")
        );
    }
    // A leaked queue keeps its channel, so this channel is another.
    drop(channel);
    let channel = CompletionChannel::create(&context).unwrap();
    assert_eq!(
        refused("ibv_destroy_comp_channel", channel),
        format!("leaked a completion channel: ibv_destroy_comp_channel {why}")
    );
    assert_eq!(
        refused("ibv_dealloc_pd", pd),
        format!("leaked a protection domain: ibv_dealloc_pd {why}")
    );
    let other = context.device().open().unwrap();
    assert_eq!(
        refused("ibv_close_device", other),
        format!("leaked a device context: ibv_close_device {why}")
    );
}

#[test]
fn a_logger_that_panics_while_a_panic_unwinds_does_not_abort() {
    listen();
    let before = lines().len();
    let (_, pd, _) = ladder();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        with(|library| library.refuse.push(("ibv_dereg_mr", libc::EIO)));
        let _region = pd.reg_mr(vec![0_u8; 8]).unwrap();
        bombs();
        panic!("the caller's own");
    }));
    let panic = unwound.unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"the caller's own"));
    assert_eq!(lines().len(), before + 1);
}
