//! Texts of errors, alone and with their sources: no part of a chain repeats another.
//!
//! A variant that is new does not compile here until it is listed.

use std::io;

use verbs_channel::error::Queue;
use verbs_channel::verbs_core::__private::{poll_error, work_error};
use verbs_channel::{DownReason, RejectReason, TransportError, verbs_core};
use verbs_harness::chains::{assert_debug_is_text, assert_repeats_nothing, parts};

use crate::Error;
use crate::stream::StreamError;

const DOWN: DownReason = DownReason::Work {
    queue: Queue::Receive,
    error: work_error(),
};

fn errors() -> Vec<Error> {
    let cause = || io::Error::other("the cause");
    let core = verbs_core::Error::Verb {
        verb: "ibv_create_cq",
        source: cause(),
    };
    vec![
        Error::from(RejectReason::Down(DOWN)),
        Error::Transport(TransportError::Aborted(DOWN)),
        Error::NoCompletionChannel,
        Error::ForeignChannel,
        Error::AlreadyAwaited,
        Error::Poll(poll_error()),
        Error::Io(cause()),
        Error::Thread(cause()),
        Error::Channel(verbs_channel::Error::Core(core)),
        Error::AlreadyWatched,
        Error::StreamReceives {
            depth: 16,
            needed: 20,
            max_recv_wr: 8,
        },
    ]
}

const fn of_error(error: &Error) -> usize {
    match error {
        Error::StreamReceives { .. } => 0,
        Error::Transport(_) => 1,
        Error::NoCompletionChannel => 2,
        Error::ForeignChannel => 3,
        Error::AlreadyAwaited => 4,
        Error::AlreadyWatched => 5,
        Error::Poll(_) => 6,
        Error::Io(_) => 7,
        Error::Thread(_) => 8,
        Error::Channel(_) => 9,
    }
}

fn stream_errors() -> Vec<StreamError> {
    vec![
        StreamError::Reset,
        StreamError::NotAStream,
        StreamError::Version(7),
        StreamError::Settings {
            block_len: 1,
            depth: 2,
        },
        StreamError::Protocol("a DATA message without bytes"),
    ]
}

const fn of_stream(error: &StreamError) -> usize {
    match error {
        StreamError::Reset => 0,
        StreamError::NotAStream => 1,
        StreamError::Version(_) => 2,
        StreamError::Settings { .. } => 3,
        StreamError::Protocol(_) => 4,
    }
}

#[test]
fn no_error_repeats_its_source() {
    let mut variants: Vec<_> = errors().iter().map(of_error).collect();
    variants.sort_unstable();
    variants.dedup();
    assert_eq!(variants, (0..=9).collect::<Vec<_>>());
    for error in errors() {
        let alone = parts(&error);
        assert_repeats_nothing(&error);
        assert_debug_is_text(&error);
        // The `io::Error` made of it repeats nothing either, and stays what it was.
        let io = io::Error::from(error);
        assert!(alone.ends_with(&parts(&io)), "{io:?}");
    }
    let mut variants: Vec<_> = stream_errors().iter().map(of_stream).collect();
    variants.sort_unstable();
    assert_eq!(variants, (0..=4).collect::<Vec<_>>());
    for error in stream_errors() {
        let alone = parts(&error);
        assert_repeats_nothing(&error);
        assert_debug_is_text(&error);
        assert_eq!(parts(&io::Error::from(error)), alone);
    }
}

#[test]
fn down_error_has_the_reason_and_its_cause_as_sources() {
    let parts = parts(&Error::from(RejectReason::Down(DOWN)));
    assert_eq!(parts[..2], ["the channel is down", "a receive failed"]);
    assert!(
        parts[2].starts_with("IBV_WC_RETRY_EXC_ERR on QP 0x3"),
        "{parts:?}"
    );
}

#[test]
fn peer_that_left_is_found_in_each_error() {
    const LEFT: DownReason = DownReason::PeerClosed;
    let rejected = || RejectReason::Down(LEFT);
    for error in [
        Error::from(rejected()),
        Error::Transport(TransportError::Aborted(LEFT)),
        Error::Channel(verbs_channel::Error::from(rejected())),
    ] {
        assert!(error.down_reason().is_some_and(DownReason::is_peer_closed));
        assert_eq!(
            io::Error::from(error).kind(),
            io::ErrorKind::ConnectionReset
        );
    }
    assert_eq!(Error::NoCompletionChannel.down_reason(), None);
}
