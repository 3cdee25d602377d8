//! verbs-async: awaited operations on a runtime of one thread.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use programs::{Common, Failure, Frames};
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use verbs_async::verbs_channel::ChannelId;
use verbs_async::{AsyncChannel, AsyncDatagrams, AsyncGroup, CqEvents, Operation, SharedMessages};
use verbs_core::error::Rejected;
use verbs_core::path::DatagramEndpoint;

use crate::buffers::{Buffers, shared_receives};
use crate::channel::builder;
use crate::connect;
use crate::datagrams;
use crate::figures::{Figures, Latency, Times};
use crate::memory::{Arrived, Memory};
use crate::messages;
use crate::plan::Plan;
use crate::run::{Done, LATE, meet};

/// One connection.
struct Connection<'m> {
    conn: usize,
    sender: Sender,
    buffers: &'m Buffers<'m>,
    plan: &'m Plan,
    // How many operations have completed, of all connections.
    progress: &'m Cell<u64>,
    posted: Cell<u64>,
    received: Cell<u64>,
}

/// The sending half of a connection.
enum Sender {
    Channel(AsyncChannel),
    Datagrams(AsyncDatagrams, DatagramEndpoint),
}

/// Where the messages of some connections arrive.
struct Inbox<'c> {
    connections: &'c [Connection<'c>],
    source: Source,
}

enum Source {
    /// In receives of one channel.
    Receives(VecDeque<Operation>),
    /// In receives that all channels share, each with its number.
    Shared(SharedMessages, HashMap<ChannelId, usize>),
    /// At one endpoint.
    Datagrams,
}

/// As long as a peer may measure.
const FOREVER: Duration = Duration::from_secs(2 * 86_400);

/// The operations that the peer has posted, once it is done.
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
            drop(sender.send(messages::receive_within::<Done>(frames, FOREVER)));
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
    let context = programs::open(common)?;
    let pd = context.alloc_pd()?;
    let memory = Memory::new(&pd, plan, 0)?;
    let mut buffers = Buffers::new(&memory, plan)?;
    let runtime = programs::runtime(1)?;
    let _entered = runtime.enter();
    let events = CqEvents::create_tokio(&context)?;
    let mut messages = None;
    let senders: Vec<Sender> = if plan.datagrams {
        let builder = datagrams::builder(&pd, plan, common);
        let all = (0..plan.qps).map(|_| AsyncDatagrams::create(&builder, &events));
        let (all, _none) = datagrams::connect_each(
            all.collect::<Result<_, _>>()?,
            |one: &AsyncDatagrams| (one.endpoint(), one.max_payload()),
            (common, plan, frames),
        )?;
        let all = all.into_iter();
        all.map(|(own, peer)| Sender::Datagrams(own, peer))
            .collect()
    } else {
        let builder = builder(&pd, plan, common);
        let group = if plan.srq {
            let receives = shared_receives(&builder, plan)?;
            let (group, all) = AsyncGroup::with_shared_receives(&receives, plan.qps, &events)?;
            messages = Some(all);
            group
        } else {
            AsyncGroup::new(builder, plan.qps, &events)?
        };
        let (members, theirs) =
            connect::channels(|| group.prepare(), Some(&buffers), (common, plan, frames))?;
        buffers.theirs = theirs;
        let mut senders = Vec::new();
        for member in members {
            senders.push(Sender::Channel(group.join(member)?));
        }
        senders
    };
    let progress = Cell::new(0);
    let connections = senders.into_iter().enumerate();
    let connections = connections.map(|(conn, sender)| Connection {
        conn,
        sender,
        buffers: &buffers,
        plan,
        progress: &progress,
        posted: Cell::new(0),
        received: Cell::new(0),
    });
    let connections: Vec<_> = connections.collect();
    meet(frames)?;
    let is_client = common.host.is_some();
    let is_active = plan.posts(is_client) || plan.op.is_received();
    let watched = is_active.then_some(&progress);
    let inboxes = Inbox::of(&connections, messages);
    let figures = with_peer(frames, &runtime, watched, async |theirs| {
        side(&connections, inboxes, plan, frames, is_client, theirs).await
    })?;
    meet(frames)?;
    for connection in &connections {
        runtime.block_on(async {
            match &connection.sender {
                Sender::Channel(channel) => {
                    channel.abort();
                    channel.close().await
                }
                Sender::Datagrams(endpoint, _) => endpoint.close().await,
            }
        })?;
    }
    Ok(figures)
}

async fn side(
    connections: &[Connection<'_>],
    mut inboxes: Vec<Inbox<'_>>,
    plan: &Plan,
    frames: &Frames,
    is_client: bool,
    mut theirs: Theirs,
) -> Result<Figures, Failure> {
    let done = || {
        let posted = connections.iter().map(|each| each.posted.get()).collect();
        messages::send(frames, &Done { posted })
    };
    let mut figures = Figures::default();
    match (plan.bandwidth, connections, &mut inboxes[..]) {
        (false, [one], [inbox]) if is_client => {
            figures = one.latency(inbox).await?;
            done()?;
        }
        (false, [one], [inbox]) if !plan.op.is_one_sided() => {
            one.answer(inbox, &theirs).await?;
            done()?;
        }
        (_, _, inboxes) => {
            let send = async {
                let mut figures = Figures::default();
                if plan.posts(is_client) {
                    figures = bandwidth(connections, plan).await?;
                }
                done().map(|()| figures)
            };
            let receive = inboxes
                .iter_mut()
                .map(|inbox| inbox.receive(theirs.clone()));
            (figures, _) = tokio::try_join!(send, try_join_all(receive))?;
        }
    }
    let their_end = theirs.wait_for(Option::is_some).await?;
    let mut lost = 0;
    for (each, posted) in connections.iter().zip(their_end.iter().flatten()) {
        each.buffers.memory.verify_left(each.conn, *posted)?;
        if plan.op.is_received() {
            lost += posted.saturating_sub(each.received.get());
        }
    }
    figures.lost(lost);
    Ok(figures)
}

/// Keeps each connection's allowed number of operations in flight.
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
    /// Starts the next operation. None if its end is not known: a datagram's, once it is posted.
    async fn start(&self) -> Result<Option<Operation>, Failure> {
        let number = self.posted.get();
        self.posted.set(number + 1);
        match &self.sender {
            Sender::Channel(channel) => {
                let request = self.buffers.request(self.conn, number)?;
                Ok(Some(channel.run(request)))
            }
            Sender::Datagrams(endpoint, peer) => {
                let buffer = self.buffers.ours(self.conn, number)?;
                let sent = endpoint.send_to(peer, buffer).await;
                sent.map_err(Rejected::into_error)?;
                Ok(None)
            }
        }
    }

    /// Waits for an operation of this number.
    async fn sent(&self, operation: Option<Operation>, number: u64) -> Result<(), Failure> {
        if let Some(operation) = operation {
            let (result, _buffer) = operation.await;
            let _success = result?;
        }
        self.progress.set(self.progress.get() + 1);
        if self.plan.op.is_one_sided() {
            self.buffers.memory.verify_fetched(self.conn, number)?;
        }
        Ok(())
    }

    /// One operation after the other, each answered by the peer unless it takes no part.
    async fn latency(&self, inbox: &mut Inbox<'_>) -> Result<Figures, Failure> {
        let mut latency = Latency::new(self.plan)?;
        while let Some(number) = latency.next() {
            let begun = Instant::now();
            let operation = self.start().await?;
            if !self.plan.op.is_one_sided() {
                inbox.next().await?;
            }
            self.sent(operation, number).await?;
            latency.record(begun);
        }
        let ways = if self.plan.op.is_one_sided() { 1 } else { 2 };
        Ok(latency.figures(ways))
    }

    /// Answers each message until the peer is done.
    async fn answer(&self, inbox: &mut Inbox<'_>, theirs: &Theirs) -> Result<(), Failure> {
        let mut theirs = theirs.clone();
        loop {
            tokio::select! {
                biased;
                message = inbox.next() => message?,
                _done = theirs.wait_for(Option::is_some) => return Ok(()),
            }
            let number = self.posted.get();
            self.sent(self.start().await?, number).await?;
        }
    }

    /// Posts up to this number or until the deadline, and waits for all. Records how long each was
    /// in flight, if that is wanted.
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
                in_flight.push_back((self.start().await?, begun));
            }
            let Some((oldest, begun)) = in_flight.pop_front() else {
                break;
            };
            self.sent(oldest, number).await?;
            if let (Some(times), Some(begun)) = (times, begun) {
                times.borrow_mut().record(begun.elapsed());
            }
            number += 1;
        }
        if let Sender::Datagrams(endpoint, _) = &self.sender {
            endpoint.flush().await;
        }
        Ok(())
    }
}

impl<'c> Inbox<'c> {
    /// One for each connection, unless the receives of all are shared.
    fn of(connections: &'c [Connection<'c>], messages: Option<SharedMessages>) -> Vec<Self> {
        if let Some(messages) = messages {
            let channels = connections.iter().map(|each| match &each.sender {
                Sender::Channel(channel) => Some((channel.id(), each.conn)),
                Sender::Datagrams(..) => None,
            });
            let source = Source::Shared(messages, channels.flatten().collect());
            return vec![Self {
                connections,
                source,
            }];
        }
        let each = connections.chunks(1).map(|connections| Self {
            connections,
            source: match connections {
                [
                    Connection {
                        sender: Sender::Channel(channel),
                        ..
                    },
                ] => Source::Receives(channel.prepared_receives().into()),
                _ => Source::Datagrams,
            },
        });
        each.collect()
    }

    /// Waits for the next message, and posts its receive again.
    async fn next(&mut self) -> Result<(), Failure> {
        let [first, ..] = self.connections else {
            return pending().await;
        };
        let mut connection = first;
        match (&mut self.source, &first.sender) {
            (Source::Receives(receives), Sender::Channel(channel)) => {
                let Some(receive) = receives.front_mut() else {
                    return pending().await;
                };
                let (result, buffer) = receive.await;
                let _received = receives.pop_front();
                let len = result?.byte_len();
                let (conn, number) = (first.conn, first.received.get());
                let buffer = first.buffers.verify_received(conn, number, buffer, len)?;
                receives.push_back(channel.receive(buffer));
            }
            (Source::Shared(messages, channels), _) => {
                let message = messages.next().await;
                let message = message.ok_or_else(|| Failure::new("the group has failed"))?;
                let conn = channels.get(&message.channel).copied();
                let found = conn.and_then(|conn| self.connections.get(conn));
                connection = found.unwrap_or(first);
                let (conn, number) = (connection.conn, connection.received.get());
                connection.buffers.verify_message(conn, number, &message)?;
            }
            (_, Sender::Datagrams(endpoint, _)) => {
                let datagram = endpoint.receive_from().await?;
                let message = Arrived::Block(&datagram);
                let (conn, number) = (first.conn, first.received.get());
                let memory = first.buffers.memory;
                memory.verify_received(conn, number, &message)?;
            }
            (Source::Datagrams, _) => return pending().await,
        }
        connection.received.set(connection.received.get() + 1);
        connection.progress.set(connection.progress.get() + 1);
        Ok(())
    }

    /// Takes messages until all that the peer has posted are here.
    async fn receive(&mut self, mut theirs: Theirs) -> Result<(), Failure> {
        loop {
            let is_done = theirs.borrow().is_some();
            if let Some(posted) = &*theirs.borrow() {
                let is_missing = |each: &Connection<'_>| {
                    each.plan.op.is_received() && posted.get(each.conn) > Some(&each.received.get())
                };
                if !self.connections.iter().any(is_missing) {
                    return Ok(());
                }
            }
            let may_be_lost = matches!(self.source, Source::Datagrams);
            tokio::select! {
                biased;
                message = self.next() => message?,
                // Afterwards nothing changes.
                _done = theirs.changed(), if !is_done => {}
                () = sleep(LATE), if is_done && may_be_lost => return Ok(()),
            }
        }
    }
}
