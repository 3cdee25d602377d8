//! Streams that end early: dropped, aborted, or by a peer that does not cooperate.

use std::io;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use verbs_async::verbs_channel::verbs_core::RemoteMemoryRegion;
use verbs_async::verbs_channel::{Outgoing, OwnedBuffer};
use verbs_async::{AsyncChannel, AsyncGroup, ByteStream, StreamError};
use verbs_harness::{begin, faults};

use super::super::ends::{WAYS, Way, buffer, run, untimed_pair, within};
use super::{soon, streams};

#[track_caller]
fn is_reset<T: std::fmt::Debug>(result: io::Result<T>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    assert_eq!(inner, Some(&StreamError::Reset));
}

#[test]
#[ignore = "needs an RDMA device"]
fn drop_is_read_as_an_end_after_what_was_written_or_as_a_reset() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    for way in WAYS {
        run(way, async move {
            let (_group, mut left, mut right) = streams(way, (64, 4), (64, 4));
            soon(left.write_all(b"and then")).await.unwrap();
            let start = Instant::now();
            drop(left);
            let mut bytes = [0; 8];
            soon(right.read_exact(&mut bytes)).await.unwrap();
            assert_eq!(&bytes, b"and then");
            assert_eq!(soon(right.read(&mut bytes)).await.unwrap(), 0);
            let what = "nothing: all bytes that it sent are read, then the end";
            faults::seen(faults::CLOSED, "stream", what, faults::at_once(start));
            assert_eq!(soon(right.read(&mut bytes)).await.unwrap(), 0);
            let start = Instant::now();
            let error = soon(right.write(b"x")).await.unwrap_err();
            faults::error(faults::CLOSED, "stream", &error, faults::at_once(start));
            is_reset::<()>(Err(error));
            assert!(right.is_down());
            // Nothing was lost.
            soon(right.close()).await.unwrap();
            // With unread data.
            let (_group, mut left, mut right) = streams(way, (64, 4), (64, 4));
            soon(left.write_all(b"and then")).await.unwrap();
            soon(right.write_all(b"not read")).await.unwrap();
            soon(right.flush()).await.unwrap();
            drop(left);
            soon(right.read_exact(&mut bytes)).await.unwrap();
            assert_eq!(&bytes, b"and then");
            is_reset(soon(right.close()).await);
            is_reset(soon(right.read(&mut bytes)).await);
        });
    }
}

const HELLO: u32 = 1 << 28;
const DATA: u32 = 2 << 28;
const CREDIT: u32 = 3 << 28;

/// A stream with 4 blocks of 64 bytes, and a peer whose messages the test chooses.
struct Met {
    group: AsyncGroup,
    stream: ByteStream,
    liar: AsyncChannel,
}

impl Met {
    fn new() -> Self {
        let (group, left, liar) = untimed_pair(Way::Thread);
        let stream = left.into_stream_with(64, 4).unwrap();
        Self {
            group,
            stream,
            liar,
        }
    }

    async fn sends(&self, imm_data: u32, bytes: &[u8]) {
        let bytes = match bytes {
            [] => OwnedBuffer::empty(),
            bytes => buffer(self.group.pd(), bytes),
        };
        let (sent, _) = soon(self.liar.run(Outgoing::send(bytes).immediate(imm_data))).await;
        sent.unwrap();
    }

    /// The HELLO of a peer with 2 blocks of 32 bytes.
    async fn sends_hello(&self) {
        self.sends_hello_with(1, 2).await;
    }

    async fn sends_hello_with(&self, version: u8, depth: u8) {
        let numbers = [0, 0, 0, version, 0, 0, 0, 32, 0, 0, 0, depth];
        let hello = [&b"VRBSTRM\n"[..], &numbers].concat();
        self.sends(HELLO, &hello).await;
    }

    /// The error of the stream, which is the same in both directions. It is recorded.
    async fn ends(&mut self) -> StreamError {
        let start = Instant::now();
        let read = soon(self.stream.read(&mut [0; 64])).await.unwrap_err();
        let write = soon(self.stream.write(b"x")).await.unwrap_err();
        assert_eq!(write.to_string(), read.to_string());
        assert_eq!(read.kind(), io::ErrorKind::InvalidData);
        faults::error(faults::INVALID, "stream", &read, faults::at_once(start));
        *read.get_ref().unwrap().downcast_ref().unwrap()
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn peer_that_violates_the_protocol_is_an_error_after_its_data() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Thread, async {
        let mut met = Met::new();
        met.sends(HELLO, b"GET / HTTP/1.1\r\n\r\n").await;
        assert_eq!(met.ends().await, StreamError::NotAStream);
        let mut met = Met::new();
        let (sent, _) = met.liar.send(buffer(met.group.pd(), b"ping")).await;
        sent.unwrap();
        assert_eq!(met.ends().await, StreamError::NotAStream);
        let (block_len, depth) = (32, 0);
        for (version, depth, error) in [
            (2, 2, StreamError::Version(2)),
            (1, 0, StreamError::Settings { block_len, depth }),
        ] {
            let mut met = Met::new();
            met.sends_hello_with(version, depth).await;
            assert_eq!(met.ends().await, error);
        }
        let mut met = Met::new();
        met.sends_hello().await;
        met.sends(DATA, b"true").await;
        met.sends(CREDIT | 60_000, b"").await;
        let mut bytes = [0; 4];
        soon(met.stream.read_exact(&mut bytes)).await.unwrap();
        assert_eq!(&bytes, b"true");
        let why = StreamError::Protocol("more credits than its depth");
        assert_eq!(met.ends().await, why);
        let mut met = Met::new();
        met.sends_hello().await;
        let nowhere = RemoteMemoryRegion::new(0, 0, 0).unwrap();
        let write = Outgoing::write(OwnedBuffer::empty(), nowhere).immediate(DATA);
        soon(met.liar.run(write)).await.0.unwrap();
        let why = StreamError::Protocol("an RDMA write with immediate");
        assert_eq!(met.ends().await, why);
    });
}

/// A write to no memory, and a message that is longer than a block.
#[test]
#[ignore = "needs an RDMA device"]
fn request_that_the_device_rejects_ends_the_stream() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Thread, async {
        for is_long in [false, true] {
            let mut met = Met::new();
            // Nothing that the stream has sent is in flight.
            let hello = met.liar.receive(buffer(met.group.pd(), &[0; 64]));
            soon(hello).await.0.unwrap();
            met.sends_hello().await;
            let nowhere = RemoteMemoryRegion::new(0, 8, 0).unwrap();
            let request = match is_long {
                true => Outgoing::send(buffer(met.group.pd(), &[1; 65])).immediate(DATA),
                false => Outgoing::write(buffer(met.group.pd(), &[1; 8]), nowhere),
            };
            let start = Instant::now();
            soon(met.liar.run(request)).await.0.unwrap_err();
            let read = soon(met.stream.read(&mut [0; 64])).await.unwrap_err();
            if !is_long {
                faults::error(faults::QP_ERROR, "stream", &read, faults::at_once(start));
            }
            assert_eq!(read.kind(), io::ErrorKind::ConnectionAborted);
            assert!(soon(met.stream.write(b"x")).await.is_err());
        }
    });
}

/// Nothing more is sent, and only operations that wait for it hang.
#[test]
#[ignore = "needs an RDMA device"]
fn peer_without_receives_does_not_block_a_drop() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Thread, async {
        let mut met = Met::new();
        met.sends_hello().await;
        let wrote = soon(met.stream.write(b"into the void")).await;
        assert_eq!(wrote.unwrap(), 13);
        let (start, timeout) = (Instant::now(), Duration::from_millis(200));
        let writing = met.stream.write_all(&[1; 1000]);
        assert!(within(timeout, writing).await.is_none());
        let caller = faults::caller(start, timeout);
        let what = "nothing: writes end while there are free blocks, then wait";
        faults::seen(faults::NO_RECEIVE, "stream", what, caller);
        drop(met.stream);
        drop(met.liar);
    });
}
