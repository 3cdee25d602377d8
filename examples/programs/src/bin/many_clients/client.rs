//! One process of the client: its connections, on one group, by one thread.

use std::collections::{HashMap, VecDeque};
use std::io::stdin;
use std::process;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use programs::{Context as _, Failure};
use verbs_channel::engine::ConnectedMember;
use verbs_channel::group::MemberFactory;
use verbs_channel::verbs_core::AckTimeout;
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, Completed, Connect, OwnedBuffer, PollStrategy,
};

use crate::Options;
use crate::crowd::Report;
use crate::plan::{self, Kind, MAX_LEN, Message, WINDOW};

/// Threads that connect.
const CONNECTORS: u32 = 8;
/// The longest wait without a look at slow connections.
const TICK: Duration = Duration::from_millis(5);

struct Connection {
    seed: u64,
    // Requests that were sent, and when the last of them were; answers that came.
    next: u32,
    since: VecDeque<Instant>,
    answered: u32,
    is_slow: bool,
    // Messages whose outcomes were not taken, and receives.
    sending: u32,
    listening: u32,
    says_bye: bool,
}

struct Part<'o> {
    options: &'o Options,
    // How many requests each connection sends.
    count: u32,
    group: ChannelGroup,
    pool: BufferPool,
    connections: HashMap<ChannelId, Connection>,
    // When slow connections take their answers, in the order of time.
    pauses: VecDeque<(Instant, ChannelId)>,
    took: Vec<Duration>,
    silent: u32,
}

/// Runs the part of this number: connects, waits for the start, and sends its requests.
pub(crate) fn run(options: &Options, host: &str, part: u32) -> Result<(), Failure> {
    let common = &options.common;
    let context = programs::open(common)?;
    let pd = context.alloc_pd()?;
    // The receives, the requests, a farewell, and one at hand.
    let blocks = usize::try_from(options.connections * (2 * WINDOW + 2))?;
    let pool = BufferPool::new(&pd, usize::try_from(MAX_LEN)?, blocks)?;
    let group = Channel::builder(&pd)
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        .max_send_wr(WINDOW + 1)
        .max_recv_wr(WINDOW)
        .ack_timeout(AckTimeout::new(plan::ACK_TIMEOUT)?)
        .strategy(PollStrategy::Notify { after: 100 })
        .group(options.connections)?;
    // A part that is killed has no last request.
    let is_doomed = part > options.processes;
    let mut part = Part {
        options,
        count: if is_doomed { u32::MAX } else { options.count },
        group,
        pool,
        connections: HashMap::new(),
        pauses: VecDeque::new(),
        took: Vec::new(),
        silent: options.connections,
    };
    for (number, member) in (0..).zip(connect(options, &part.group.factory(), host)?) {
        part.join(number, member)?;
    }
    Report::Connected.print()?;
    let _line = stdin().read_line(&mut String::new())?;
    part.run()
}

/// Connects by several threads: the server takes its time to accept each.
fn connect(
    options: &Options,
    factory: &MemberFactory,
    host: &str,
) -> Result<Vec<ConnectedMember>, Failure> {
    let left = Mutex::new(options.connections);
    let common = &options.common;
    let one = || {
        let options = Connect::within(common.limit()).private_data(&plan::welcome()?);
        let connected = factory.prepare()?.connect((host, common.port), options);
        let met = connected.context(|| common.cannot_connect(host))?;
        plan::meet(&met.private_data).map(|()| met.channel)
    };
    let take = || {
        let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.checked_sub(1)?;
        Some(())
    };
    thread::scope(|threads| {
        let connector = || threads.spawn(|| std::iter::from_fn(take).map(|()| one()).collect());
        let connectors: Vec<_> = (0..CONNECTORS).map(|_| connector()).collect();
        let mut all = Vec::new();
        for connector in connectors {
            let connected: Result<Vec<_>, Failure> = connector
                .join()
                .unwrap_or_else(|_| Err(Failure::new("a thread panicked")));
            all.extend(connected?);
        }
        Ok(all)
    })
}

impl Part<'_> {
    fn join(&mut self, number: u32, member: ConnectedMember) -> Result<(), Failure> {
        let id = self.group.join(member)?;
        let connection = Connection {
            seed: u64::from(process::id()) << 32 | u64::from(number),
            next: 0,
            since: VecDeque::new(),
            answered: 0,
            is_slow: number < self.options.slow,
            sending: 0,
            listening: 0,
            says_bye: false,
        };
        drop(self.connections.insert(id, connection));
        Ok(())
    }

    fn run(mut self) -> Result<(), Failure> {
        for id in self.group.channels().collect::<Vec<_>>() {
            self.request(id)?;
        }
        let mut last = Instant::now();
        while !self.connections.is_empty() {
            if let Some(completed) = self.group.wait_completed(TICK) {
                last = Instant::now();
                self.take(completed)?;
            }
            while let Some((end, id)) = self.pauses.front().copied()
                && end <= Instant::now()
            {
                last = end;
                let _this_one = self.pauses.pop_front();
                self.listen(id)?;
            }
            let limit = self.options.common.limit();
            if last.elapsed() >= limit {
                let seconds = limit.as_secs();
                return Err(Failure::new(format!(
                    "the server was silent for {seconds} s (--timeout waits longer)"
                )));
            }
        }
        let nanos = self.took.iter().map(Duration::as_nanos);
        let nanos = nanos.map(|nanos| u64::try_from(nanos).unwrap_or(u64::MAX));
        Report::Done(nanos.collect()).print()
    }

    /// Handles an answer, or a request that the server's device has acknowledged.
    fn take(&mut self, completed: Completed) -> Result<(), Failure> {
        let id = completed.channel;
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        if let Err(error) = completed.result {
            return Err(error).context(|| "the server is gone");
        }
        let Some(answer) = completed.message() else {
            connection.sending -= 1;
            if connection.says_bye && connection.sending == 0 {
                drop(self.connections.remove(&id));
                return Ok(self.group.remove(id)?);
            }
            return self.request(id);
        };
        connection.listening -= 1;
        let expected = connection.message(connection.answered).answer();
        let is = Message::read(answer)?;
        let len = usize::try_from(expected.len(self.options.size))?;
        if is != expected || answer.len() != len {
            return Err(Failure::new(format!(
                "{is:?} of {} bytes came, not {expected:?} of {len}",
                answer.len()
            )));
        }
        connection.answered += 1;
        if let Some(since) = connection.since.pop_front()
            && !connection.is_slow
        {
            self.took.push(since.elapsed());
        }
        if connection.answered == 1 {
            self.silent -= 1;
            if self.silent == 0 {
                Report::UnderWay.print()?;
            }
        }
        drop(completed);
        self.request(id)
    }

    /// Sends the next requests of a connection, up to its window.
    fn request(&mut self, id: ChannelId) -> Result<(), Failure> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        // A slow connection sends a window of requests, and takes no answer for a while.
        if connection.is_slow && connection.next > connection.answered {
            return Ok(());
        }
        let is_slow = connection.is_slow;
        if !is_slow {
            // Before the requests: an answer without a receive has to be sent again.
            self.listen(id)?;
        }
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let before = connection.next;
        while connection.has_request(self.count) {
            let message = connection.message(connection.next);
            let len = message.len(self.options.size);
            send(&mut self.group, &self.pool, id, message, len)?;
            connection.sending += 1;
            connection.next += 1;
            connection.since.push_back(Instant::now());
        }
        if connection.answered == self.count && !connection.says_bye {
            let mut bye = connection.message(connection.next);
            bye.kind = Kind::Bye;
            send(&mut self.group, &self.pool, id, bye, plan::HEADER)?;
            connection.sending += 1;
            connection.says_bye = true;
        }
        if is_slow && connection.next > before {
            let pause = Duration::from_millis(self.options.pause);
            self.pauses.push_back((Instant::now() + pause, id));
        }
        Ok(())
    }

    /// Posts a receive for each answer of a window.
    fn listen(&mut self, id: ChannelId) -> Result<(), Failure> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let mut channel = self.group.channel(id)?;
        while connection.listening < WINDOW {
            let posted = channel.start_receive(block(&self.pool)?);
            let _found_by_its_channel = posted.context(|| "the server is gone")?;
            connection.listening += 1;
        }
        Ok(())
    }
}

impl Connection {
    /// Whether there is room for a request in its window and in the send queue, which has one place
    /// more for the farewell.
    fn has_request(&self, count: u32) -> bool {
        let is_open = self.next - self.answered < WINDOW && self.sending < WINDOW;
        self.next < count && is_open
    }

    const fn message(&self, index: u32) -> Message {
        let (seed, kind) = (self.seed, Kind::Request);
        Message { seed, index, kind }
    }
}

fn send(
    group: &mut ChannelGroup,
    pool: &BufferPool,
    id: ChannelId,
    message: Message,
    len: u32,
) -> Result<(), Failure> {
    let mut buffer = block(pool)?;
    buffer.set_range(..usize::try_from(len)?)?;
    message.write(&mut buffer)?;
    let sent = group.channel(id)?.start_send(buffer);
    sent.map(drop).context(|| "the server is gone")
}

fn block(pool: &BufferPool) -> Result<OwnedBuffer, Failure> {
    let block = pool.take().map(OwnedBuffer::from);
    block.ok_or_else(|| Failure::new("the pool has no block left"))
}
