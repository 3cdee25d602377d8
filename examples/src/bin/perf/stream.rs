//! verbs-async: the byte stream, as code that was written for TCP uses it. The loops are those of TCP, too.

use std::cell::Cell;
use std::time::Instant;

use examples::{Common, Failure, Frames, check, memory};
use futures_util::future::try_join_all;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, join};
use tokio::runtime::Runtime;
use verbs_async::verbs_channel::PreparedChannel;
use verbs_async::{AsyncGroup, CqEvents};
use verbs_core::RemoteMemoryRegion;

use crate::channel::{Offer, exchange};
use crate::figures::{Figures, Latency};
use crate::futures::{Theirs, with_peer};
use crate::h2;
use crate::memory::pattern;
use crate::plan::Plan;
use crate::run::{Done, meet};

/// A stream's two halves, with what they have done.
struct Ends<R, W> {
    conn: usize,
    read: R,
    write: W,
    posted: Cell<u64>,
}

/// Measures on this side.
pub(crate) fn measure(common: &Common, plan: &Plan, frames: &Frames) -> Result<Figures, Failure> {
    let context = examples::open(common)?;
    let pd = context.alloc_pd()?;
    let runtime = examples::runtime(1)?;
    let _entered = runtime.enter();
    let events = CqEvents::create_tokio(&context)?;
    // A stream has buffers of its own size.
    let builder = common.channels(&pd);
    let group = AsyncGroup::new(builder, plan.qps, &events)?;
    let mut prepared = Vec::new();
    for _ in 0..plan.qps {
        prepared.push(group.prepare()?);
    }
    let ours = Offer {
        ends: prepared.iter().map(PreparedChannel::endpoint).collect(),
        memory: RemoteMemoryRegion::new(0, 0, 0)?,
        port: None,
    };
    let theirs = exchange(frames, &ours)?;
    let mut streams = Vec::new();
    for (prepared, theirs) in prepared.into_iter().zip(&theirs.ends) {
        let stream = group.join(prepared.handshake(theirs)?)?.into_stream()?;
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
    if plan.h2 {
        let streams = streams.into_iter();
        let streams = streams.map(|(read, write)| join(read, write)).collect();
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
        frames.send(&Done { posted })?;
        let _theirs = theirs.wait_for(Option::is_some).await?;
        return Ok(figures);
    }
    let (mut readers, mut writers) = (Vec::new(), Vec::new());
    for each in ends {
        readers.push(read(
            &mut each.read,
            each.conn,
            plan,
            theirs.clone(),
            progress,
        ));
        writers.push((&mut each.write, each.conn, &each.posted));
    }
    let send = async {
        let figures = match plan.posts(is_client) {
            true => bandwidth(&mut writers, plan, progress).await?,
            false => Figures::default(),
        };
        let posted = writers.iter().map(|(_, _, posted)| posted.get()).collect();
        frames.send(&Done { posted }).map(|()| figures)
    };
    let (figures, _all) = tokio::try_join!(send, try_join_all(readers))?;
    Ok(figures)
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

/// Each stream with as many bytes as it takes. The time is that until the last were written.
async fn bandwidth<W: AsyncWrite + Unpin>(
    writers: &mut [(&mut W, usize, &Cell<u64>)],
    plan: &Plan,
    progress: &Cell<u64>,
) -> Result<Figures, Failure> {
    let before = plan.warm_up() * u64::from(plan.qps);
    let _all = try_join_all(writers.iter_mut().map(|(write, conn, posted)| {
        window(*write, *conn, posted, plan, plan.warm_up(), None, progress)
    }))
    .await?;
    let start = Instant::now();
    let (limit, deadline) = match plan.duration() {
        Some(duration) => (u64::MAX, Some(start + duration)),
        None => (plan.warm_up() + plan.iters().unwrap_or(0), None),
    };
    let _all = try_join_all(writers.iter_mut().map(|(write, conn, posted)| {
        window(*write, *conn, posted, plan, limit, deadline, progress)
    }))
    .await?;
    let posted: u64 = writers.iter().map(|(_, _, posted)| posted.get()).sum();
    Ok(Figures::bandwidth(posted - before, start.elapsed()))
}

async fn window<W: AsyncWrite + Unpin>(
    write: &mut W,
    conn: usize,
    posted: &Cell<u64>,
    plan: &Plan,
    limit: u64,
    deadline: Option<Instant>,
    progress: &Cell<u64>,
) -> Result<(), Failure> {
    let mut bytes = memory(0, plan.size())?;
    while posted.get() < limit && deadline.is_none_or(|deadline| Instant::now() < deadline) {
        fill(plan, conn, posted.get(), &mut bytes);
        write.write_all(&bytes).await?;
        posted.set(posted.get() + 1);
        progress.set(progress.get() + 1);
    }
    Ok(write.flush().await?)
}

/// Reads until all that the peer has written is here.
async fn read<R: AsyncRead + Unpin>(
    read: &mut R,
    conn: usize,
    plan: &Plan,
    mut theirs: Theirs,
    progress: &Cell<u64>,
) -> Result<(), Failure> {
    let (mut bytes, mut number) = (memory(0, plan.size())?, 0);
    loop {
        if let Some(posted) = &*theirs.borrow()
            && posted.get(conn).is_none_or(|posted| number >= *posted)
        {
            return Ok(());
        }
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let has_ended = tokio::select! {
                biased;
                more = read.read(rest) => {
                    let more = more?;
                    filled += more;
                    more == 0
                }
                // Afterwards nothing changes.
                _done = theirs.changed(), if filled == 0 && theirs.borrow().is_none() => break,
            };
            if has_ended {
                let posted = theirs.wait_for(Option::is_some).await?;
                let posted = posted.iter().flatten().nth(conn).copied();
                return match posted == Some(number) && filled == 0 {
                    true => Ok(()),
                    false => Err(Failure::new("the peer has closed the stream")),
                };
            }
        }
        if filled == bytes.len() {
            verify(plan, conn, number, &bytes)?;
            progress.set(progress.get() + 1);
            number += 1;
        }
    }
}

fn fill(plan: &Plan, conn: usize, number: u64, bytes: &mut [u8]) {
    if plan.check {
        bytes.copy_from_slice(&pattern(conn, number).bytes(0, bytes.len()));
    }
}

fn verify(plan: &Plan, conn: usize, number: u64, bytes: &[u8]) -> Result<(), Failure> {
    if plan.check {
        check(0, bytes, &pattern(conn, number).bytes(0, bytes.len()))?;
    }
    Ok(())
}
