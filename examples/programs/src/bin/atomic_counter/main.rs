//! Many clients on one counter: fetch-and-add, and a lock by compare-and-swap, all accounted for.
//!
//! Read first: `fetch_and_add` and `write_and_unlock` in `hand.rs`.

mod hand;

use std::mem;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use programs::{
    Common, Context as _, Failure, Frames, Hello, Listener, Measured, Patience, Peer, Progress,
    Waiter, missing_or_twice, run, say,
};
use serde::{Deserialize, Serialize};
use verbs_core::{
    AccessFlags, CompletionQueue, Context, ProtectionDomain, QueuePair, QueuePairEndpoint,
    RemoteMemoryRegion, SharedRegion,
};

use crate::hand::{COUNTER, FREE, Hand, LOCK, LOCKED, WORDS};

/// Let many clients count on one counter by RDMA atomics, and account for every single step
///
/// The server owns three words: a counter that every client adds to by fetch-and-add, a lock that
/// is taken by compare-and-swap, and a number that clients change by read and write under the lock.
/// At the end it checks both sums, and that each value of the counter was fetched exactly once.
#[derive(Debug, Parser)]
#[command(name = "atomic_counter", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Server: wait for this many clients, each thread counts as one
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: u16,

    /// Client: be this many clients at once, each with its own connection
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,

    /// Server: how often each client adds
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iters: u32,

    /// Server: how often each client takes the lock
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    locks: u32,
}

const EXAMPLES: &str = "\
Examples:
  atomic_counter                            be the server, for three clients
  atomic_counter 192.0.2.1                  be one client; start it three times
  atomic_counter --threads 3 192.0.2.1      be three clients
  atomic_counter --clients 8 -n 10000       be the server for eight, 10,000 additions each";

/// The server's answer to a client's endpoint: where to count, how often, and as whom.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    endpoint: QueuePairEndpoint,
    words: RemoteMemoryRegion,
    adds: u32,
    locks: u32,
    number: u64,
}

/// The server's message to begin, when all clients are connected.
#[derive(Debug, Serialize, Deserialize)]
struct Go;

/// A part of a client's report: the values it fetched since the last part. A part is sent every
/// second, so that the server can distinguish a slow client from a dead one.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    fetched: Vec<u64>,
    end: Option<End>,
}

/// The totals, in the last part.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct End {
    /// How long the additions took.
    adding_us: u64,
    /// How long the rounds under the lock took.
    locking_us: u64,
    /// The number of attempts to take the lock.
    tries: u64,
}

/// The server's last message, if everything is accounted for.
#[derive(Debug, Serialize, Deserialize)]
struct Right;

/// The most values in a part: far fewer than fit a message.
const PART: usize = 10_000;
const PART_EVERY: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    run(|options: &Options| match &options.common.host {
        Some(host) => clients(options, host),
        None => serve(options),
    })
}

fn hello() -> Hello {
    Hello::new("atomic_counter", 1)
}

fn queue_pair<'a>(
    pd: &'a ProtectionDomain,
    cq: &'a CompletionQueue,
    common: &Common,
    access: AccessFlags,
) -> verbs_core::Result<verbs_core::PreparedQueuePair> {
    QueuePair::builder(pd, cq, cq)
        .max_send_wr(4)
        .max_recv_wr(1)
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        .qp_access_flags(access)
        .build()
}

fn serve(options: &Options) -> Result<(), Failure> {
    let common = &options.common;
    let context = programs::open(common)?;
    let pd = context.alloc_pd()?;
    let words = pd.reg_shared(vec![0_u64; WORDS], AccessFlags::REMOTE)?;
    let cq = CompletionQueue::create(&context, 1)?;
    let listener = Listener::bind(common.port)?;
    let (device, clients) = (context.device().name(), options.clients);
    say(format_args!(
        "waiting for {clients} clients on {device}, TCP port {}",
        listener.port()
    ))?;

    let mut sessions = Vec::new();
    for number in 1..=u64::from(clients) {
        let peer = listener.accept(common.wait(), common.limit())?;
        let frames = Frames::greet(peer, &hello())?;
        let theirs: QueuePairEndpoint = frames.receive()?;
        let prepared = queue_pair(&pd, &cq, common, AccessFlags::REMOTE)?;
        let task = Task {
            endpoint: prepared.endpoint(),
            words: words.remote(),
            adds: options.iters,
            locks: options.locks,
            number,
        };
        sessions.push((frames, prepared.handshake(&theirs)?));
        let sent = sessions.last().map(|(frames, _)| frames.send(&task));
        sent.transpose()?;
    }
    let (report, reports) = mpsc::channel();
    let mut connections = Vec::new();
    for (number, (frames, qp)) in (1..).zip(sessions) {
        frames.send(&Go)?;
        connections.push(qp);
        let (report, adds) = (report.clone(), options.iters.into());
        // All are read concurrently, and the first that fails ends the program.
        thread::spawn(move || {
            let received =
                receive_report(&frames, adds).context(|| format!("client {number} of {clients}"));
            // The channel is closed only when the program ends.
            drop(report.send(received.map(|(values, end)| (values, end, frames))));
        });
    }
    drop(report);
    let mut fetched = Vec::new();
    let mut total = End::default();
    let mut ends = Vec::new();
    for received in reports {
        let (values, end, frames) = received?;
        fetched.extend(values);
        ends.push(frames);
        total.adding_us = total.adding_us.max(end.adding_us);
        total.locking_us = total.locking_us.max(end.locking_us);
        total.tries += end.tries;
    }
    for qp in connections {
        qp.close()?;
    }
    account(options, &words, fetched)?;
    for frames in ends {
        frames.send(&Right)?;
    }
    print_totals(options, total)
}

/// Prints the totals, and how long they took.
fn print_totals(options: &Options, total: End) -> Result<(), Failure> {
    let (clients, End { tries, .. }) = (options.clients, total);
    let adds = u64::from(clients) * u64::from(options.iters);
    let rounds = u64::from(clients) * u64::from(options.locks);
    let adding = Duration::from_micros(total.adding_us);
    let locking = Duration::from_micros(total.locking_us);
    say(format_args!(
        "{clients} clients added {adds} times in {:.2} seconds: the sum is {adds}, and each value was fetched once",
        adding.as_secs_f64()
    ))?;
    say(format_args!(
        "{clients} clients took the lock {rounds} times in {:.2} seconds and {tries} tries: the number under it is {rounds}",
        locking.as_secs_f64()
    ))?;
    Measured::new("fetch_add", 8, adds, adding, true).print()?;
    if rounds > 0 {
        // Each round ends with one more, which releases the lock.
        Measured::new("cmp_swap", 8, tries + rounds, locking, true).print()?;
    }
    Ok(())
}

/// A client's report of everything that it did.
fn receive_report(frames: &Frames, adds: u64) -> Result<(Vec<u64>, End), Failure> {
    let mut all = Vec::new();
    loop {
        let Part { mut fetched, end } = frames.receive()?;
        all.append(&mut fetched);
        let count = all.len() as u64;
        match end {
            Some(end) if count == adds => return Ok((all, end)),
            None if count <= adds => {}
            _ => return Err(Failure::new(format!("it added {count} times, not {adds}"))),
        }
    }
}

/// Checks that each operation was done exactly once.
fn account(
    options: &Options,
    words: &SharedRegion<Vec<u64>>,
    fetched: Vec<u64>,
) -> Result<(), Failure> {
    let adds = fetched.len() as u64;
    let rounds = u64::from(options.clients) * u64::from(options.locks);
    let word = |at: u64| -> Result<u64, Failure> {
        let mut bytes = [0; size_of::<u64>()];
        words.read(usize::try_from(at)?, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    for (what, is, should_be) in [
        ("the counter", word(COUNTER)?, adds),
        ("the lock", word(LOCK)?, FREE),
        ("the number under the lock", word(LOCKED)?, rounds),
    ] {
        if is != should_be {
            return Err(Failure::new(format!("{what} is {is}, not {should_be}")));
        }
    }
    missing_or_twice(fetched).map_or(Ok(()), |how| Err(Failure::new(how)))
}

/// Runs one client or several, and waits for all.
fn clients(options: &Options, host: &str) -> Result<(), Failure> {
    let context = programs::open(&options.common)?;
    thread::scope(|scope| {
        let start = |thread| {
            let context = &context;
            scope.spawn(move || client(options, host, context, thread == 0))
        };
        let all: Vec<_> = (0..options.threads).map(start).collect();
        all.into_iter().try_for_each(|client| {
            let ended = client.join();
            ended.unwrap_or_else(|_panic| Err(Failure::new("a client's thread panicked")))
        })
    })
}

fn client(options: &Options, host: &str, context: &Context, shows: bool) -> Result<(), Failure> {
    let common = &options.common;
    let pd = context.alloc_pd()?;
    let cq = CompletionQueue::create(context, 4)?;
    let prepared = queue_pair(&pd, &cq, common, AccessFlags::empty())?;
    let local = pd.reg_mr(vec![0_u64; 2])?;
    let peer = Peer::connect(host, common.port, common.limit())?;
    let frames = Frames::greet(peer, &hello())?;
    frames.send(&prepared.endpoint())?;
    let task: Task = frames.receive()?;
    let qp = prepared.handshake(&task.endpoint)?;
    let go = frames.receive_within(common.wait());
    let Go = go.context(|| "while waiting for the other clients")?;

    let mut hand = Hand {
        qp,
        waiter: Waiter::new(&cq, Patience::new(common.limit(), Some(frames.peer()))),
        local,
        words: task.words,
        number: task.number,
    };
    let mut report = UnsentReport {
        frames: &frames,
        fetched: Vec::new(),
        sent: Instant::now(),
    };
    let progress = |what, total| shows.then(|| Progress::new(what, total));
    let mut end = End::default();

    let mut adding = progress("additions", task.adds.into());
    let start = Instant::now();
    for done in 1..=task.adds.into() {
        report.fetched.push(hand.fetch_and_add(COUNTER, 1)?);
        report.send_if_due()?;
        adding.iter_mut().for_each(|progress| progress.at(done));
    }
    end.adding_us = u64::try_from(start.elapsed().as_micros())?;
    drop(adding);

    let mut locking = progress("rounds under the lock", task.locks.into());
    let start = Instant::now();
    for done in 1..=task.locks.into() {
        end.tries += hand.lock(common.limit())?;
        let number = hand.read(LOCKED)?;
        hand.write_and_unlock(LOCKED, number + 1)?;
        report.send_if_due()?;
        locking.iter_mut().for_each(|progress| progress.at(done));
    }
    end.locking_us = u64::try_from(start.elapsed().as_micros())?;
    drop(locking);

    report.close(end)?;
    let right = frames.receive_within(common.wait());
    let Right = right.context(|| "the server does not confirm that all is accounted for")?;
    let Task {
        number,
        adds,
        locks,
        ..
    } = task;
    let tries = end.tries;
    say(format_args!(
        "client {number}: {adds} additions, {locks} rounds under the lock in {tries} tries"
    ))?;
    Ok(hand.qp.close()?)
}

/// The part of the report that has not been sent yet.
struct UnsentReport<'a> {
    frames: &'a Frames,
    fetched: Vec<u64>,
    sent: Instant,
}

impl UnsentReport<'_> {
    /// Sends it, if it is long enough or due.
    fn send_if_due(&mut self) -> Result<(), Failure> {
        if self.fetched.len() < PART && self.sent.elapsed() < PART_EVERY {
            return Ok(());
        }
        self.send(None)
    }

    fn close(mut self, end: End) -> Result<(), Failure> {
        self.send(Some(end))
    }

    fn send(&mut self, end: Option<End>) -> Result<(), Failure> {
        let fetched = mem::take(&mut self.fetched);
        self.sent = Instant::now();
        self.frames.send(&Part { fetched, end })
    }
}
