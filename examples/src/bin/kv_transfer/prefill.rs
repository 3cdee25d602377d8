//! Prefill: makes pages, and writes them in chains over all rails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use examples::{Failure, Frames, Peer, say};
use verbs_channel::{Outgoing, OwnedChain, OwnedRequest};
use verbs_core::{AccessFlags, RemoteMemoryRegion};

use crate::Options;
use crate::pool::Pool;
use crate::protocol::{Answer, Cache, Order, Share, hello, out_of_order};
use crate::rail::{CHAINS, Rail, Rounds, cpu_time};

/// A rail, and what it is to write.
struct Lane {
    rail: Rail,
    theirs: RemoteMemoryRegion,
    shares: VecDeque<Share>,
    /// Chains that are not in flight.
    idle: Vec<OwnedChain>,
    /// Pages.
    written: u64,
}

struct Prefill<'o> {
    lanes: Vec<Lane>,
    pool: Arc<Pool>,
    cache: Cache,
    frames: Frames,
    options: &'o Options,
    generation: u64,
}

pub(crate) fn run(options: &Options, host: &str) -> Result<(), Failure> {
    let common = &options.common;
    let peer = Peer::connect(host, common.port, common.limit())?;
    let frames = Frames::greet(peer, &hello())?;
    let cache = frames.receive::<Cache>()?.checked()?;
    let pool = Pool::new(options.memory, cache.len(), cache.page_len)?;
    let rails = Rail::open_all(options, &pool, AccessFlags::empty())?;
    if rails.len() != cache.rails.len() {
        let (ours, theirs) = (rails.len(), cache.rails.len());
        return Err(Failure::new(format!(
            "decode has {theirs} rails, and this has {ours}"
        )));
    }
    let lanes = rails
        .into_iter()
        .zip(&cache.rails)
        .map(|(rail, theirs)| Lane::new(rail, *theirs, cache.page_len, options.chain));
    let mut prefill = Prefill {
        lanes: lanes.collect::<Result<_, Failure>>()?,
        pool,
        cache,
        frames,
        options,
        generation: 0,
    };
    prefill.serve()
}

impl Prefill<'_> {
    /// Does what decode asks for, until it has had enough.
    fn serve(&mut self) -> Result<(), Failure> {
        let mut cpu = Duration::ZERO;
        loop {
            match self.frames.receive()? {
                Order::Join(rail, endpoint) => {
                    let lane = self.lanes.get_mut(rail).ok_or_else(out_of_order)?;
                    let joined = lane.rail.prepare(self.options).and_then(|prepared| {
                        let ours = prepared.endpoint();
                        lane.rail.channel = Some(prepared.handshake(&endpoint)?);
                        Ok(ours)
                    });
                    let joined = joined.map_err(|why| why.to_string());
                    self.frames.send(&Answer::Joined(joined))?;
                }
                Order::Make(generation) => {
                    self.generation = generation;
                    for page in 0..self.cache.len() {
                        self.pool.fill(page, self.cache.bytes(generation, page));
                    }
                    self.frames.send(&Answer::Made)?;
                }
                Order::Write(shares, timeout) => {
                    self.add(&shares)?;
                    let before = cpu_time();
                    let answer = self.write(timeout)?;
                    cpu += cpu_time().saturating_sub(before);
                    self.frames.send(&answer)?;
                }
                // They crossed with the last answer.
                Order::Again(_) | Order::Abort => {}
                Order::Bye => break,
            }
        }
        let written: u64 = self.lanes.iter().map(|lane| lane.written).sum();
        let cpu = cpu.as_secs_f64() * 1e6 / written.max(1) as f64;
        say(format_args!(
            "{written} pages written: {cpu:.1} us of CPU a page"
        ))
    }

    /// Writes all shares. Returns when no device uses the pages any more, whether all were written or not.
    fn write(&mut self, timeout: Duration) -> Result<Answer, Failure> {
        let loses = self.options.lose_every;
        let loses = loses.is_some_and(|every| self.generation.is_multiple_of(every));
        let (start, mut failed, mut rounds) = (Instant::now(), 0, Rounds::default());
        loop {
            let (mut has_moved, mut is_done) = (false, failed == 0);
            for (index, lane) in self.lanes.iter_mut().enumerate() {
                match lane.step(&self.cache, loses && index == 0) {
                    Ok(moved) => has_moved |= moved,
                    Err(why) => {
                        // To ERR, and drained: decode gets its shares back.
                        lane.abort();
                        let failed_rail = Answer::RailFailed(index, why.to_string());
                        self.frames.send(&failed_rail)?;
                        failed += 1;
                    }
                }
                is_done &= failed == 0 && lane.is_done();
            }
            if is_done {
                return Ok(Answer::Written);
            }
            let mut ends = start.elapsed() >= timeout;
            if rounds.next(has_moved) && self.frames.peer().has_sent()? {
                match self.frames.receive()? {
                    Order::Again(shares) => {
                        failed = usize::checked_sub(failed, 1).ok_or_else(out_of_order)?;
                        self.add(&shares)?;
                    }
                    Order::Abort => ends = true,
                    _ => return Err(out_of_order()),
                }
            }
            if ends {
                let start = Instant::now();
                self.lanes.iter_mut().for_each(Lane::abort);
                return Ok(Answer::Quiesced(start.elapsed()));
            }
        }
    }

    /// Each share is its rail's. If that has failed by now, decode will choose another one.
    fn add(&mut self, shares: &[Share]) -> Result<(), Failure> {
        for share in shares {
            let lane = self.lanes.get_mut(share.rail).ok_or_else(out_of_order)?;
            let end = share.first.checked_add(share.count);
            if end.is_none_or(|end| end > self.cache.len()) {
                return Err(out_of_order());
            }
            if lane.rail.channel.is_some() {
                lane.shares.push_back(*share);
            }
        }
        Ok(())
    }
}

impl Lane {
    /// Builds the chains, of writes that are replaced before they are started.
    fn new(
        rail: Rail,
        theirs: RemoteMemoryRegion,
        page_len: usize,
        chain: u16,
    ) -> Result<Self, Failure> {
        let write = || -> Result<OwnedRequest, Failure> {
            let (ours, theirs) = (
                rail.memory.slice(..page_len)?,
                theirs.slice(..page_len as u64)?,
            );
            Ok(Outgoing::write(ours, theirs).into())
        };
        let chains = (0..CHAINS).map(|_| {
            let requests = (0..chain).map(|_| write()).collect::<Result<Vec<_>, _>>()?;
            Ok(OwnedChain::new(requests)?)
        });
        let idle = chains.collect::<Result<_, Failure>>()?;
        let shares = VecDeque::with_capacity(8);
        Ok(Self {
            rail,
            theirs,
            shares,
            idle,
            written: 0,
        })
    }

    /// Takes the chains that were written, and starts those that are idle. Whether there were any.
    ///
    /// Allocates nothing: only places and immediates differ from what was written before.
    fn step(&mut self, cache: &Cache, loses: bool) -> Result<bool, Failure> {
        let Some(channel) = &mut self.rail.channel else {
            return Ok(false);
        };
        let mut has_moved = false;
        while let Some(completed) = channel.next_completed() {
            self.written += completed.chain.as_ref().map_or(0, OwnedChain::done) as u64;
            self.idle.extend(completed.chain);
            completed.result?;
            has_moved = true;
        }
        while let Some(share) = self.shares.front_mut() {
            if share.count == 0 {
                self.shares.pop_front();
                continue;
            }
            let Some(mut chain) = self.idle.pop() else {
                break;
            };
            let len = chain.len().min(share.count);
            for at in 0..len {
                let page = share.first + at;
                let (start, end) = Pool::bounds(page, cache.page_len);
                let ours = self.rail.memory.slice(start..end)?;
                let (start, end) = Pool::bounds(cache.place(page, share.turn), cache.page_len);
                let mut write = Outgoing::write(ours, self.theirs.slice(start as u64..end as u64)?);
                if share.counts_pages || at + 1 == share.count {
                    write = write.immediate(share.immediate);
                }
                drop(chain.set(at, write)?);
            }
            chain.set_range(..len)?;
            if let Err(rejected) = channel.start_chain(chain) {
                let why = Failure::from(*rejected.error());
                self.idle.push(rejected.into_given());
                return Err(why);
            }
            share.first += len;
            share.count -= len;
            has_moved = true;
            if loses {
                return Err(Failure::new("lost, as --lose-every asks"));
            }
        }
        Ok(has_moved)
    }

    /// Whether all of its shares have been written.
    fn is_done(&self) -> bool {
        self.shares.iter().all(|share| share.count == 0) && self.idle.len() == usize::from(CHAINS)
    }

    /// Ends the channel: to ERR, drained, and destroyed if that takes too long. Nothing is in flight then.
    fn abort(&mut self) {
        self.shares.clear();
        if let Some(mut channel) = self.rail.channel.take() {
            channel.abort();
            while let Some(completed) = channel.next_completed() {
                self.idle.extend(completed.chain);
            }
        }
    }
}
