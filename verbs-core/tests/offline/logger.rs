//! The log lines of drops, and a logger that panics.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use fake_libibverbs::{ladder, with};
use log::{LevelFilter, Log, Metadata, Record};
use verbs_core::{CompletionChannel, CompletionQueue, QueuePair};

/// Keeps what each thread logs, and panics then if that thread wants it to.
struct Logger;

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static PANICS: Cell<bool> = const { Cell::new(false) };
}

/// The text of these panics.
const EXPECTED: [&str; 2] = ["the logger's payload", "the caller's own"];

/// A payload that panics once more when it is dropped.
struct PanicsAgain;

impl Drop for PanicsAgain {
    fn drop(&mut self) {
        panic!("{}", EXPECTED[0]);
    }
}

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        LINES.with_borrow_mut(|lines| lines.push(record.args().to_string()));
        if PANICS.get() {
            panic::panic_any(PanicsAgain);
        }
    }

    fn flush(&self) {}
}

/// What this thread logs from here on goes to a logger that panics.
fn with_a_logger_that_panics() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        // Without their backtraces, which take Miri minutes.
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let payload = panic.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let is_expected =
                payload.is::<PanicsAgain>() || text.is_some_and(|text| EXPECTED.contains(&text));
            if !is_expected {
                hook(panic);
            }
        }));
        log::set_logger(&Logger).unwrap();
        log::set_max_level(LevelFilter::Error);
    });
    PANICS.set(true);
}

fn lines() -> Vec<String> {
    LINES.take()
}

/// Drops `object`, whose destruction fails in C. Nothing panics, and one line is logged.
fn refused<T>(verb: &'static str, object: T) -> String {
    with(|library| library.refuse.push((verb, libc::EIO)));
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(object)));
    assert!(dropped.is_ok(), "the logger's panic escaped from {verb}");
    assert_eq!(with(|library| library.refuse.clone()), []);
    let lines = lines();
    let [line] = &lines[..] else {
        panic!("{verb}: {lines:?}");
    };
    // Under Miri the number of an errno is there twice.
    line.replace(" (os error 5) (os", " (os")
}

#[test]
fn a_logger_that_panics_stops_no_drop() {
    with_a_logger_that_panics();
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
    // What a queue leaked keeps its channel, so this one is another.
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
    with_a_logger_that_panics();
    let (_, pd, _) = ladder();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        with(|library| library.refuse.push(("ibv_dereg_mr", libc::EIO)));
        let _region = pd.reg_mr(vec![0_u8; 8]).unwrap();
        panic!("{}", EXPECTED[1]);
    }));
    let panic = unwound.unwrap_err();
    let text: &String = panic.downcast_ref().unwrap();
    assert_eq!(text, EXPECTED[1]);
    assert_eq!(lines().len(), 1);
}
