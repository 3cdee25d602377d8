//! Two ends in memory, in every order that there can be; and a peer that lies.

use std::collections::VecDeque;

use proptest::prelude::{ProptestConfig, Strategy, any, prop, proptest};
use proptest::{prop_assert, prop_assert_eq};

use super::SPARE;
use super::error::StreamError;
use super::protocol::{Heard, Protocol};
use super::wire::{Header, Kind, Settings};

/// One side: what the stream does with its protocol, with memory in place of a card.
struct End {
    protocol: Protocol,
    /// Receives that are posted.
    posted: u16,
    /// Messages on the wire, and those of the other side that have taken a receive.
    sent: VecDeque<(u32, Vec<u8>)>,
    came: VecDeque<(u32, Vec<u8>)>,
    unread: VecDeque<Vec<u8>>,
    block_len: usize,
    to_write: VecDeque<u8>,
    read: Vec<u8>,
}

impl End {
    fn new(settings: Settings, to_write: &[u8]) -> Self {
        let protocol = Protocol::new(settings);
        let hello = (protocol.hello(), settings.encode().to_vec());
        Self {
            protocol,
            // Here nobody says RESET.
            posted: settings.depth + SPARE - 1,
            sent: [hello].into(),
            came: VecDeque::new(),
            unread: VecDeque::new(),
            block_len: settings.block_len.try_into().unwrap(),
            to_write: to_write.iter().copied().collect(),
            read: Vec::new(),
        }
    }

    /// Sends as much as fits, or the end; whether it did something.
    fn write(&mut self, at_most: usize) -> bool {
        if self.to_write.is_empty() && !self.protocol.fin_was_sent() {
            let fin = self.protocol.fin();
            self.sent.push_back((fin, Vec::new()));
            return true;
        }
        let len = self.protocol.room().min(at_most).min(self.to_write.len());
        if len == 0 {
            return false;
        }
        let bytes = self.to_write.drain(..len).collect();
        self.sent.push_back((self.protocol.data(), bytes));
        true
    }

    fn read(&mut self) -> bool {
        let Some(bytes) = self.unread.pop_front() else {
            return false;
        };
        self.read.extend(bytes);
        self.posted += 1;
        self.protocol.consumed();
        self.give_credit();
        true
    }

    /// Everything on the wire comes, and the first message that came is heard.
    fn hear(&mut self, from: &mut Self) -> bool {
        for (imm_data, bytes) in from.sent.drain(..) {
            assert!(self.posted > 0, "a message found no receive");
            assert!(bytes.len() <= self.block_len, "a message is too long");
            self.posted -= 1;
            self.came.push_back((imm_data, bytes));
        }
        let Some((imm_data, bytes)) = self.came.pop_front() else {
            return false;
        };
        match self.protocol.hear(Some(imm_data), &bytes).unwrap() {
            Heard::Data => self.unread.push_back(bytes),
            Heard::Nothing => self.posted += 1,
        }
        self.give_credit();
        true
    }

    fn give_credit(&mut self) {
        if let Some(credit) = self.protocol.credit() {
            self.sent.push_back((credit, Vec::new()));
        }
    }

    fn is_done(&self) -> bool {
        self.to_write.is_empty() && self.protocol.fin_was_sent() && self.protocol.fin_was_heard()
    }
}

fn settings() -> impl Strategy<Value = Settings> {
    (20_u32..100, 1_u16..6).prop_map(|(block_len, depth)| Settings { block_len, depth })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Whatever the order of things: no message without a receive, all bytes in order, and never
    /// both at a halt.
    #[test]
    fn all_arrives_in_any_order_of_things(
        left in settings(),
        right in settings(),
        to_right in prop::collection::vec(any::<u8>(), 0..600),
        to_left in prop::collection::vec(any::<u8>(), 0..600),
        steps in prop::collection::vec((0..6_u8, 1..60_usize), 0..400),
    ) {
        let (mut left, mut right) = (End::new(left, &to_right), End::new(right, &to_left));
        for (what, at_most) in steps {
            let _did = match what {
                0 => left.write(at_most),
                1 => right.write(at_most),
                2 => left.read(),
                3 => right.read(),
                4 => left.hear(&mut right),
                _ => right.hear(&mut left),
            };
        }
        // From here on everybody does what he can.
        let mut moves = true;
        while moves {
            let moved = [
                left.write(usize::MAX),
                right.write(usize::MAX),
                left.hear(&mut right),
                right.hear(&mut left),
                left.read(),
                right.read(),
            ];
            moves = moved.contains(&true);
        }
        prop_assert!(left.is_done() && right.is_done(), "they wait for each other");
        prop_assert_eq!(left.read, to_left);
        prop_assert_eq!(right.read, to_right);
    }

    /// Nothing that a peer can say makes it panic.
    #[test]
    fn any_peer_is_borne(
        ours in settings(),
        messages in prop::collection::vec((any::<Option<u32>>(), 0..3_usize), 0..50),
        likely in prop::collection::vec((1..7_u32, 0..3_u32, any::<bool>()), 0..50),
    ) {
        let mut protocol = Protocol::new(ours);
        let _hello = protocol.hear(Some(protocol.hello()), &ours.encode());
        let likely = likely.into_iter().map(|(kind, credits, heard)| {
            (Some(kind << 28 | u32::from(heard) << 16 | credits), (kind == 2).into())
        });
        for (imm_data, len) in likely.chain(messages) {
            if protocol.hear(imm_data, &vec![1; len]) == Ok(Heard::Data) {
                protocol.consumed();
            }
            if protocol.room() > 0 {
                let _sent = protocol.data();
            }
            let _credit = protocol.credit();
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

/// A side that has heard the peer's hello.
fn met() -> Protocol {
    let mut protocol = Protocol::new(OURS);
    let hello = Protocol::new(THEIRS).hello();
    let heard = protocol.hear(Some(hello), &THEIRS.encode());
    assert_eq!(heard, Ok(Heard::Nothing));
    protocol
}

fn says(kind: Kind, heard: bool, credits: u16) -> Option<u32> {
    let header = Header {
        kind,
        heard,
        credits,
    };
    Some(header.encode())
}

fn is_broken(result: Result<Heard, StreamError>, words: &str) {
    match result {
        Err(StreamError::Protocol(why)) => assert_eq!(why, words),
        other => panic!("{other:?}, not {words}"),
    }
}

#[test]
fn a_message_is_as_long_as_the_shorter_block() {
    assert_eq!(Protocol::new(OURS).room(), 0, "before the peer's hello");
    assert_eq!(met().room(), 32);
}

#[test]
fn whoever_says_something_else_first_is_no_stream() {
    for imm_data in [
        None,
        Some(7),
        says(Kind::Data, false, 0),
        says(Kind::Hello, true, 0),
        says(Kind::Hello, false, 1),
    ] {
        let heard = Protocol::new(OURS).hear(imm_data, &THEIRS.encode());
        assert_eq!(heard, Err(StreamError::NotAStream), "{imm_data:?}");
    }
}

#[test]
fn what_is_no_message_is_refused() {
    is_broken(met().hear(None, b"x"), "a message of no known kind");
    is_broken(
        met().hear(Some(0x7000_0000), b"x"),
        "a message of no known kind",
    );
    let hello = says(Kind::Hello, true, 0);
    is_broken(met().hear(hello, b""), "a second hello");
    is_broken(
        met().hear(says(Kind::Data, false, 0), b""),
        "data without bytes",
    );
    let fin = says(Kind::Fin, false, 0);
    is_broken(met().hear(fin, b"x"), "bytes in a message that has none");
}

#[test]
fn credits_that_cannot_be_are_refused() {
    let mut protocol = met();
    let one = says(Kind::Data, false, 1);
    is_broken(
        protocol.hear(one, b"x"),
        "more credits than it has receives",
    );
    for _ in 0..2 {
        let _data = protocol.data();
    }
    assert_eq!(protocol.hear(one, b"x"), Ok(Heard::Data));
    let two = says(Kind::Data, false, 2);
    is_broken(
        protocol.hear(two, b"x"),
        "more credits than it has receives",
    );
}

#[test]
fn more_data_than_there_are_credits_is_refused() {
    let mut protocol = met();
    let data = says(Kind::Data, false, 0);
    assert_eq!(protocol.hear(data, b"x"), Ok(Heard::Data));
    assert_eq!(protocol.hear(data, b"x"), Ok(Heard::Data));
    // It's not told that this one was consumed.
    protocol.consumed();
    is_broken(
        protocol.hear(data, b"x"),
        "more data than it has credits for",
    );
}

#[test]
fn credits_out_of_turn_are_refused() {
    let mut protocol = met();
    let _data = (protocol.data(), protocol.data());
    is_broken(
        protocol.hear(says(Kind::Credit, true, 0), b""),
        "credits out of turn",
    );
    let mut protocol = met();
    let _data = (protocol.data(), protocol.data());
    let one = says(Kind::Credit, false, 1);
    assert_eq!(protocol.hear(one, b""), Ok(Heard::Nothing));
    is_broken(protocol.hear(one, b""), "credits out of turn");
}

#[test]
fn to_hear_what_was_not_said_is_refused() {
    let mut protocol = met();
    let data = says(Kind::Data, true, 0);
    assert_eq!(protocol.hear(data, b"x"), Ok(Heard::Data));
    is_broken(protocol.hear(data, b"x"), "it heard what was not said");
}

#[test]
fn the_end_is_the_end() {
    let fin = says(Kind::Fin, false, 0);
    let mut protocol = met();
    assert_eq!(protocol.hear(fin, b""), Ok(Heard::Nothing));
    is_broken(protocol.hear(fin, b""), "a second end of its data");
    let mut protocol = met();
    assert_eq!(protocol.hear(fin, b""), Ok(Heard::Nothing));
    is_broken(
        protocol.hear(says(Kind::Data, false, 0), b"x"),
        "data after its end",
    );
    let reset = protocol.hear(says(Kind::Reset, false, 0), b"");
    assert_eq!(reset, Err(StreamError::Reset));
}

#[test]
fn a_stream_goes_wherever_a_task_goes() {
    const fn is_free<T: Send + Sync + Unpin + 'static>() {}
    is_free::<super::ByteStream>();
    is_free::<crate::IncomingMessages>();
    is_free::<crate::Message>();
}
