//! The faults that tests see are those of the guide's table of faults.
//!
//! A test that causes a fault says what the user sees of it on a layer, and since when. It fails if the table has no such
//! row, or if the time is longer than its limit.
#![expect(missing_docs, reason = "the texts of the table describe themselves")]

use std::error::Error;
use std::fmt::Display;
use std::time::{Duration, Instant};

use verbs_core::{AckTimeout, MaxAckRetries, MinRnrTimer};

use super::{is_in_user_space, is_soft, iwarp, kernel};

/// The page with the table.
const PAGE: &str = include_str!("../../../../verbs-channel/src/guide/faults.md");

/// The sections of the table.
pub const SOME_PACKETS: &str = "Some packets are lost, reordered, duplicated or damaged";
pub const ALL_PACKETS: &str = "All packets are lost";
pub const LINK: &str = "The link goes down, and comes up again";
pub const PEERS_LINK: &str = "The peer's link goes down";
pub const ADDRESS: &str = "The address of the interface is removed";
pub const PEERS_ADDRESS: &str = "The peer's address is removed";
pub const CLOSED: &str = "The peer closes";
pub const KILLED: &str = "The peer's process is killed";
pub const HOST: &str = "The peer's host dies";
pub const REMOVED: &str = "The device is removed";
pub const OVERRUN: &str = "The completion queue overruns";
pub const UNPOLLED: &str = "The completion queue cannot be polled";
pub const QP_ERROR: &str = "The queue pair is moved to ERR";
pub const QP_FATAL: &str = "The queue pair fails without a flush";
pub const MEMLOCK: &str = "The limit on locked memory is reached";
pub const DESCRIPTORS: &str = "No file descriptors are left";
pub const QUEUE_PAIRS: &str = "No queue pairs are left";
pub const NO_RECEIVE: &str = "The peer posts no receive";
pub const INVALID: &str = "The peer sends invalid bytes";
pub const DISK: &str = "The disk is full";

/// The limit of the time until a fault is seen.
#[derive(Clone, Copy)]
pub struct Within {
    start: Instant,
    /// As the table has it.
    word: &'static str,
    at_most: Duration,
}

/// The time that a slow machine may take on top of any limit.
const SLOW: Duration = Duration::from_secs(5);

/// For timeouts that must not be what ends the wait for a fault: far beyond what [`at_once`] allows.
pub const NOT_AT_ONCE: Duration = Duration::from_secs(60);

/// A drain timeout that must not be what ends the wait for a fault. Soft-iWARP has been seen not to flush a receive: no
/// fault is recorded there, and the timeout is the default.
pub fn drain_timeout() -> Duration {
    match iwarp::is_iwarp() {
        true => Duration::from_secs(1),
        false => NOT_AT_ONCE,
    }
}

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

/// The caller stops waiting after this time.
pub fn caller(start: Instant, timeout: Duration) -> Within {
    setting(start, "the caller's timeout", timeout)
}

/// The symptom if nothing is lost.
pub const SLOWER: &str = "nothing: all bytes arrive, once and in order";
/// The symptom if nothing ends an operation.
pub const NOTHING: &str = "nothing: operations stay in flight";

/// Compares what `layer` shows of `fault`, an error with its causes, as soon as it is seen, with the table; `within` limits
/// the time until then.
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
    let what = format!("``{}``", example(&text.to_string()));
    seen(fault, layer, &what, within);
}

/// The same for what is no error.
///
/// The texts of statuses differ between devices: the rows are those of soft-RoCE and of tests without a device.
pub fn seen(fault: &str, layer: &str, what: &str, within: Within) {
    let has_device = std::env::var_os("VERBS_DEVICE").is_some();
    if has_device && (!is_soft() || iwarp::is_iwarp()) {
        return;
    }
    if cfg!(miri) {
        // It is slow, and its texts of the system's errors have their numbers twice.
        return;
    }
    let Within {
        start,
        word,
        at_most,
    } = within;
    let took = start.elapsed();
    let version = kernel();
    let mut numbers = version.split('.');
    let place = match (numbers.next(), numbers.next()) {
        _ if is_in_user_space() => "user space".to_owned(),
        (Some(major), Some(minor)) if has_device => format!("Linux {major}.{minor}"),
        _ => "no device".to_owned(),
    };
    println!("{place}: # {fault}: {layer}: {what}: {word}: after {took:?}, at most {at_most:?}");
    let (what, status) = without_words(what);
    assert!(
        has_row(fault, &[layer, &what, word, &place]),
        "the guide's table of faults lacks: # {fault}: | {layer} | {what} | {word} | {place} |"
    );
    if let Some(row) = status {
        assert!(
            PAGE.contains(&row),
            "the guide's table of statuses lacks: {row}"
        );
    }
    assert!(
        took <= at_most,
        "# {fault}, {layer}: seen after {took:?}, not within {at_most:?}: {word}"
    );
}

/// Whether a row of the section `fault` has these cells: a layer, the symptom, the limit, and a place.
fn has_row(fault: &str, [layer, what, word, place]: &[&str; 4]) -> bool {
    let has = |cell: &str, one: &str| cell.split(", ").any(|each| each == one);
    // Nobody has made the table on another kernel.
    let is_new = !rows().any(|(_, [_, _, _, places])| has(places, place));
    rows().any(|(section, [layers, seen, limit, places])| {
        let here = is_new || has(places, place);
        section == fault && has(layers, layer) && seen == *what && limit == *word && here
    })
}

/// The rows of four cells of the page, each with its section.
fn rows() -> impl Iterator<Item = (&'static str, [&'static str; 4])> {
    PAGE.split("\n# ").flat_map(|section| {
        let title = section.lines().next().unwrap_or_default();
        section.lines().filter_map(move |row| {
            let row = row.strip_prefix("| ")?.strip_suffix(" |")?;
            let cells: Vec<_> = row.split(" | ").collect();
            Some((title, cells.try_into().ok()?))
        })
    })
}

/// A text without the words of its status, and the row of the status with its words, which are the same on each layer.
fn without_words(what: &str) -> (String, Option<String>) {
    const BEFORE: &str = " on QP 0x11: ";
    let Some((before, words)) = what.trim_matches('`').split_once(BEFORE) else {
        return (what.to_owned(), None);
    };
    let status = before.rsplit(' ').next().unwrap_or_default();
    let row = format!("| `{status}` | {words} |");
    (format!("``{before}{BEFORE}…``"), Some(row))
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
