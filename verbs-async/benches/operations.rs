//! The async loops, for `cargo xtask bench` to count instructions in: the work of their twins in
//! `verbs-core`'s benches, on a stand-in for libibverbs that completes every request at once.
//!
//! `operations OPERATION COUNT` runs one of them, half of it in one function, and half in another with
//! another error type: what is inlined only as long as it has a single caller is not counted as cheap.
//! Each operation is done when it is first polled: what is counted is what async costs, not what a
//! runtime does.
#![expect(clippy::print_stderr, reason = "a program: it says why it failed")]

use std::error::Error;
use std::fmt::Display;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use verbs_async::verbs_channel::verbs_core;
use verbs_async::verbs_channel::verbs_core::completion::CompletionChannel;
use verbs_async::verbs_channel::{Channel, Outgoing, OwnedBuffer, OwnedRequest, TransportError};
use verbs_async::{AsyncChannel, AsyncGroup, CqEvents, CqNotifier};

const MESSAGE: usize = 64;
const BATCH: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(operation), Some(count)) = (args.next(), args.next()) else {
        // `cargo bench` itself comes here.
        eprintln!("this is run by `cargo xtask bench`");
        return Ok(());
    };
    let pd = verbs_core::Context::first_active()?.alloc_pd()?;
    let events = CqEvents::new(CompletionChannel::create(pd.context())?, Never)?;
    // No peers are watched: the thread that would do that counts for nothing here.
    let builder = Channel::builder(&pd).peer_timeout(None);
    let group = AsyncGroup::new(builder, 2, &events)?;
    let (channel, _peer) = group.loopback()?;
    let mut buffers = Vec::new();
    for _ in 0..BATCH {
        buffers.push(OwnedBuffer::from(pd.reg_mr(vec![0; MESSAGE])?));
    }
    let count: u64 = count.parse()?;
    let half = count / 2;
    /// Runs a loop with each of two error types.
    macro_rules! both {
        ($operation:ident($things:expr)) => {{
            $operation::<verbs_async::Error>(&channel, $things, half)?;
            $operation::<Box<dyn Error>>(&channel, $things, half)?;
        }};
    }
    match operation.as_str() {
        "async_send1" => both!(send1(&mut buffers)),
        "async_sep16" => both!(sep16(&mut buffers)),
        "async_batch16" => {
            let works = buffers.into_iter().map(Outgoing::send);
            let mut works: Vec<OwnedRequest> = works.map(Into::into).collect();
            both!(batch16(&mut works));
        }
        other => fail(&format!("there is no operation `{other}`")),
    }
    // Nothing is dropped: queue pairs are destroyed on helper threads, and what these allocate before the
    // process ends differs from run to run.
    process::exit(0);
}

#[inline(never)]
fn send1<E: From<TransportError>>(
    channel: &AsyncChannel,
    buffers: &mut Vec<OwnedBuffer>,
    count: u64,
) -> Result<(), E> {
    let mut buffer = buffers.pop().unwrap_or_default();
    for _ in 0..count {
        let (sent, back) = at_once(&mut channel.send(buffer));
        sent?;
        buffer = back;
    }
    buffers.push(buffer);
    Ok(())
}

#[inline(never)]
fn sep16<E: From<TransportError>>(
    channel: &AsyncChannel,
    buffers: &mut Vec<OwnedBuffer>,
    count: u64,
) -> Result<(), E> {
    let mut operations = Vec::with_capacity(BATCH);
    for _ in 0..count {
        operations.extend(buffers.drain(..).map(|buffer| channel.send(buffer)));
        for mut operation in operations.drain(..) {
            let (sent, back) = at_once(&mut operation);
            sent?;
            buffers.push(back);
        }
    }
    Ok(())
}

#[inline(never)]
fn batch16<E: From<TransportError>>(
    channel: &AsyncChannel,
    works: &mut Vec<OwnedRequest>,
    count: u64,
) -> Result<(), E> {
    for _ in 0..count {
        let (sent, back) = at_once(&mut channel.batch(std::mem::take(works)));
        sent?;
        *works = back;
    }
    Ok(())
}

/// The outcome of an operation that is done when it is polled, or after others had a turn.
#[inline(always)]
fn at_once<F: Future + Unpin>(operation: &mut F) -> F::Output {
    loop {
        match Pin::new(&mut *operation).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => turn(),
        }
    }
}

/// Others have a turn: that is rare.
#[cold]
#[inline(never)]
fn turn() {
    static TURNS: AtomicU64 = AtomicU64::new(0);
    if TURNS.fetch_add(1, Ordering::Relaxed) > 1_000_000 {
        fail(&"operations are not done at once");
    }
}

/// Nothing is announced here.
struct Never;

impl CqNotifier for Never {
    fn poll_readable(&self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn another(&self, _descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
        Ok(Box::new(Self))
    }
}

#[cold]
#[inline(never)]
fn fail(why: &dyn Display) -> ! {
    eprintln!("operations: {why}");
    process::exit(1);
}
