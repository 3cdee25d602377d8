//! Streams: who is woken when the other half finds what he waits for.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::{AsyncRead as _, AsyncWrite as _};
use verbs_async::{AsyncGroup, ByteStream};
use verbs_channel::Channel;
use verbs_core::verbs_sys::{__be32, IBV_WC_RECV, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, ibv_wc};

use crate::bench::{Bell, Bench, done};
use crate::library::{Posted, with};

const HELLO: u32 = 1 << 28;
const DATA: u32 = 2 << 28;
/// One, and that the hello was heard.
const CREDIT: u32 = 3 << 28 | 1 << 16 | 1;

/// A stream that has heard its peer's hello.
fn met(bench: &Bench) -> ByteStream {
    let pd = bench.context.alloc_pd().unwrap();
    with(|library| library.ports[0].attr.max_msg_sz = 1 << 20);
    let builder = Channel::builder(&pd).max_recv_wr(4);
    let group = AsyncGroup::new(builder, 1, &bench.events).unwrap();
    let member = group.prepare().unwrap();
    let endpoint = member.endpoint();
    let channel = group.join(member.handshake(&endpoint).unwrap()).unwrap();
    let mut stream = channel.into_stream_with(64, 1).unwrap();
    let hello = [&b"VRBSTRM\n"[..], &[0, 0, 0, 1, 0, 0, 0, 64, 0, 0, 0, 1]].concat();
    arrive(0, HELLO, &hello);
    // And this side's own has arrived there.
    done([posted(4).wr_id]);
    assert!(read(&mut stream, &Bell::new()).is_pending());
    stream
}

/// The request that was posted at this place among all.
fn posted(at: usize) -> Posted {
    with(|library| library.posted.iter().flatten().nth(at).unwrap().clone())
}

/// A message comes into the receive that was posted at this place.
fn arrive(at: usize, imm_data: u32, bytes: &[u8]) {
    let receive = posted(at);
    let into = std::ptr::with_exposed_provenance_mut(receive.list[0].0.try_into().unwrap());
    // SAFETY: the stream has given it this memory, which is longer.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len()) };
    let mut arrived = ibv_wc {
        wr_id: receive.wr_id,
        status: IBV_WC_SUCCESS,
        opcode: IBV_WC_RECV,
        byte_len: bytes.len().try_into().unwrap(),
        wc_flags: IBV_WC_WITH_IMM.0,
        ..Default::default()
    };
    arrived.__bindgen_anon_1.imm_data = __be32(imm_data.to_be());
    with(|library| library.done.push_back(arrived));
}

fn read(stream: &mut ByteStream, bell: &Arc<Bell>) -> Poll<std::io::Result<usize>> {
    let waker = Waker::from(Arc::clone(bell));
    Pin::new(stream).poll_read(&mut Context::from_waker(&waker), &mut [0; 8])
}

fn write(stream: &mut ByteStream, bell: &Arc<Bell>) -> Poll<std::io::Result<usize>> {
    let waker = Waker::from(Arc::clone(bell));
    Pin::new(stream).poll_write(&mut Context::from_waker(&waker), b"y")
}

fn flush(stream: &mut ByteStream, bell: &Arc<Bell>) -> Poll<std::io::Result<()>> {
    let waker = Waker::from(Arc::clone(bell));
    Pin::new(stream).poll_flush(&mut Context::from_waker(&waker))
}

#[test]
fn what_the_writer_finds_wakes_the_reader() {
    let bench = Bench::new();
    let mut stream = met(&bench);
    let (reader, writer) = (Bell::new(), Bell::new());
    assert!(read(&mut stream, &reader).is_pending());
    arrive(1, DATA, b"x");
    assert!(flush(&mut stream, &writer).is_ready());
    assert_eq!(reader.times(), 1);
    assert!(read(&mut stream, &reader).is_ready());
    // What is not there wakes nobody.
    assert!(read(&mut stream, &reader).is_pending());
    assert!(flush(&mut stream, &writer).is_ready());
    assert_eq!((reader.times(), writer.times()), (1, 0));
}

#[test]
fn what_the_reader_finds_wakes_the_writer() {
    let bench = Bench::new();
    let mut stream = met(&bench);
    let (reader, writer) = (Bell::new(), Bell::new());
    assert!(write(&mut stream, &writer).is_ready());
    assert!(write(&mut stream, &writer).is_pending());
    arrive(1, CREDIT, b"");
    assert!(read(&mut stream, &reader).is_pending());
    assert_eq!(writer.times(), 1);
    // Its only block is still on its way.
    assert!(write(&mut stream, &writer).is_pending());
    done([posted(6).wr_id]);
    assert!(write(&mut stream, &writer).is_ready());
}
