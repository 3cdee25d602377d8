//! The error texts of this crate in the guide are those that the code prints.

use std::io;
use std::os::unix::net::UnixStream;

use tokio::runtime::Builder;
use verbs_async::notifier::TokioNotifier;
use verbs_async::verbs_channel::exchange::ExchangeError;
use verbs_async::{Error, ErrorChain, StreamError};
use verbs_harness::chains::{self, Explained, assert_explained};

const PAGE: &str = include_str!("../../../verbs-channel/src/guide/troubleshooting/running.md");

/// The blocks of the section about this crate, each as one line.
fn quoted() -> Vec<String> {
    let (_, section) = PAGE
        .split_once("\n# With verbs-async\n")
        .expect("the page has the section");
    chains::quoted(section.split("\n# ").next().unwrap_or_default())
}

/// Errors of a notifier of tokio that is made outside of a runtime, and within one without I/O.
fn of_tokio() -> [Error; 2] {
    let (descriptor, _other) = UnixStream::pair().expect("there are descriptors left");
    let outside = TokioNotifier::new(&descriptor);
    let without_io = Builder::new_current_thread().build();
    let runtime = without_io.expect("this machine has a runtime");
    let within = runtime.block_on(async { TokioNotifier::new(&descriptor) });
    [outside, within].map(|notifier| notifier.expect_err("it cannot watch").into())
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no such descriptors")]
fn guide_quotes_the_texts_of_errors_as_they_are_printed() {
    let [outside, without_io] = of_tokio();
    let receives = Error::StreamReceives {
        depth: 16,
        needed: 20,
        max_recv_wr: 8,
    };
    let errors = [outside, without_io, Error::AlreadyWatched, receives];
    let of_streams = [
        StreamError::NotAStream,
        StreamError::Version(2),
        StreamError::Reset,
    ];
    let mut printed = errors
        .each_ref()
        .map(|error| ErrorChain::new(error).to_string())
        .to_vec();
    let no_timers = ExchangeError::Tcp {
        what: "set a deadline for",
        source: io::Error::other(
            "timers are not enabled in this tokio runtime, see Builder::enable_time",
        ),
    };
    printed.insert(2, ErrorChain::new(&no_timers).to_string());
    printed.extend(of_streams.map(|error| ErrorChain::new(&io::Error::from(error)).to_string()));
    assert_eq!(quoted(), printed);

    let errors = errors.map(|error| format!("{error:?}"));
    let of_streams = of_streams.map(|error| format!("{error:?}"));
    let explained = [&errors[..], &of_streams].concat();
    let types: [Explained<'_>; 2] = [
        ("Error", &[""], include_str!("../../src/error.rs")),
        (
            "StreamError",
            &[""],
            include_str!("../../src/stream/error.rs"),
        ),
    ];
    assert_explained(&types, &explained, &RARE);
}

/// Errors that the guide does not explain, and why.
const RARE: [(&str, &str); 9] = [
    ("Error::AlreadyAwaited", "the text has what to do"),
    ("Error::Channel", "of verbs-channel"),
    ("Error::ForeignChannel", "the text has what to do"),
    (
        "Error::NoCompletionChannel",
        "a mistake of the program, which the text names",
    ),
    (
        "Error::Poll",
        "a fault of the device: in the chapter on faults",
    ),
    ("Error::Thread", "a machine without threads"),
    ("Error::Transport", "of verbs-channel"),
    (
        "StreamError::Protocol",
        "of a peer that sends invalid bytes: in the chapter on faults",
    ),
    (
        "StreamError::Settings",
        "of a peer that sends invalid bytes: in the chapter on faults",
    ),
];
