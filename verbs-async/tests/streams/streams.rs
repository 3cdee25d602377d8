//! Streams: which task is woken, from where, and how a dropped stream ends.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use fake_libibverbs::{Posted, is_alive, share, with};
use futures_util::{AsyncRead, AsyncWrite};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use verbs_async::{AsyncGroup, ByteStream, OwnedWriteHalf};
use verbs_channel::Channel;
use verbs_core::verbs_sys::{__be32, IBV_WC_RECV, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, ibv_wc};

use crate::bench::{Bench, WakeCounter, announce, bounded, done, join};

pub(crate) const HELLO: u32 = 1 << 28;
const DATA: u32 = 2 << 28;
const FIN_SEEN: u32 = 5 << 28;
const FIN_LOST: u32 = 6 << 28;
const RESET: u32 = 8 << 28;
/// One, and a confirmation of the HELLO.
pub(crate) const CREDIT: u32 = 3 << 28 | 1 << 16 | 1;

/// Receives that a stream posts first, beside one for each of its blocks; its HELLO is the request
/// after them.
const SPARE: usize = 4;

/// A stream that has received its peer's HELLO, with a block of 64 bytes there and here.
///
/// The caller shares the library with the background thread first, until all else is dropped. The
/// background thread must have nothing more to do then, so the stream does not linger.
pub(crate) fn met(bench: &Bench) -> ByteStream {
    let stream = lingering(bench);
    stream.set_linger(Duration::ZERO);
    stream
}

/// The same, which lingers for as long as it does by default.
fn lingering(bench: &Bench) -> ByteStream {
    let mut stream = made(bench, 1);
    arrive(0, HELLO, &hello(64, 1));
    // The HELLO of this side has arrived there.
    done([posted(1 + SPARE).wr_id]);
    assert!(read(&mut stream, &WakeCounter::new()).is_pending());
    stream
}

/// The HELLO of the peer: the length of its blocks, and their number.
pub(crate) fn hello(block_len: u8, depth: u8) -> Vec<u8> {
    let settings = [0, 0, 0, 1, 0, 0, 0, block_len, 0, 0, 0, depth];
    [&b"VRBSTRM\n"[..], &settings].concat()
}

/// A stream with this many blocks of 64 bytes, which has sent its HELLO.
pub(crate) fn made(bench: &Bench, depth: u16) -> ByteStream {
    let receives = u32::from(depth) + u32::try_from(SPARE).unwrap();
    let channel = join(&group(bench, receives, 1));
    channel.into_stream_with(64, depth).unwrap()
}

fn group(bench: &Bench, receives: u32, max_channels: u32) -> AsyncGroup {
    let pd = bench.context.alloc_pd().unwrap();
    with(|library| library.ports[0].attr.max_msg_sz = 1 << 20);
    let builder = Channel::builder(&pd).max_recv_wr(receives);
    AsyncGroup::new(builder, max_channels, &bench.events).unwrap()
}

/// The posted request with this index.
fn posted(at: usize) -> Posted {
    with(|library| library.posted.iter().flatten().nth(at).unwrap().clone())
}

/// The immediates of all sends, without their credits.
pub(crate) fn sends() -> Vec<u32> {
    let is_send = |posted: &&Posted| posted.opcode != 0;
    with(|library| {
        let sends = library.posted.iter().flatten().filter(is_send);
        sends
            .map(|posted| u32::from_be_bytes(posted.imm_data) >> 28)
            .collect()
    })
}

/// A message arrives in the posted receive with this index.
pub(crate) fn arrive(at: usize, imm_data: u32, bytes: &[u8]) {
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

pub(crate) fn read(
    mut from: impl AsyncRead + Unpin,
    counter: &Arc<WakeCounter>,
) -> Poll<io::Result<usize>> {
    let waker = Waker::from(Arc::clone(counter));
    Pin::new(&mut from).poll_read(&mut Context::from_waker(&waker), &mut [0; 8])
}

pub(crate) fn write(
    mut to: impl AsyncWrite + Unpin,
    bytes: &[u8],
    counter: &Arc<WakeCounter>,
) -> Poll<io::Result<usize>> {
    let waker = Waker::from(Arc::clone(counter));
    Pin::new(&mut to).poll_write(&mut Context::from_waker(&waker), bytes)
}

pub(crate) fn flush(
    mut to: impl AsyncWrite + Unpin,
    counter: &Arc<WakeCounter>,
) -> Poll<io::Result<()>> {
    let waker = Waker::from(Arc::clone(counter));
    Pin::new(&mut to).poll_flush(&mut Context::from_waker(&waker))
}

fn shut_down(stream: &mut ByteStream) -> Poll<io::Result<()>> {
    Pin::new(stream).poll_close(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn shutdown_waits_for_the_answer_of_the_peer_and_returns_it() {
    let _sharing = share();
    let bench = Bench::new();
    for (answer, kind) in [
        (FIN_SEEN, None),
        (FIN_LOST, Some(io::ErrorKind::ConnectionReset)),
    ] {
        // The thread that destroys the stream before may still post for it.
        bounded(|| while is_alive("ibv_create_qp") {});
        with(|library| library.posted.clear());
        let mut stream = met(&bench);
        assert!(shut_down(&mut stream).is_pending());
        assert_eq!(sends(), [1, 4], "a HELLO and a FIN");
        // That it has arrived is no answer.
        done([posted(2 + SPARE).wr_id]);
        assert!(shut_down(&mut stream).is_pending());
        arrive(1, answer, b"");
        let Poll::Ready(result) = shut_down(&mut stream) else {
            panic!("it is not done");
        };
        assert_eq!(result.err().map(|error| error.kind()), kind);
    }
}

#[test]
fn nothing_is_sent_after_a_send_that_was_refused() {
    let _sharing = share();
    let bench = Bench::new();
    let mut stream = made(&bench, 3);
    stream.set_linger(Duration::ZERO);
    arrive(0, HELLO, &hello(64, 3));
    let task = WakeCounter::new();
    assert!(read(&mut stream, &task).is_pending());
    assert!(write(&mut stream, &[1; 64], &task).is_ready());
    with(|library| library.refuse_post = Some((0, libc::EIO, true)));
    // The first is in flight still, so nobody has asked for the outcome of the second.
    let _refused = write(&mut stream, &[2; 64], &task);
    let Poll::Ready(Err(error)) = write(&mut stream, &[3; 64], &task) else {
        panic!("bytes were accepted after a gap");
    };
    assert!(error.to_string().contains("Input/output error"), "{error}");
    assert_eq!(sends(), [1, 2], "a HELLO, and the bytes before the gap");
}

#[test]
fn shutdown_that_was_confirmed_stays_so_when_the_peer_aborts() {
    let _sharing = share();
    let bench = Bench::new();
    let mut stream = met(&bench);
    assert!(shut_down(&mut stream).is_pending());
    arrive(1, FIN_SEEN, b"");
    assert!(matches!(shut_down(&mut stream), Poll::Ready(Ok(()))));
    arrive(2, RESET, b"");
    assert!(matches!(shut_down(&mut stream), Poll::Ready(Ok(()))));
}

/// A task whose waker polls it in place; on other threads it notifies the test's thread.
struct InPlace<F> {
    future: Mutex<Option<Pin<Box<F>>>>,
    is_polled: Mutex<(bool, bool)>,
    home: ThreadId,
    elsewhere: Sender<()>,
}

impl<F: Future<Output = ()> + Send + 'static> InPlace<F> {
    fn new(future: F, elsewhere: Sender<()>) -> Arc<Self> {
        Arc::new(Self {
            future: Mutex::new(Some(Box::pin(future))),
            is_polled: Mutex::new((false, false)),
            home: thread::current().id(),
            elsewhere,
        })
    }

    fn is_done(&self) -> bool {
        self.future.lock().unwrap().is_none()
    }
}

impl<F: Future<Output = ()> + Send + 'static> Wake for InPlace<F> {
    fn wake(self: Arc<Self>) {
        if thread::current().id() != self.home {
            self.elsewhere.send(()).unwrap();
            return;
        }
        {
            let mut is_polled = self.is_polled.lock().unwrap();
            if is_polled.0 {
                is_polled.1 = true;
                return;
            }
            is_polled.0 = true;
        }
        loop {
            let waker = Waker::from(Arc::clone(&self));
            let mut cx = Context::from_waker(&waker);
            let mut future = self.future.lock().unwrap();
            if let Some(running) = &mut *future
                && running.as_mut().poll(&mut cx).is_ready()
            {
                *future = None;
            }
            drop(future);
            let mut is_polled = self.is_polled.lock().unwrap();
            if !std::mem::take(&mut is_polled.1) {
                is_polled.0 = false;
                return;
            }
        }
    }
}

/// `tokio::io::split` polls either half under a lock of its own, which is not recursive.
#[test]
fn waker_that_polls_in_place_does_not_deadlock_in_tokio_split() {
    let _sharing = share();
    let bench = Bench::new();
    let stream = met(&bench);
    bounded(move || {
        let (mut from, mut to) = tokio::io::split(stream);
        let (elsewhere, woken) = mpsc::channel();
        let writer = InPlace::new(
            async move {
                to.write_all(&[1; 3 * 64]).await.unwrap();
            },
            elsewhere.clone(),
        );
        Arc::clone(&writer).wake();
        assert!(!writer.is_done());
        let reader = InPlace::new(
            async move {
                from.read_exact(&mut [0; 1]).await.unwrap();
            },
            elsewhere,
        );
        // Its poll finds a credit, and a message of which the peer's is one.
        arrive(1, CREDIT, b"");
        let in_flight = with(|library| library.posted.iter().flatten().last().cloned());
        done([in_flight.unwrap().wr_id]);
        Arc::clone(&reader).wake();
        // It is not woken within that poll.
        woken.recv_timeout(LONG).unwrap();
        Arc::clone(&writer).wake();
        assert!(writer.is_done());
        assert!(!reader.is_done());
    });
}

/// Halves that are polled by one task wake it within its poll.
#[test]
#[cfg_attr(
    miri,
    ignore = "interpreted, it takes longer than the background thread waits"
)]
fn a_task_that_polls_both_halves_is_woken_at_once() {
    let _sharing = share();
    let bench = Bench::new();
    let mut stream = met(&bench);
    let task = WakeCounter::new();
    assert!(write(&mut stream, &[1; 64], &task).is_ready());
    assert!(write(&mut stream, &[2; 64], &task).is_ready());
    assert!(write(&mut stream, &[3; 64], &task).is_pending());
    arrive(1, CREDIT, b"");
    assert!(read(&mut stream, &task).is_pending());
    assert_eq!(task.wakes(), 1);
}

/// Prints half of a stream whenever it is woken. If the stream is locked, its state is missing.
struct Prints {
    half: OwnedWriteHalf,
    printed: Mutex<Vec<String>>,
}

impl Wake for Prints {
    fn wake(self: Arc<Self>) {
        let half = format!("{:?}", self.half);
        self.printed.lock().unwrap().push(half);
    }
}

#[test]
fn stream_wakes_tasks_of_other_channels_at_once_and_without_its_lock() {
    let _sharing = share();
    let bench = Bench::new();
    let group = group(&bench, 5, 2);
    let stream = join(&group).into_stream_with(64, 1).unwrap();
    stream.set_linger(Duration::ZERO);
    let (mut from, half) = stream.into_split();
    let other = join(&group);
    let buffer = group.pd().reg_mr(vec![0_u8; 8]).unwrap();
    let mut receive = other.receive(buffer);
    let task = Arc::new(Prints {
        half,
        printed: Mutex::default(),
    });
    let waker = Waker::from(Arc::clone(&task));
    let polled = Pin::new(&mut receive).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    // A poll of the stream finds the completion.
    done([posted(2 + SPARE).wr_id]);
    let reader = WakeCounter::new();
    assert!(read(&mut from, &reader).is_pending());
    let printed = task.printed.lock().unwrap();
    let [printed] = &printed[..] else {
        panic!("it was not woken once: {printed:?}");
    };
    assert!(
        printed.contains("channel: "),
        "the stream is locked: {printed}"
    );
    assert_eq!(reader.wakes(), 0);
}

/// Waits until the stream's objects are destroyed. Returns the thread that destroyed its queue pair.
pub(crate) fn destroyed(what: impl FnOnce()) -> ThreadId {
    let (destroys, destroyed) = mpsc::channel();
    let destroys = Mutex::new(destroys);
    with(|library| {
        library.calls.clear();
        library.before = Some(Arc::new(move |verb, _| {
            if verb == "ibv_destroy_qp" {
                let destroys = destroys.lock().unwrap();
                destroys.send(thread::current().id()).ok();
            }
        }));
    });
    what();
    let ended_by = destroyed.recv_timeout(LONG).unwrap();
    // Its protection domain goes last.
    let start = Instant::now();
    while !with(|library| library.calls.contains(&"ibv_dealloc_pd")) {
        assert!(start.elapsed() < LONG, "something of it is left");
        thread::sleep(Duration::from_millis(1));
    }
    ended_by
}

/// Longer than any of these tests takes.
pub(crate) const LONG: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 20 });

/// Nothing completes: the peer posts no receive.
#[test]
fn dropped_stream_lingers_for_the_set_time() {
    let _sharing = share();
    let bench = Bench::new();
    let stream = made(&bench, 1);
    stream.set_linger(Duration::from_millis(50));
    let ended_by = destroyed(|| drop(stream));
    assert_ne!(ended_by, thread::current().id());
    let stream = made(&bench, 1);
    stream.set_linger(Duration::ZERO);
    assert_ne!(destroyed(|| drop(stream)), thread::current().id());
}

#[test]
fn abort_destroys_the_stream_on_a_helper_thread() {
    let _sharing = share();
    let bench = Bench::new();
    let stream = made(&bench, 1);
    assert_ne!(destroyed(|| stream.abort()), thread::current().id());
    assert_eq!(sends(), [1, 8], "a HELLO and a RESET");
}

/// The notifier's waker, which finds the last completion, does not end the stream in place.
#[test]
fn lingering_stream_is_driven_by_the_background_thread() {
    let _sharing = share();
    let bench = Bench::new();
    let mut stream = lingering(&bench);
    assert!(write(&mut stream, b"still sent", &WakeCounter::new()).is_ready());
    drop(stream);
    // The data is on its way, with the end behind it.
    assert_eq!(sends(), [1, 2, 7]);
    let ids = with(|library| {
        let sends = library.posted.iter().flatten();
        let sends = sends.filter(|posted| posted.opcode != 0);
        sends.map(|posted| posted.wr_id).collect::<Vec<_>>()
    });
    let ended_by = destroyed(|| {
        done(ids[1..].iter().copied());
        announce(&bench);
    });
    assert_ne!(ended_by, thread::current().id());
}

#[test]
fn task_whose_stream_is_always_ready_yields() {
    let _sharing = share();
    let bench = Bench::new();
    let mut stream = met(&bench);
    let task = WakeCounter::new();
    let turns =
        (0..if cfg!(miri) { 300 } else { 1000 }).filter(|_| flush(&mut stream, &task).is_pending());
    let turns = turns.count();
    assert!(turns > 3, "{turns}");
    assert_eq!(task.wakes(), turns, "it is woken at once");
    // The data that have arrived, one byte at a time.
    arrive(1, DATA, &[7; 64]);
    let mut left = 64;
    let mut turns = 0;
    while left > 0 {
        let waker = Waker::from(Arc::clone(&task));
        let mut cx = Context::from_waker(&waker);
        match AsyncRead::poll_read(Pin::new(&mut stream), &mut cx, &mut [0]) {
            Poll::Ready(read) => left -= read.unwrap(),
            Poll::Pending => turns += 1,
        }
    }
    assert!(turns > 0);
}
