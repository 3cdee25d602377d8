//! Peers that violate the protocol of streams: each violation is an error, and nothing hangs.

use std::io;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use verbs_async::verbs_channel::verbs_core::RemoteMemoryRegion;
use verbs_async::verbs_channel::{Outgoing, OwnedBuffer, TransportError};
use verbs_async::{AsyncChannel, AsyncGroup, ByteStream, StreamError};
use verbs_harness::{begin, faults};

use super::super::ends::{Way, buffer, run, untimed_pair, within};
use super::soon;

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
        self.sends(HELLO, &[&b"VRBSTRM\n"[..], &numbers].concat())
            .await;
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
fn peer_that_is_not_a_stream_is_detected() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Thread, async {
        let mut met = Met::new();
        met.sends(HELLO, b"GET / HTTP/1.1\r\n\r\n").await;
        assert_eq!(met.ends().await, StreamError::NotAStream);
        let mut met = Met::new();
        let (sent, _) = met.liar.send(buffer(met.group.pd(), b"ping")).await;
        sent.unwrap();
        assert_eq!(met.ends().await, StreamError::NotAStream);
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn hello_of_another_version_or_without_blocks_is_an_error() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Thread, async {
        let mut met = Met::new();
        met.sends_hello_with(2, 2).await;
        assert_eq!(met.ends().await, StreamError::Version(2));
        let mut met = Met::new();
        met.sends_hello_with(1, 0).await;
        let (block_len, depth) = (32, 0);
        let expected = StreamError::Settings { block_len, depth };
        assert_eq!(met.ends().await, expected);
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn data_before_a_protocol_violation_are_read() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Thread, async {
        let mut met = Met::new();
        met.sends_hello().await;
        met.sends(DATA, b"true").await;
        met.sends(CREDIT | 60_000, b"").await;
        let mut bytes = [0; 4];
        soon(met.stream.read_exact(&mut bytes)).await.unwrap();
        assert_eq!(&bytes, b"true");
        let StreamError::Protocol(why) = met.ends().await else {
            panic!("another error");
        };
        assert_eq!(why, "more credits than its depth");
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn rdma_write_is_a_protocol_violation() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Thread, async {
        let mut met = Met::new();
        met.sends_hello().await;
        let nowhere = RemoteMemoryRegion::new(0, 0, 0).unwrap();
        let write = Outgoing::write(OwnedBuffer::empty(), nowhere).immediate(DATA);
        soon(met.liar.run(write)).await.0.unwrap();
        let StreamError::Protocol(why) = met.ends().await else {
            panic!("another error");
        };
        assert_eq!(why, "an RDMA write with immediate");
    });
}

/// The device rejects it, and flushes the receives of the stream.
#[test]
#[ignore = "needs an RDMA device"]
fn a_write_to_memory_of_nobody_ends_the_stream() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Thread, async {
        let mut met = Met::new();
        // Nothing that the stream has sent is in flight.
        let hello = met.liar.receive(buffer(met.group.pd(), &[0; 64]));
        soon(hello).await.0.unwrap();
        let nowhere = RemoteMemoryRegion::new(0, 8, 0).unwrap();
        let (start, bytes) = (Instant::now(), buffer(met.group.pd(), &[1; 8]));
        let (written, _) = soon(met.liar.write(bytes, nowhere)).await;
        let rejected = written.unwrap_err();
        assert!(
            !matches!(rejected, TransportError::Rejected(_)),
            "{rejected}"
        );
        let read = soon(met.stream.read(&mut [0; 64])).await.unwrap_err();
        faults::error(faults::QP_ERROR, "stream", &read, faults::at_once(start));
        assert_eq!(read.kind(), io::ErrorKind::ConnectionAborted);
    });
}

/// The device rejects it, and both ends are down.
#[test]
#[ignore = "needs an RDMA device"]
fn a_message_longer_than_a_block_is_an_error() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Thread, async {
        let mut met = Met::new();
        met.sends_hello().await;
        let long = buffer(met.group.pd(), &[1; 65]);
        let (sent, _) = soon(met.liar.run(Outgoing::send(long).immediate(DATA))).await;
        assert!(sent.is_err());
        let read = soon(met.stream.read(&mut [0; 64])).await.unwrap_err();
        assert_eq!(read.kind(), io::ErrorKind::ConnectionAborted);
        assert!(soon(met.stream.write(b"x")).await.is_err());
    });
}

/// The peer has no receives: nothing more is sent, and only operations that wait for it hang.
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
