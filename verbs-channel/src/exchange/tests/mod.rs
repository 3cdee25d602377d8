//! Tests of the exchange, against all kinds of peers, without I/O and over TCP.

mod bytes;

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use verbs_core::{PacketSequenceNumber, QueuePairEndpoint};

use super::{Exchange, ExchangeError, Io, MAX_PRIVATE_DATA, PeerEndpoint, RefusalCode};
use crate::connect::deadline::Deadline;
use crate::connect::{accept, tcp};
use crate::error::{Error, Result};

const SECOND: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(50);

const ENDPOINT: u16 = 1;
const READY: u16 = 2;
const REFUSED: u16 = 3;

fn endpoint(qp_num: u32) -> QueuePairEndpoint {
    let psn = PacketSequenceNumber::new(7).unwrap();
    let endpoint = QueuePairEndpoint::builder(qp_num, psn);
    endpoint.lid(1).build().unwrap()
}

fn begin(qp_num: u32, private_data: &[u8]) -> Exchange {
    Exchange::new(&endpoint(qp_num), private_data).unwrap()
}

fn frame(version: u16, kind: u16, len: u32, payload: &[u8]) -> Vec<u8> {
    let (version, kind) = (version.to_be_bytes(), kind.to_be_bytes());
    [b"VRBC", &version[..], &kind, &len.to_be_bytes(), payload].concat()
}

fn good(qp_num: u32) -> Vec<u8> {
    frame(1, ENDPOINT, 37, &endpoint(qp_num).to_bytes())
}

/// Runs an exchange against a peer that sends these bytes, `at_once` at a time, and closes the
/// connection. Returns the outcome, and the bytes that this side sent.
fn run(
    exchange: &mut Exchange,
    theirs: &mut &[u8],
    at_once: usize,
) -> (Result<PeerEndpoint, ExchangeError>, Vec<u8>) {
    let mut sent = Vec::new();
    loop {
        let moved = match exchange.io() {
            Ok(Some(Io::Write(bytes))) => {
                let bytes = &bytes[..at_once.min(bytes.len())];
                sent.extend(bytes);
                Ok(bytes.len())
            }
            Ok(Some(Io::Read(buffer))) => {
                let most = at_once.min(buffer.len());
                theirs.read(&mut buffer[..most])
            }
            Ok(None) => return (exchange.peer().cloned().ok_or(ExchangeError::Over), sent),
            Err(error) => return (Err(error), sent),
        };
        exchange.moved(moved);
    }
}

/// The error of an exchange with a peer that sends these bytes, and the refusal that the peer is sent.
fn of(theirs: &[u8]) -> (ExchangeError, Option<(RefusalCode, String)>) {
    let mut exchange = begin(2, b"");
    let (ended, sent) = run(&mut exchange, &mut &theirs[..], 7);
    assert!(matches!(exchange.io(), Err(ExchangeError::Over)));
    let refusal = &sent[good(2).len()..];
    let refusal = (!refusal.is_empty()).then(|| parsed(refusal));
    (ended.unwrap_err(), refusal)
}

/// The code and the text of a refusal, as the peer receives them.
fn parsed(refusal: &[u8]) -> (RefusalCode, String) {
    match run(&mut begin(3, b""), &mut &refusal[..], 1000).0 {
        Err(ExchangeError::Refused { code, words }) => (code, words),
        other => panic!("{other:?}"),
    }
}

#[test]
fn endpoints_are_exchanged_however_the_bytes_are_split() {
    for at_once in [1, 5, 12, 48, 5000] {
        let mut ours = begin(2, b"from two");
        let theirs = [good(3), frame(1, READY, 0, b""), b"more".to_vec()].concat();
        let mut theirs = &theirs[..];
        let (peer, sent) = run(&mut ours, &mut theirs, at_once);
        assert_eq!(peer.unwrap().endpoint, endpoint(3));
        let payload = [&endpoint(2).to_bytes()[..], b"from two"].concat();
        assert_eq!(sent, frame(1, ENDPOINT, 45, &payload));
        ours.ready();
        let (peer, sent) = run(&mut ours, &mut theirs, at_once);
        assert_eq!(peer.unwrap().endpoint, endpoint(3));
        assert_eq!(sent, frame(1, READY, 0, b""));
        // Bytes after the exchange are not read.
        assert_eq!(theirs, b"more");
    }
}

#[test]
fn private_data_is_bounded() {
    let most = begin(2, &[9; MAX_PRIVATE_DATA]);
    let mut other = begin(3, b"");
    let (peer, _) = run(&mut other, &mut &most.out[..], 5000);
    assert_eq!(peer.unwrap().private_data, [9; MAX_PRIVATE_DATA]);
    let error = Exchange::new(&endpoint(2), &[0; MAX_PRIVATE_DATA + 1]).unwrap_err();
    assert!(matches!(error, ExchangeError::PrivateData(1025)));
}

#[test]
fn refusal_of_another_version_is_parsed() {
    let (error, refusal) = of(&frame(9, REFUSED, 5, b"\0\x09too"));
    let ExchangeError::Refused { code, words } = error else {
        panic!("{error}");
    };
    assert_eq!((code.as_raw(), &words[..]), (9, "too"));
    assert_eq!(refusal, None);
}

#[test]
fn truncated_frame_is_an_error_with_its_length() {
    for (bytes, expected) in [
        (frame(1, ENDPOINT, 37, &[0; 5]), (5, 37)),
        (b"VRBC\0".to_vec(), (5, 12)),
        (Vec::new(), (0, 12)),
    ] {
        let (error, refusal) = of(&bytes);
        let ExchangeError::HungUp { got, expected: of } = error else {
            panic!("{error}");
        };
        assert_eq!((got, of), expected);
        assert_eq!(refusal, None);
    }
}

#[test]
fn other_first_frames_are_refused_with_a_code_unless_the_protocol_is_another() {
    use ExchangeError::{Endpoint, Kind, NotOurs, TooLong, Version};
    type Is = fn(&ExchangeError) -> bool;
    let cases: [(&[u8], Is, Option<RefusalCode>); 9] = [
        (
            b"GET / HTTP/1.1",
            |it| matches!(it, NotOurs([b'G', ..])),
            None,
        ),
        (b"BAD\n", |it| matches!(it, NotOurs([.., b'\n'])), None),
        (
            &frame(9, ENDPOINT, 2000, b""),
            |it| matches!(it, Version(9)),
            Some(RefusalCode::VERSION),
        ),
        (
            &frame(1, ENDPOINT, u32::MAX, b""),
            |it| matches!(it, TooLong { max: 1061, .. }),
            Some(RefusalCode::FRAME),
        ),
        (
            &frame(1, REFUSED, u32::MAX, b""),
            |it| matches!(it, TooLong { max: 256, .. }),
            Some(RefusalCode::FRAME),
        ),
        (
            &frame(1, READY, 0, b""),
            |it| matches!(it, Kind { got: READY, .. }),
            Some(RefusalCode::FRAME),
        ),
        (
            &frame(1, ENDPOINT, 37, &[0xff; 37]),
            |it| matches!(it, Endpoint(_)),
            Some(RefusalCode::ENDPOINT),
        ),
        (
            &frame(1, ENDPOINT, 3, &[0; 3]),
            |it| matches!(it, Endpoint(_)),
            Some(RefusalCode::ENDPOINT),
        ),
        (
            &frame(1, ENDPOINT, 0, b""),
            |it| matches!(it, Endpoint(_)),
            Some(RefusalCode::ENDPOINT),
        ),
    ];
    for (theirs, is_expected, code) in cases {
        let (error, refusal) = of(theirs);
        assert!(is_expected(&error), "{error:?}");
        assert_eq!(refusal.map(|(code, _)| code), code, "{error:?}");
    }
}

#[test]
fn failed_handshake_is_sent_in_place_of_ready() {
    let mut ours = begin(2, b"");
    run(&mut ours, &mut &good(3)[..], 100).0.unwrap();
    ours.refuse(&io::Error::other("no such path"));
    // A refusal is final.
    ours.ready();
    let (ended, sent) = run(&mut ours, &mut &b""[..], 100);
    assert!(matches!(ended, Err(ExchangeError::Over)), "{ended:?}");
    assert_eq!(sent, frame(1, REFUSED, 14, b"\0\x04no such path"));
    let mut theirs = begin(3, b"");
    let received = [good(2), sent].concat();
    let mut received = &received[..];
    run(&mut theirs, &mut received, 100).0.unwrap();
    theirs.ready();
    let error = run(&mut theirs, &mut received, 100).0.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the peer refused the connection: \"no such path\""
    );
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn refusal_is_read_after_a_failed_write() {
    let refused = frame(1, REFUSED, 6, b"\0\x04full");
    for (theirs, is_refused) in [
        (&refused[..], true),
        (&[good(3), refused.clone()].concat(), true),
        (&[good(3), frame(1, READY, 0, b"")].concat(), false),
        (b"", false),
    ] {
        let mut ours = begin(2, b"");
        ours.moved(Err(io::ErrorKind::BrokenPipe.into()));
        let (ended, sent) = run(&mut ours, &mut &theirs[..], 100);
        assert!(sent.is_empty());
        match ended.unwrap_err() {
            ExchangeError::Refused { words, .. } => assert!(is_refused && words == "full"),
            ExchangeError::Tcp { what, .. } => assert!(!is_refused && what == "write to"),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn refusal_that_cannot_be_sent_does_not_change_the_error() {
    for kind in [io::ErrorKind::BrokenPipe, io::ErrorKind::TimedOut] {
        let mut ours = begin(2, b"");
        ours.moved(Ok(usize::MAX));
        let Ok(Some(Io::Read(buffer))) = ours.io() else {
            panic!("nothing is due");
        };
        buffer.copy_from_slice(&frame(9, ENDPOINT, 0, b""));
        ours.moved(Ok(12));
        assert!(matches!(ours.io(), Ok(Some(Io::Write(_)))));
        ours.moved(Err(kind.into()));
        assert!(matches!(ours.io(), Err(ExchangeError::Version(9))));
    }
}

#[test]
fn wrong_byte_counts_of_a_stream_are_bounded() {
    let mut ours = begin(2, b"");
    ours.moved(Ok(1));
    ours.moved(Ok(usize::MAX));
    assert!(matches!(ours.io(), Ok(Some(Io::Read(_)))));
    run(&mut ours, &mut &good(3)[..], 100).0.unwrap();
    ours.ready();
    assert!(matches!(ours.io(), Ok(Some(Io::Write(out))) if out.len() == 12));
    // However it parses the rest, it ends.
    for _ in 0..3 {
        ours.moved(Ok(1));
        ours.moved(Ok(usize::MAX));
    }
    assert!(ours.io().is_err());
}

#[test]
fn interrupted_and_would_block_are_retried() {
    let mut ours = begin(2, b"");
    for kind in [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock] {
        ours.moved(Err(kind.into()));
        assert!(matches!(ours.io(), Ok(Some(Io::Write(_)))));
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An exchange over TCP whose handshake has this outcome.
fn meet(stream: &TcpStream, timeout: Duration, handshake: Result<()>) -> Result<((), Vec<u8>)> {
    let deadline = Deadline::after(timeout);
    tcp::meet(stream, deadline, begin(2, b"hello"), |_| handshake)
}

/// The error of this side when the peer does this.
fn against(peer: impl FnOnce(TcpStream) + Send, timeout: Duration) -> ExchangeError {
    let (listener, address) = listener();
    thread::scope(|threads| {
        threads.spawn(|| peer(TcpStream::connect(address).unwrap()));
        let stream = accept::accept(&listener, Deadline::after(SECOND)).unwrap();
        match meet(&stream, timeout, Ok(())).unwrap_err() {
            Error::Exchange(failure) => {
                assert!(failure.peer.is_some(), "{failure}");
                failure.error
            }
            other => panic!("{other}"),
        }
    })
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no poll(2)")]
fn over_tcp_the_options_of_the_stream_are_restored() {
    let (listener, address) = listener();
    thread::scope(|threads| {
        let peer = threads.spawn(move || {
            let mut stream = tcp::connect(&address.into(), Deadline::after(SECOND)).unwrap();
            let (_, theirs) = meet(&stream, SECOND, Ok(())).unwrap();
            stream.write_all(b"and more").unwrap();
            theirs
        });
        let mut stream = accept::accept(&listener, Deadline::after(SECOND)).unwrap();
        stream.set_read_timeout(Some(5 * SECOND)).unwrap();
        let (_, theirs) = meet(&stream, SECOND, Ok(())).unwrap();
        assert_eq!(theirs, b"hello");
        assert_eq!(peer.join().unwrap(), b"hello");
        assert_eq!(stream.read_timeout().unwrap(), Some(5 * SECOND));
        assert_eq!(stream.write_timeout().unwrap(), None);
        assert!(!stream.nodelay().unwrap());
        let mut more = String::new();
        stream.read_to_string(&mut more).unwrap();
        assert_eq!(more, "and more");
    });
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn over_tcp_the_peer_is_sent_why_a_handshake_failed() {
    let error = against(
        |stream| {
            let failed = Err(Error::Unpolled(77));
            let error = meet(&stream, SECOND, failed).unwrap_err();
            // This side returns its own error.
            assert!(matches!(error, Error::Unpolled(77)), "{error}");
        },
        SECOND,
    );
    let words = Error::Unpolled(77).to_string();
    assert_eq!(
        error.to_string(),
        format!("the peer refused the connection: {words:?}")
    );
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn failed_exchange_shuts_the_stream_down_though_it_is_not_dropped() {
    let (listener, address) = listener();
    let stream = TcpStream::connect(address).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    peer.write_all(&frame(9, ENDPOINT, 0, b"")).unwrap();
    peer.set_read_timeout(Some(5 * SECOND)).unwrap();
    meet(&stream, SECOND, Ok(())).unwrap_err();
    let mut received = Vec::new();
    peer.read_to_end(&mut received).unwrap();
    assert_eq!(parsed(&received[42 + 12..]).0, RefusalCode::VERSION);
    drop(stream);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn single_bytes_do_not_extend_the_deadline() {
    let start = Instant::now();
    let error = against(
        |mut peer| {
            for byte in good(3) {
                thread::sleep(SOON / 5);
                if peer.write_all(&[byte]).is_err() {
                    break;
                }
            }
        },
        SOON,
    );
    assert!(matches!(error, ExchangeError::TimedOut { .. }), "{error}");
    assert!(start.elapsed() < SECOND);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no poll(2)")]
fn accepting_without_a_peer_times_out() {
    let (listener, _) = listener();
    let error = accept::accept(&listener, Deadline::after(SOON)).unwrap_err();
    assert_eq!(error.to_string(), "the peer did not connect within 50 ms");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no poll(2)")]
fn connecting_without_a_listener_fails_by_the_deadline() {
    let (listener, address) = listener();
    drop(listener);
    let failure = tcp::connect(&address.into(), Deadline::after(SOON)).unwrap_err();
    let error = &failure.error;
    assert!(
        matches!(error, ExchangeError::NotListening { .. }),
        "{error}"
    );
    assert_eq!(
        failure.to_string(),
        format!("nothing listened at {address} for 50 ms: is the server started?")
    );
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn refused_peer_receives_the_reason_and_the_end() {
    let why = io::Error::other("no room");
    let error = against(|stream| tcp::refuse(&stream, SECOND, &why), SECOND);
    assert_eq!(
        error.to_string(),
        "the peer refused the connection: \"no room\""
    );
    // A peer that sends nothing, and reads everything.
    let (listener, address) = listener();
    let mut peer = TcpStream::connect(address).unwrap();
    peer.set_read_timeout(Some(5 * SECOND)).unwrap();
    let stream = listener.accept().unwrap().0;
    tcp::refuse(&stream, SECOND, &why);
    let mut received = Vec::new();
    peer.read_to_end(&mut received).unwrap();
    assert_eq!(received, frame(1, REFUSED, 9, b"\0\x04no room"));
    drop(stream);
}
