//! The client: sends datagrams, and compares what comes back.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use programs::{Context as _, Failure, Latencies, Measured, Peer, Progress, say};
use verbs_channel::verbs_core::path::DatagramEndpoint;
use verbs_channel::{BufferPool, Datagrams};

use crate::Options;
use crate::message::Message;

/// How often the server's TCP connection is checked while nothing comes.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn run(options: &Options, host: &str) -> Result<(), Failure> {
    let common = &options.common;
    let context = programs::open(common)?;
    let builder = options.datagrams(&context)?;
    let datagrams = builder.build()?;
    let peer = Peer::connect(host, common.port, common.limit())?;
    let mut bytes = [0; DatagramEndpoint::BYTES];
    peer.receive(&mut bytes)?;
    let server = DatagramEndpoint::from_bytes(&bytes);
    let server = server.context(|| "the server is no datagram_echo")?;
    let max = datagrams.max_payload().min(server.mtu().bytes());
    let size = options.size;
    if size > max {
        return Err(Failure::new(format!(
            "{size} bytes are too long: a datagram to this server has {max} at most"
        )));
    }
    let len = usize::try_from(size)?;
    let mut run = Run {
        pool: BufferPool::new(builder.pd(), len, 256)?,
        datagrams,
        server,
        peer,
        len,
        // Datagrams of another client, or of a run before, are no answers.
        client: RandomState::new().hash_one(0_u8),
        next: 0,
        on_their_way: HashMap::new(),
        order: VecDeque::new(),
        took: Vec::new(),
        lost: 0,
    };
    run.all(options)?;
    run.report(options)
}

struct Run {
    datagrams: Datagrams,
    pool: BufferPool,
    server: DatagramEndpoint,
    peer: Peer,
    len: usize,
    client: u64,
    next: u32,
    on_their_way: HashMap<u32, Instant>,
    /// The same in the order in which they were sent, and others that have come back.
    order: VecDeque<(u32, Instant)>,
    took: Vec<Duration>,
    lost: u64,
}

impl Run {
    fn all(&mut self, options: &Options) -> Result<(), Failure> {
        let (window, limit) = (usize::try_from(options.window)?, options.common.limit());
        let mut progress = Progress::new("datagrams", options.iters.into());
        let mut last = Instant::now();
        while self.next < options.iters || !self.on_their_way.is_empty() {
            while self.next < options.iters && self.on_their_way.len() < window {
                self.send()?;
            }
            if self.receive(options.lost_after().min(LOOK))? {
                last = Instant::now();
            } else {
                self.peer.still_there()?;
            }
            self.lose(options.lost_after());
            if last.elapsed() >= limit {
                return Err(Failure::new(format!(
                    "no datagram came back for {} s (--timeout waits longer)",
                    limit.as_secs()
                )));
            }
            progress.at(self.next.into());
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Failure> {
        let index = self.next;
        let message = Message {
            client: self.client,
            index,
        };
        let bytes = message.bytes(self.len);
        let block = loop {
            match self.pool.take_with(&bytes)? {
                Some(block) => break block,
                // All are in flight: those that have left are free.
                None => drop(self.datagrams.flush(LOOK)),
            }
        };
        let now = Instant::now();
        let sent = self.datagrams.send_to(&self.server, block);
        sent.map_err(verbs_channel::error::Rejected::into_error)?;
        self.next += 1;
        self.order.push_back((index, now));
        let _none = self.on_their_way.insert(index, now);
        Ok(())
    }

    /// Waits for an answer, and checks it. Returns whether one has come.
    fn receive(&mut self, timeout: Duration) -> Result<bool, Failure> {
        let Some(datagram) = self.datagrams.receive_from(timeout)? else {
            return Ok(false);
        };
        let Message { client, index } = Message::parse(&datagram)?;
        if client != self.client {
            return Ok(false);
        }
        if datagram.len() != self.len {
            let (len, sent) = (datagram.len(), self.len);
            return Err(Failure::new(format!(
                "{len} bytes came back of a datagram of {sent}"
            )));
        }
        // One that came too late was counted as lost.
        if let Some(sent) = self.on_their_way.remove(&index) {
            self.took.push(sent.elapsed());
        }
        Ok(true)
    }

    /// Counts those that should have come back.
    fn lose(&mut self, after: Duration) {
        while let Some((index, sent)) = self.order.front() {
            let is_on_its_way = self.on_their_way.contains_key(index);
            if is_on_its_way && sent.elapsed() < after {
                return;
            }
            if is_on_its_way {
                let _sent = self.on_their_way.remove(index);
                self.lost += 1;
            }
            let _first = self.order.pop_front();
        }
    }

    fn report(self, options: &Options) -> Result<(), Failure> {
        let (size, lost, came) = (options.size, self.lost, self.took.len());
        if came == 0 {
            return Err(Failure::new(format!("none of {lost} datagrams came back")));
        }
        let took = Latencies::new(self.took);
        say(format_args!(
            "{came} datagrams of {size} bytes came back, each byte checked; {lost} lost"
        ))?;
        say(format_args!(
            "min {:.1} us, median {:.1} us, p99 {:.1} us",
            took.percentile(0),
            took.percentile(50),
            took.percentile(99)
        ))?;
        let count = u64::try_from(came)?;
        Measured::new("datagram_echo", size.into(), count, took.total(), true).print()
    }
}
