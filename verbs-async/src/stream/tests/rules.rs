//! A peer that breaks the rules of the protocol.

use proptest::prelude::{ProptestConfig, any, prop, proptest};

use super::settings;
use crate::stream::error::StreamError;
use crate::stream::protocol::{Protocol, Received};
use crate::stream::wire::{Header, Kind, Settings};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Nothing that a peer can send makes it panic.
    #[test]
    fn any_peer_is_handled_without_a_panic(
        ours in settings(),
        messages in prop::collection::vec((any::<Option<u32>>(), 0..3_usize), 0..50),
        likely in prop::collection::vec((1..10_u32, 0..3_u32, any::<bool>()), 0..50),
    ) {
        let mut protocol = Protocol::new(ours);
        let _hello = protocol.receive(Some(Protocol::hello()), &ours.encode());
        let likely = likely.into_iter().map(|(kind, credits, confirms)| {
            (Some(kind << 28 | u32::from(confirms) << 16 | credits), (kind == 2).into())
        });
        for (imm_data, len) in likely.chain(messages) {
            if protocol.receive(imm_data, &vec![1; len]) == Ok(Received::Data) {
                protocol.consumed();
            }
            if protocol.may_send_data() {
                let _sent = protocol.data();
            }
            let _control = protocol.control();
        }
    }
}

const OURS: Settings = Settings {
    block_len: 64,
    depth: 2,
};
const THEIRS: Settings = Settings {
    block_len: 32,
    depth: 3,
};

/// A side that has received the peer's HELLO.
fn met() -> Protocol {
    let mut protocol = Protocol::new(OURS);
    let received = protocol.receive(Some(Protocol::hello()), &THEIRS.encode());
    assert_eq!(received, Ok(Received::Control));
    protocol
}

fn message(kind: Kind, confirms: bool, credits: u16) -> Option<u32> {
    let header = Header {
        kind,
        confirms,
        credits,
    };
    Some(header.encode())
}

fn is_broken(result: Result<Received, StreamError>, words: &str) {
    match result {
        Err(StreamError::Protocol(why)) => assert_eq!(why, words),
        other => panic!("{other:?}, not {words}"),
    }
}

#[test]
fn other_first_message_is_not_a_stream() {
    for imm_data in [
        None,
        Some(7),
        message(Kind::Data, false, 0),
        message(Kind::Hello, true, 0),
        message(Kind::Hello, false, 1),
    ] {
        let received = Protocol::new(OURS).receive(imm_data, &THEIRS.encode());
        assert_eq!(received, Err(StreamError::NotAStream), "{imm_data:?}");
    }
}

/// A peer may choose the numbers of its HELLO: each other byte of it has one value.
#[test]
fn each_byte_of_a_hello_may_have_any_value() {
    let truth = THEIRS.encode();
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u32::from(*byte))
    };
    // Miri takes half an hour for all.
    let step = if cfg!(miri) { 51 } else { 1 };
    let values = |at| (0..=255).step_by(step).map(move |value| (at, value));
    for (at, value) in (0..truth.len()).flat_map(values) {
        let mut hello = truth;
        hello[at] = value;
        let (version, block_len) = (number(&hello[8..12]), number(&hello[12..16]));
        let depth = number(&hello[16..]);
        let is_invalid = if hello[..8] != truth[..8] {
            Some(StreamError::NotAStream)
        } else if version != 1 {
            Some(StreamError::Version(version))
        } else if block_len == 0 || !(1..0x1_0000).contains(&depth) {
            Some(StreamError::Settings { block_len, depth })
        } else {
            None
        };
        let mut protocol = Protocol::new(OURS);
        let received = protocol.receive(Some(Protocol::hello()), &hello);
        assert_eq!(received.err(), is_invalid, "{value} at {at}");
        if is_invalid.is_none() {
            assert_eq!(protocol.max_len(), Some(64.min(block_len as usize)));
            let mut sent = 0;
            while protocol.may_send_data() {
                let _data = protocol.data();
                sent += 1;
            }
            assert_eq!(sent, depth);
        }
    }
}

/// The immediate of a message, too.
#[test]
fn each_byte_of_a_header_may_have_any_value() {
    let accepted = |kind: Kind, payload: &[u8]| {
        let truth = message(kind, false, 1).unwrap().to_be_bytes();
        let at = |at: usize| {
            let accepted = (0..=255_u8).filter(|value| {
                let mut header = truth;
                header[at] = *value;
                // One credit can be returned, and the HELLO can be confirmed.
                let mut protocol = met();
                let _data = protocol.data();
                let received = protocol.receive(Some(u32::from_be_bytes(header)), payload);
                received.is_ok()
            });
            accepted.collect::<Vec<_>>()
        };
        [at(0), at(1), at(2), at(3)]
    };
    assert_eq!(
        accepted(Kind::Data, b"x"),
        [&[0x20][..], &[0, 1], &[0], &[0, 1]]
    );
    // FIN and CLOSE may carry it, too.
    let kinds = &[0x30, 0x40, 0x70][..];
    assert_eq!(accepted(Kind::Credit, b""), [kinds, &[0, 1], &[0], &[1]]);
    let [first, others @ ..] = accepted(Kind::Fin, b"");
    assert_eq!(
        (&first[..], others),
        (kinds, [vec![0, 1], vec![0], vec![0, 1]])
    );
}

#[test]
fn invalid_messages_are_rejected() {
    is_broken(met().receive(None, b"x"), "a message of an unknown kind");
    is_broken(
        met().receive(Some(0x9000_0000), b"x"),
        "a message of an unknown kind",
    );
    let hello = message(Kind::Hello, true, 0);
    is_broken(met().receive(hello, b""), "a second HELLO");
    is_broken(
        met().receive(message(Kind::Data, false, 0), b""),
        "a DATA message without bytes",
    );
    let fin = message(Kind::Fin, false, 0);
    is_broken(met().receive(fin, b"x"), "bytes in a message without data");
}

#[test]
fn impossible_credits_are_rejected() {
    let mut protocol = met();
    let one = message(Kind::Data, false, 1);
    is_broken(protocol.receive(one, b"x"), "more credits than its depth");
    for _ in 0..2 {
        let _data = protocol.data();
    }
    assert_eq!(protocol.receive(one, b"x"), Ok(Received::Data));
    let two = message(Kind::Data, false, 2);
    is_broken(protocol.receive(two, b"x"), "more credits than its depth");
}

#[test]
fn more_data_than_there_are_credits_is_rejected() {
    let mut protocol = met();
    let data = message(Kind::Data, false, 0);
    assert_eq!(protocol.receive(data, b"x"), Ok(Received::Data));
    assert_eq!(protocol.receive(data, b"x"), Ok(Received::Data));
    // Its credit has not been sent to the peer yet.
    protocol.consumed();
    is_broken(
        protocol.receive(data, b"x"),
        "more data than it has credits for",
    );
}

#[test]
fn unexpected_credit_message_is_rejected() {
    let mut protocol = met();
    let _data = (protocol.data(), protocol.data());
    is_broken(
        protocol.receive(message(Kind::Credit, true, 0), b""),
        "an unexpected CREDIT",
    );
    let mut protocol = met();
    let _data = (protocol.data(), protocol.data());
    let one = message(Kind::Credit, false, 1);
    assert_eq!(protocol.receive(one, b""), Ok(Received::Control));
    is_broken(protocol.receive(one, b""), "an unexpected CREDIT");
}

#[test]
fn unrequested_confirmation_or_answer_is_rejected() {
    let mut protocol = met();
    let data = message(Kind::Data, true, 0);
    assert_eq!(protocol.receive(data, b"x"), Ok(Received::Data));
    is_broken(
        protocol.receive(data, b"x"),
        "a confirmation of a message that was not sent",
    );
    for kind in [Kind::FinSeen, Kind::FinLost] {
        let mut protocol = met();
        let answer = message(kind, false, 0);
        is_broken(
            protocol.receive(answer, b""),
            "an answer to a FIN that was not sent",
        );
        let mut protocol = met();
        assert!(protocol.fin().is_some());
        assert_eq!(protocol.receive(answer, b""), Ok(Received::Control));
        is_broken(
            protocol.receive(answer, b""),
            "an answer to a FIN that was not sent",
        );
    }
}

#[test]
fn no_data_is_accepted_after_the_end() {
    let fin = message(Kind::Fin, false, 0);
    let mut protocol = met();
    assert_eq!(protocol.receive(fin, b""), Ok(Received::Control));
    is_broken(protocol.receive(fin, b""), "a second FIN");
    let mut protocol = met();
    assert_eq!(protocol.receive(fin, b""), Ok(Received::Control));
    is_broken(
        protocol.receive(message(Kind::Data, false, 0), b"x"),
        "data after the end",
    );
    let reset = protocol.receive(message(Kind::Reset, false, 0), b"");
    assert_eq!(reset, Err(StreamError::Reset));
    let mut protocol = met();
    let close = message(Kind::Close, false, 0);
    assert_eq!(protocol.receive(close, b""), Ok(Received::Control));
    is_broken(protocol.receive(close, b""), "a message after CLOSE");
    assert!(protocol.fin_was_received() && !protocol.may_send_data());
    assert_eq!(
        (protocol.control(), protocol.fin(), protocol.close()),
        (None, None, None)
    );
}
