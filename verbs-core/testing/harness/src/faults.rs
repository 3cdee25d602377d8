//! The table of faults in the guide: what a user sees of each fault, on each layer, and in what time.
//!
//! A test that makes a fault records what it saw and since when, which must be what the table has, and in
//! time: a cell of the table is checked by each test that records it. `cargo xtask test` collects the
//! records and fails if a cell has none, unless it is "not tested".
#![expect(missing_docs, reason = "the texts of the table describe themselves")]

use std::error::Error;
use std::fmt::Display;
use std::time::{Duration, Instant};

use verbs_core::{AckTimeout, MaxAckRetries, MinRnrTimer};

use super::{is_soft, iwarp};

/// The chapter of the guide.
const TABLE: &str = include_str!("../../../../verbs-channel/src/guide/faults.md");

/// The sections of the table.
pub const SOME_PACKETS: &str = "Some packets are lost, reordered, duplicated or damaged";
pub const ALL_PACKETS: &str = "All packets are lost";
pub const LINK: &str = "The link goes down, and comes up again";
pub const ADDRESS: &str = "The address of the interface is removed";
pub const CLOSED: &str = "The peer closes";
pub const KILLED: &str = "The peer's process is killed";
pub const HOST: &str = "The peer's host dies";
pub const REMOVED: &str = "The device is removed";
pub const OVERRUN: &str = "The completion queue overruns";
pub const QP_FATAL: &str = "The queue pair fails";
pub const MEMLOCK: &str = "The limit on locked memory is reached";
pub const DESCRIPTORS: &str = "No file descriptors are left";
pub const QUEUE_PAIRS: &str = "No queue pairs are left";
pub const NO_RECEIVE: &str = "The peer posts no receive";
pub const LIES: &str = "The peer lies in the exchange";
pub const DISK: &str = "The disk is full";

/// What bounds the time until a fault is seen.
#[derive(Clone, Copy)]
pub struct Within {
    start: Instant,
    /// As the table has it.
    word: &'static str,
    at_most: Duration,
}

/// What a slow machine may take on top of any bound.
const SLOW: Duration = Duration::from_secs(5);

/// No timeout has to pass after `start`.
pub fn at_once(start: Instant) -> Within {
    setting(start, "at once", Duration::ZERO)
}

/// The device's retries after `start`, with the codes of a queue pair.
pub fn retries(start: Instant, ack_timeout: u8, retry_cnt: u8) -> Within {
    let once = AckTimeout::new(ack_timeout).unwrap().duration().unwrap();
    // Devices may wait for up to four times as long as the code says.
    let all = once * 4 * (u32::from(retry_cnt) + 1);
    setting(start, "[`ack_timeout`] and [`retry_cnt`]", all)
}

/// The same with the defaults.
pub fn retries_by_default(start: Instant) -> Within {
    let (ack_timeout, retry_cnt) = (AckTimeout::default(), MaxAckRetries::default());
    retries(start, ack_timeout.get(), retry_cnt.get())
}

/// The device's retries after `start`, to a peer without a receive.
pub fn rnr_retries(start: Instant, min_rnr_timer: MinRnrTimer, rnr_retry: u8) -> Within {
    let all = min_rnr_timer.duration() * (u32::from(rnr_retry) + 1);
    setting(start, "[`rnr_retry`] and the peer's [`min_rnr_timer`]", all)
}

/// A setting with this value in the test.
pub fn setting(start: Instant, word: &'static str, value: Duration) -> Within {
    Within {
        start,
        word,
        at_most: value + SLOW,
    }
}

/// What is seen if all goes on.
pub const SLOWER: &str = "nothing: all bytes arrive, once and in order";

/// Records what `layer` shows of `fault`, an error with its causes, as soon as it is seen; `within` bounds
/// the time until then.
///
/// The texts of statuses differ between devices: the table is that of soft-RoCE and of the library
/// that tests define, and other devices record nothing.
pub fn error(fault: &str, layer: &str, error: &dyn Error, within: Within) {
    text(fault, layer, chain(error), within);
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn Error) -> String {
    let (mut text, mut source) = (error.to_string(), error.source());
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// The same for the text of an error, or of an event.
pub fn text(fault: &str, layer: &str, text: impl Display, within: Within) {
    seen(
        fault,
        layer,
        &format!("``{}``", example(&text.to_string())),
        within,
    );
}

/// The same for what is no error.
pub fn seen(fault: &str, layer: &str, what: &str, within: Within) {
    if std::env::var_os("VERBS_DEVICE").is_some() && (!is_soft() || iwarp::is_iwarp()) {
        return;
    }
    if cfg!(miri) {
        // It is slow, and its texts of the system's errors have their numbers twice.
        return;
    }
    println!("FAULT {fault} | {layer}");
    let Within {
        start,
        word,
        at_most,
    } = within;
    let took = start.elapsed();
    println!("after {took:?}, at most {at_most:?}: {word}");
    let rows = rows(fault, layer);
    let found = rows.contains(&[what, word]);
    let rows: Vec<_> = rows.iter().map(|row| row.join(" | ")).collect();
    assert!(
        found,
        "verbs-channel/src/guide/faults.md differs from what was seen: # {fault}\n\
         | {layer} | {what} | {word} |\nIt has: {rows:#?}"
    );
    assert!(
        took <= at_most,
        "# {fault}, {layer}: seen after {took:?}, not within {at_most:?}: {word}"
    );
}

/// What the table has of a fault on a layer, and the bound.
fn rows(fault: &str, layer: &str) -> Vec<[&'static str; 2]> {
    let mut section = "";
    let mut rows = Vec::new();
    for line in TABLE.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            section = title;
        }
        let Some(row) = line
            .strip_prefix("| ")
            .and_then(|line| line.strip_suffix(" |"))
        else {
            continue;
        };
        let cells: Vec<_> = row.split(" | ").collect();
        if let [found, what, within] = cells[..]
            && (section, found) == (fault, layer)
        {
            rows.push([what, within]);
        }
    }
    rows
}

/// A text with the numbers and addresses of the guide's examples.
fn example(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let number = word.trim_end_matches([':', ',']);
        let rest = &word[number.len()..];
        if number.starts_with("0x") {
            format!("0x11{rest}")
        } else if number.starts_with("127.0.0.1:") {
            format!("10.0.0.2:7471{rest}")
        } else {
            word.to_owned()
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
