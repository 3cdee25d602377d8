//! verbs-async: the byte stream, as code that was written for TCP uses it. The loops are those of TCP, too.

use std::cell::Cell;
use std::time::Instant;

use futures_util::future::try_join_all;
use programs::{Common, Failure, Frames, memory};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use verbs_async::{AsyncGroup, CqEvents};

use crate::connect;
use crate::figures::{Figures, Latency};
use crate::futures::{Theirs, with_peer};
#[cfg(feature = "programs")]
use crate::h2;
use crate::memory::{contents, is_right};
use crate::messages;
use crate::plan::Plan;
use crate::run::{Done, meet};

/// A stream's two halves, with what they have done.
struct Ends<R, W> {
    conn: usize,
    read: R,
    write: W,
    posted: Cell<u64>,
    received: Cell<u64>,
}

/// Measures on this side.
pub(crate) fn measure(common: &Common, plan: &Plan, frames: &Frames) -> Result<Figures, Failure> {
    let context = programs::open(common)?;
    let pd = context.alloc_pd()?;
    let runtime = programs::runtime(1)?;
    let _entered = runtime.enter();
    let events = CqEvents::create_tokio(&context)?;
    // A stream has buffers of its own size.
    let builder = common.channels(&pd);
    let group = AsyncGroup::new(builder, plan.qps, &events)?;
    let (members, _none) = connect::channels(|| group.prepare(), None, (common, plan, frames))?;
    let mut streams = Vec::new();
    for member in members {
        let stream = group.join(member)?.into_stream()?;
        streams.push(stream.into_split());
    }
    run(streams, &runtime, common, plan, frames)
}

/// Measures on this side, over streams that are connected.
pub(crate) fn run<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    streams: Vec<(R, W)>,
    runtime: &Runtime,
    common: &Common,
    plan: &Plan,
    frames: &Frames,
) -> Result<Figures, Failure> {
    meet(frames)?;
    let progress = Cell::new(0);
    let is_client = common.host.is_some();
    #[cfg(feature = "programs")]
    if plan.h2 {
        let streams = streams.into_iter();
        let streams = streams
            .map(|(read, write)| tokio::io::join(read, write))
            .collect();
        return with_peer(frames, runtime, Some(&progress), async |theirs| {
            h2::side(streams, plan, frames, is_client, theirs, &progress).await
        });
    }
    let ends = streams.into_iter().enumerate();
    let ends = ends.map(|(conn, (read, write))| Ends {
        conn,
        read,
        write,
        posted: Cell::new(0),
        received: Cell::new(0),
    });
    let mut ends: Vec<_> = ends.collect();
    with_peer(frames, runtime, Some(&progress), async |theirs| {
        let figures = side(&mut ends, plan, frames, is_client, theirs, &progress).await?;
        // Waits until the peer has taken everything.
        let ends = ends.iter_mut().map(|ends| ends.write.shutdown());
        let _all = try_join_all(ends).await?;
        Ok(figures)
    })
}

async fn side<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    ends: &mut [Ends<R, W>],
    plan: &Plan,
    frames: &Frames,
    is_client: bool,
    mut theirs: Theirs,
    progress: &Cell<u64>,
) -> Result<Figures, Failure> {
    if let (false, [one]) = (plan.bandwidth, &mut *ends) {
        let mut figures = Figures::default();
        if is_client {
            figures = one.latency(plan, progress).await?;
        } else {
            one.answer(plan, &theirs, progress).await?;
        }
        let posted = vec![one.posted.get()];
        messages::send(frames, &Done { posted })?;
        let _theirs = theirs.wait_for(Option::is_some).await?;
        return Ok(figures);
    }
    let figures = bandwidth(ends, plan, is_client, progress).await?;
    let posted = ends.iter().map(|each| each.posted.get()).collect();
    messages::send(frames, &Done { posted })?;
    let _theirs = theirs.wait_for(Option::is_some).await?;
    Ok(figures)
}

/// Writes to each stream all the bytes it takes. The time ends when the peer has confirmed that it
/// has read the last of them: written bytes may still be on their way.
async fn bandwidth<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    ends: &mut [Ends<R, W>],
    plan: &Plan,
    is_client: bool,
    progress: &Cell<u64>,
) -> Result<Figures, Failure> {
    if plan.warm_up() > 0 {
        run_all(ends, plan, is_client, (plan.warm_up(), None), progress).await?;
    }
    let posted = |ends: &[Ends<R, W>]| ends.iter().map(|each| each.posted.get()).sum::<u64>();
    let (before, start) = (posted(ends), Instant::now());
    let until = match plan.duration() {
        Some(duration) => (u64::MAX, Some(start + duration)),
        None => (plan.warm_up() + plan.iters().unwrap_or(0), None),
    };
    run_all(ends, plan, is_client, until, progress).await?;
    Ok(match plan.posts(is_client) {
        true => Figures::bandwidth(posted(ends) - before, start.elapsed()),
        false => Figures::default(),
    })
}

/// Writes and reads on each stream until a number of messages, or a time.
async fn run_all<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    ends: &mut [Ends<R, W>],
    plan: &Plan,
    is_client: bool,
    until: (u64, Option<Instant>),
    progress: &Cell<u64>,
) -> Result<(), Failure> {
    let each = ends.iter_mut();
    let all = each.map(|each| each.window(plan, is_client, until, progress));
    try_join_all(all).await.map(drop)
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Ends<R, W> {
    /// One message after the other, each answered by the peer.
    async fn latency(&mut self, plan: &Plan, progress: &Cell<u64>) -> Result<Figures, Failure> {
        let (mut bytes, mut latency) = (memory(0, plan.size())?, Latency::new(plan)?);
        while let Some(number) = latency.next() {
            fill(plan, self.conn, number, &mut bytes);
            let begun = Instant::now();
            self.write.write_all(&bytes).await?;
            self.write.flush().await?;
            let _len = self.read.read_exact(&mut bytes).await?;
            latency.record(begun);
            verify(plan, self.conn, number, &bytes)?;
            progress.set(progress.get() + 1);
            self.posted.set(number + 1);
        }
        Ok(latency.figures(2))
    }

    /// Writes until a number of messages or a time, if this side writes, and reads all that the peer writes.
    /// Each side confirms with one byte that it has read everything.
    async fn window(
        &mut self,
        plan: &Plan,
        is_client: bool,
        until: (u64, Option<Instant>),
        progress: &Cell<u64>,
    ) -> Result<(), Failure> {
        let Self {
            conn,
            read,
            write,
            posted,
            received,
        } = self;
        let writing = async {
            match plan.posts(is_client) {
                true => write_all(write, plan, (*conn, posted), until, progress).await,
                false => Ok(()),
            }
        };
        let reading = async {
            match plan.posts(!is_client) {
                true => read_all(read, plan, (*conn, received), progress).await,
                false => Ok(()),
            }
        };
        let _both = tokio::try_join!(writing, reading)?;
        write.write_all(&[LAST]).await?;
        write.flush().await?;
        let _len = read.read_exact(&mut [0]).await?;
        Ok(())
    }

    /// Answers each message until the peer is done.
    async fn answer(
        &mut self,
        plan: &Plan,
        theirs: &Theirs,
        progress: &Cell<u64>,
    ) -> Result<(), Failure> {
        let (mut bytes, mut theirs) = (memory(0, plan.size())?, theirs.clone());
        loop {
            let number = self.posted.get();
            tokio::select! {
                biased;
                // The peer is done between two messages.
                read = self.read.read_exact(&mut bytes) => drop(read?),
                _done = theirs.wait_for(Option::is_some) => return Ok(()),
            }
            verify(plan, self.conn, number, &bytes)?;
            self.write.write_all(&bytes).await?;
            self.write.flush().await?;
            self.posted.set(number + 1);
            progress.set(progress.get() + 1);
        }
    }
}

/// The last byte of a message in bulk: whether more follow.
const MORE: u8 = 0;
const LAST: u8 = 1;

/// Writes messages up to their number or until the time is over, and at least one.
async fn write_all<W: AsyncWrite + Unpin>(
    write: &mut W,
    plan: &Plan,
    (conn, posted): (usize, &Cell<u64>),
    (limit, deadline): (u64, Option<Instant>),
    progress: &Cell<u64>,
) -> Result<(), Failure> {
    let mut bytes = memory(0, plan.size())?;
    let mut is_last = false;
    while !is_last {
        fill(plan, conn, posted.get(), &mut bytes);
        let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        is_last = is_over || posted.get() + 1 >= limit;
        if let Some(last) = bytes.last_mut() {
            *last = if is_last { LAST } else { MORE };
        }
        write.write_all(&bytes).await?;
        posted.set(posted.get() + 1);
        progress.set(progress.get() + 1);
    }
    Ok(write.flush().await?)
}

/// Reads messages until the last.
async fn read_all<R: AsyncRead + Unpin>(
    read: &mut R,
    plan: &Plan,
    (conn, received): (usize, &Cell<u64>),
    progress: &Cell<u64>,
) -> Result<(), Failure> {
    let mut bytes = memory(0, plan.size())?;
    loop {
        let _len = read.read_exact(&mut bytes).await?;
        let Some((last, others)) = bytes.split_last() else {
            return Err(Failure::new("a message has at least one byte"));
        };
        verify(plan, conn, received.get(), others)?;
        received.set(received.get() + 1);
        progress.set(progress.get() + 1);
        match *last {
            MORE => {}
            LAST => return Ok(()),
            other => return Err(Failure::new(format!("a message ends in {other:#04x}"))),
        }
    }
}

fn fill(plan: &Plan, conn: usize, number: u64, bytes: &mut [u8]) {
    if plan.check {
        bytes.copy_from_slice(&contents(plan, conn, number));
    }
}

fn verify(plan: &Plan, conn: usize, number: u64, bytes: &[u8]) -> Result<(), Failure> {
    match plan.check {
        true => is_right(conn, number, bytes),
        false => Ok(()),
    }
}
