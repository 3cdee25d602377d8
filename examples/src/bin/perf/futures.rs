//! verbs-async: awaited operations on a runtime of one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::pending;
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use examples::{Common, Failure, Frames};
use futures_util::future::try_join_all;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use verbs_async::verbs_channel::PreparedChannel;
use verbs_async::{AsyncChannel, AsyncGroup, CqEvents, Operation};

use crate::channel::{Buffers, Offer, builder, exchange};
use crate::figures::{Figures, Latency, Times};
use crate::memory::Memory;
use crate::plan::Plan;
use crate::run::{Done, meet};

/// One connection.
struct Connection<'m> {
    conn: usize,
    channel: AsyncChannel,
    buffers: &'m Buffers<'m>,
    plan: &'m Plan,
    // How many operations have completed, of all connections.
    progress: &'m Cell<u64>,
    posted: Cell<u64>,
    received: Cell<u64>,
}

/// As long as a peer may measure.
const FOREVER: Duration = Duration::from_secs(2 * 86_400);

/// What the peer has posted, once it is done.
pub(crate) type Theirs = watch::Receiver<Option<Vec<u64>>>;

/// Runs a side on a runtime, until it has ended, the peer is gone, or nothing has happened for too long.
pub(crate) fn with_peer<T>(
    frames: &Frames,
    runtime: &Runtime,
    progress: Option<&Cell<u64>>,
    side: impl AsyncFnOnce(Theirs) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (sender, received) = oneshot::channel();
    thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            // It has ended if it does not want to know.
            drop(sender.send(frames.receive_within::<Done>(FOREVER)));
        });
        let ended = runtime.block_on(async {
            let (known, theirs) = watch::channel(None);
            let forward = async {
                let done = received
                    .await
                    .map_err(|_gone| Failure::new("the peer is gone"))??;
                known.send_replace(Some(done.posted));
                pending::<Result<T, Failure>>().await
            };
            let stall = async {
                let Some(progress) = progress else {
                    return pending().await;
                };
                let limit = frames.peer().limit();
                loop {
                    let before = progress.get();
                    sleep(limit).await;
                    if progress.get() == before {
                        let limit = limit.as_secs();
                        return Err(Failure::new(format!(
                            "nothing has happened for {limit} s (--timeout waits longer)"
                        )));
                    }
                }
            };
            tokio::select! {
                biased;
                ended = side(theirs) => ended,
                gone = forward => gone,
                stalled = stall => stalled,
            }
        });
        if ended.is_err() {
            // The thread ends; what went wrong can still be sent.
            drop(frames.peer().stream().shutdown(Shutdown::Read));
        }
        drop(receiving.join());
        ended
    })
}

/// Measures on this side.
pub(crate) fn measure(common: &Common, plan: &Plan, frames: &Frames) -> Result<Figures, Failure> {
    let context = examples::open(common)?;
    let pd = context.alloc_pd()?;
    let memory = Memory::new(&pd, plan, 0)?;
    let mut buffers = Buffers::new(&memory, plan)?;
    let runtime = examples::runtime(1)?;
    let events = {
        let _entered = runtime.enter();
        CqEvents::create_tokio(&context)?
    };
    let group = AsyncGroup::new(builder(&pd, plan, common), plan.qps, &events)?;
    let mut prepared = Vec::new();
    for conn in 0..plan.qps() {
        let mut channel = group.prepare()?;
        // Receives are there before the peer is told where to send.
        if plan.op.is_received() {
            for number in 0..plan.receives().into() {
                channel.start_receive(buffers.receive(conn, number)?)?;
            }
        }
        prepared.push(channel);
    }
    let ours = Offer {
        ends: prepared.iter().map(PreparedChannel::endpoint).collect(),
        memory: memory.region.remote(),
        port: None,
    };
    let theirs = exchange(frames, &ours)?;
    buffers.theirs = Some(theirs.memory);
    let progress = Cell::new(0);
    let mut connections = Vec::new();
    for (conn, (prepared, theirs)) in prepared.into_iter().zip(&theirs.ends).enumerate() {
        connections.push(Connection {
            conn,
            channel: group.join(prepared.handshake(theirs)?)?,
            buffers: &buffers,
            plan,
            progress: &progress,
            posted: Cell::new(0),
            received: Cell::new(0),
        });
    }
    meet(frames)?;
    let is_client = common.host.is_some();
    let is_active = plan.posts(is_client) || plan.op.is_received();
    let watched = is_active.then_some(&progress);
    let figures = with_peer(frames, &runtime, watched, async |theirs| {
        side(&connections, plan, frames, is_client, theirs).await
    })?;
    meet(frames)?;
    for connection in &connections {
        runtime.block_on(connection.channel.destroy())?;
    }
    Ok(figures)
}

async fn side(
    connections: &[Connection<'_>],
    plan: &Plan,
    frames: &Frames,
    is_client: bool,
    mut theirs: Theirs,
) -> Result<Figures, Failure> {
    let receives = |connection: &Connection<'_>| -> VecDeque<_> {
        connection.channel.prepared_receives().into()
    };
    let done = || {
        frames.send(&Done {
            posted: connections.iter().map(|each| each.posted.get()).collect(),
        })
    };
    let mut figures = Figures::default();
    match (plan.bandwidth, connections) {
        (false, [one]) if is_client => {
            figures = one.latency(&mut receives(one)).await?;
            done()?;
        }
        (false, [one]) if !plan.op.is_one_sided() => {
            one.answer(&mut receives(one), &theirs).await?;
            done()?;
        }
        _ => {
            let send = async {
                let mut figures = Figures::default();
                if plan.posts(is_client) {
                    figures = bandwidth(connections, plan).await?;
                }
                done().map(|()| figures)
            };
            let receive = try_join_all(connections.iter().map(|each| {
                let theirs = theirs.clone();
                async move { each.receive(&mut receives(each), theirs).await }
            }));
            (figures, _) = tokio::try_join!(send, receive)?;
        }
    }
    let their_end = theirs.wait_for(Option::is_some).await?;
    for (each, posted) in connections.iter().zip(their_end.iter().flatten()) {
        each.buffers.memory.verify_left(each.conn, *posted)?;
    }
    Ok(figures)
}

/// Each connection with as many operations in flight as it may have.
async fn bandwidth(connections: &[Connection<'_>], plan: &Plan) -> Result<Figures, Failure> {
    let times = plan.times_each().then(Times::new).transpose()?;
    let times = times.map(RefCell::new);
    let windows = |limit: u64, deadline: Option<Instant>, times| {
        try_join_all(
            connections
                .iter()
                .map(move |each| each.window(limit, deadline, times)),
        )
    };
    let posted = || {
        connections
            .iter()
            .map(|each| each.posted.get())
            .sum::<u64>()
    };
    let _all = windows(plan.warm_up(), None, None).await?;
    let (before, start) = (posted(), Instant::now());
    let _all = match plan.duration() {
        Some(duration) => windows(u64::MAX, Some(start + duration), times.as_ref()).await?,
        None => {
            let limit = plan.warm_up() + plan.iters().unwrap_or(0);
            windows(limit, None, times.as_ref()).await?
        }
    };
    let figures = Figures::bandwidth(posted() - before, start.elapsed());
    Ok(figures.timed(times.map(RefCell::into_inner)))
}

impl Connection<'_> {
    /// Starts the next operation.
    fn start(&self) -> Result<Operation, Failure> {
        let number = self.posted.get();
        self.posted.set(number + 1);
        Ok(self.channel.run(self.buffers.request(self.conn, number)?))
    }

    /// Waits for an operation of this number.
    async fn sent(&self, operation: Operation, number: u64) -> Result<(), Failure> {
        let (result, _buffer) = operation.await;
        let _success = result?;
        self.progress.set(self.progress.get() + 1);
        if self.plan.op.is_one_sided() {
            self.buffers.memory.verify_fetched(self.conn, number)?;
        }
        Ok(())
    }

    /// Waits for the next message, and posts its receive again.
    async fn message(&self, receives: &mut VecDeque<Operation>) -> Result<(), Failure> {
        let Some(receive) = receives.front_mut() else {
            return pending().await;
        };
        let (result, buffer) = receive.await;
        let _received = receives.pop_front();
        let _success = result?;
        let (buffer, number) = self.buffers.number(self.conn, buffer);
        let message = self.received.get();
        let memory = self.buffers.memory;
        memory.verify_received(self.conn, message, (self.conn, number))?;
        self.received.set(message + 1);
        self.progress.set(self.progress.get() + 1);
        receives.push_back(self.channel.receive(buffer));
        Ok(())
    }

    /// One operation after the other, each answered by the peer unless it takes no part.
    async fn latency(&self, receives: &mut VecDeque<Operation>) -> Result<Figures, Failure> {
        let mut latency = Latency::new(self.plan)?;
        while let Some(number) = latency.next() {
            let begun = Instant::now();
            let operation = self.start()?;
            if !self.plan.op.is_one_sided() {
                self.message(receives).await?;
            }
            self.sent(operation, number).await?;
            latency.record(begun);
        }
        let ways = if self.plan.op.is_one_sided() { 1 } else { 2 };
        Ok(latency.figures(ways))
    }

    /// Answers each message until the peer is done.
    async fn answer(
        &self,
        receives: &mut VecDeque<Operation>,
        theirs: &Theirs,
    ) -> Result<(), Failure> {
        let mut theirs = theirs.clone();
        loop {
            tokio::select! {
                biased;
                message = self.message(receives) => message?,
                _done = theirs.wait_for(Option::is_some) => return Ok(()),
            }
            let number = self.posted.get();
            self.sent(self.start()?, number).await?;
        }
    }

    /// Posts until so many were posted or until the deadline, and waits for all. Records how long each was in
    /// flight, if that is wanted.
    async fn window(
        &self,
        limit: u64,
        deadline: Option<Instant>,
        times: Option<&RefCell<Times>>,
    ) -> Result<(), Failure> {
        let mut in_flight = VecDeque::with_capacity(self.plan.depth());
        let mut number = self.posted.get();
        loop {
            let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            while !is_over && self.posted.get() < limit && in_flight.len() < self.plan.depth() {
                let begun = times.map(|_| Instant::now());
                in_flight.push_back((self.start()?, begun));
            }
            let Some((oldest, begun)) = in_flight.pop_front() else {
                return Ok(());
            };
            self.sent(oldest, number).await?;
            if let (Some(times), Some(begun)) = (times, begun) {
                times.borrow_mut().record(begun.elapsed());
            }
            number += 1;
        }
    }

    /// Takes messages until all that the peer has posted are here.
    async fn receive(
        &self,
        receives: &mut VecDeque<Operation>,
        mut theirs: Theirs,
    ) -> Result<(), Failure> {
        loop {
            if let Some(posted) = &*theirs.borrow() {
                let posted = posted.get(self.conn).copied().unwrap_or(0);
                if !self.plan.op.is_received() || self.received.get() >= posted {
                    return Ok(());
                }
            }
            tokio::select! {
                biased;
                message = self.message(receives) => message?,
                // Afterwards nothing changes.
                _done = theirs.changed(), if theirs.borrow().is_none() => {}
            }
        }
    }
}
