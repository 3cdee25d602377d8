//! Decode: counts before it asks, checks every byte, and uses no page again before nothing can write to it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use examples::{Context as _, Failure, Frames, Latencies, Listener, Measured, say};
use verbs_channel::{ImmediateCounter, ImmediateCounters, OwnedBuffer};
use verbs_core::AccessFlags;

use crate::Options;
use crate::pool::Pool;
use crate::protocol::{Answer, Cache, Order, Share, hello, out_of_order};
use crate::rail::{DEPTH, Rail, Rounds, cpu_time};

struct Decode<'o> {
    rails: Vec<Rail>,
    pool: Arc<Pool>,
    cache: Cache,
    counters: ImmediateCounters,
    options: &'o Options,
    generation: u64,
    took: Vec<Duration>,
    /// The processor time of all requests.
    cpu: Duration,
    /// The longest time from the end of a request to its pages being free.
    slowest: Duration,
    /// Bytes of pages that were wrong, and of canaries.
    wrong: (u32, u32),
}

/// A share, and how much of it has arrived.
type Counted = (Share, ImmediateCounter);

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (common, page_len) = (&options.common, options.page << 10);
    let pool = Pool::new(options.memory, options.layers * options.pages, page_len)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let rails = Rail::open_all(options, &pool, access)?;
    let names: Vec<&str> = rails.iter().map(|rail| &rail.name[..]).collect();
    let names = names.join(" and ");
    let cache = Cache {
        layers: options.layers,
        pages: options.pages,
        page_len,
        rails: rails.iter().map(|rail| rail.remote).collect(),
    };
    let mut decode = Decode {
        // One for each share: a rail that takes over gets more of them.
        counters: ImmediateCounters::new(u16::try_from(rails.len() * (rails.len() + 1))?),
        rails,
        pool,
        cache,
        options,
        generation: 0,
        took: Vec::new(),
        cpu: Duration::ZERO,
        slowest: Duration::ZERO,
        wrong: (0, 0),
    };
    let listener = Listener::bind(common.port)?;
    let port = listener.port();
    say(format_args!("waiting on {names}, TCP port {port}"))?;
    while decode.generation < options.requests {
        let peer = listener.accept(common.wait(), common.limit())?;
        let frames = Frames::greet(peer, &hello())?;
        if let Err(why) = decode.session(&frames) {
            decode.free(&format!("prefill is gone: {why}"))?;
        }
    }
    decode.report()
}

impl Decode<'_> {
    /// All requests, or until prefill is gone.
    fn session(&mut self, frames: &Frames) -> Result<(), Failure> {
        frames.send(&self.cache)?;
        let first = self.generation + 1;
        while self.generation < self.options.requests {
            self.join(frames)?;
            self.generation += 1;
            frames.send(&Order::Make(self.generation))?;
            let Answer::Made = frames.receive()? else {
                return Err(out_of_order());
            };
            if self.generation == first {
                say(format_args!("prefill is here: generation {first}"))?;
            }
            self.request(frames)?;
        }
        frames.send(&Order::Bye)
    }

    /// Connects the rails that are not, if they can be; at least one.
    fn join(&mut self, frames: &Frames) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            let mut why = None;
            for index in 0..self.rails.len() {
                why = self.join_one(frames, index)?.err().or(why);
            }
            match why {
                Some(why) if self.up().next().is_none() => {
                    if start.elapsed() >= self.options.common.limit() {
                        return Err(why).context(|| "no rail can be connected");
                    }
                    thread::sleep(Duration::from_millis(10));
                }
                _ => return Ok(()),
            }
        }
    }

    fn join_one(&mut self, frames: &Frames, index: usize) -> Result<Result<(), Failure>, Failure> {
        let is_down = |rail: &&mut Rail| rail.channel.is_none();
        let Some(rail) = self.rails.get_mut(index).filter(is_down) else {
            return Ok(Ok(()));
        };
        let prepared = match rail.prepare(self.options) {
            Ok(prepared) => prepared,
            Err(why) => return Ok(Err(why)),
        };
        frames.send(&Order::Join(index, prepared.endpoint()))?;
        let Answer::Joined(theirs) = frames.receive()? else {
            return Err(out_of_order());
        };
        let connected = theirs.map_err(Failure::new).and_then(|theirs| {
            let mut channel = prepared.handshake(&theirs)?;
            for _ in 0..DEPTH {
                channel.start_receive(OwnedBuffer::empty())?;
            }
            Ok(channel)
        });
        Ok(connected.map(|channel| rail.channel = Some(channel)))
    }

    /// Counts before it asks; then waits until all pages are there, or no page can be written to.
    fn request(&mut self, frames: &Frames) -> Result<(), Failure> {
        let (start, before) = (Instant::now(), cpu_time());
        let (up, all) = (self.up().collect::<Vec<_>>(), self.cache.len());
        let each = all.div_ceil(up.len());
        let mut counted = Vec::with_capacity(up.len());
        for (rail, first) in up.into_iter().zip((0..all).step_by(each)) {
            counted.push(self.begin(rail, first, each.min(all - first))?);
        }
        let shares = counted.iter().map(|(share, _)| *share).collect();
        let timeout = Duration::from_millis(self.options.deadline);
        frames.send(&Order::Write(shares, timeout))?;
        let mut is_settled = false;
        let end = self.count(frames, &mut counted, start, &mut is_settled)?;
        self.cpu += cpu_time().saturating_sub(before);
        match end {
            None => self.took.push(start.elapsed()),
            Some(why) => {
                self.free(why)?;
                // The counters end: an immediate that is still on its way will be stale.
                counted.clear();
                if !is_settled {
                    frames.send(&Order::Abort)?;
                }
            }
        }
        // Prefill is done with its own pages when it has answered. Those that came are right, even so.
        let mut settled = Ok(is_settled);
        while let Ok(false) = settled {
            settled = self.settle(frames);
        }
        if end.is_none() {
            self.check();
        }
        settled.map(drop)
    }

    /// A share with a counter of its own: it has a generation that no other request has.
    fn begin(&self, rail: usize, first: usize, count: usize) -> Result<Counted, Failure> {
        let counter = self.counters.begin();
        let counter = counter.ok_or_else(|| Failure::new("no counter is free"))?;
        let share = Share {
            rail,
            first,
            count,
            turn: usize::try_from(self.generation)? % self.cache.len(),
            immediate: counter.immediate(),
            counts_pages: !self.options.count_rails,
        };
        Ok((share, counter))
    }

    /// Counts until all shares have arrived, or returns why they will not.
    fn count(
        &mut self,
        frames: &Frames,
        counted: &mut [Counted],
        start: Instant,
        is_settled: &mut bool,
    ) -> Result<Option<&'static str>, Failure> {
        let timeout = Duration::from_millis(self.options.deadline);
        let aborts = self.options.abort_every;
        let aborts = aborts.is_some_and(|every| self.generation.is_multiple_of(every));
        let mut rounds = Rounds::default();
        loop {
            let has_moved = self.poll();
            let expected: u32 = counted.iter().map(|(share, _)| share.expected()).sum();
            let arrived: u32 = counted.iter().map(|(_, counter)| counter.count()).sum();
            if aborts && arrived * 2 >= expected {
                return Ok(Some("aborted"));
            }
            if arrived == expected {
                return Ok(None);
            }
            if start.elapsed() >= timeout {
                return Ok(Some("its deadline has passed"));
            }
            if !rounds.next(has_moved) || !frames.peer().has_sent()? {
                continue;
            }
            match frames.receive()? {
                Answer::Written => *is_settled = true,
                Answer::Quiesced(_) => {
                    *is_settled = true;
                    return Ok(Some("prefill has ended it"));
                }
                Answer::RailFailed(failed, why) => {
                    say(format_args!("rail {failed} failed: {why}"))?;
                    self.end_rail(failed)?;
                    let Some(rail) = self.up().next() else {
                        return Ok(Some("all rails have failed"));
                    };
                    // Some pages may have arrived: all are written again, and counted from 0.
                    let mut shares = Vec::new();
                    for (share, counter) in
                        counted.iter_mut().filter(|(share, _)| share.rail == failed)
                    {
                        (*share, *counter) = self.begin(rail, share.first, share.count)?;
                        shares.push(*share);
                    }
                    frames.send(&Order::Again(shares))?;
                }
                _ => return Err(out_of_order()),
            }
        }
    }

    /// Records the immediates that have arrived, and makes room for more. Whether there were any.
    fn poll(&mut self) -> bool {
        let mut has_moved = false;
        for channel in self
            .rails
            .iter_mut()
            .filter_map(|rail| rail.channel.as_mut())
        {
            while let Some(completed) = channel.next_completed() {
                // Whether the rail has failed is prefill's to find out: it knows what was written.
                let Ok(success) = completed.result else { break };
                let _counts = success
                    .imm_data()
                    .map(|number| self.counters.record(number));
                drop(channel.start_receive(OwnedBuffer::empty()));
                has_moved = true;
            }
        }
        has_moved
    }

    /// Takes an answer to a request that has ended here. Whether it has ended there.
    fn settle(&mut self, frames: &Frames) -> Result<bool, Failure> {
        match frames.receive()? {
            Answer::Written => return Ok(true),
            Answer::Quiesced(took) => {
                let (generation, took) = (self.generation, took.as_secs_f64() * 1e3);
                say(format_args!(
                    "generation {generation}: prefill was quiesced after {took:.1} ms"
                ))?;
                // Its rails are down.
                (0..self.rails.len()).try_for_each(|rail| self.end_rail(rail))?;
                return Ok(true);
            }
            Answer::RailFailed(rail, _) => self.end_rail(rail)?,
            _ => return Err(out_of_order()),
        }
        frames.send(&Order::Again(Vec::new()))?;
        Ok(false)
    }

    /// Ends all rails: after this, nothing writes to the pages, whatever prefill does.
    fn free(&mut self, why: &str) -> Result<(), Failure> {
        let (start, generation) = (Instant::now(), self.generation);
        (0..self.rails.len()).try_for_each(|rail| self.end_rail(rail))?;
        self.slowest = self.slowest.max(start.elapsed());
        let took = start.elapsed().as_secs_f64() * 1e3;
        say(format_args!(
            "generation {generation}: {why}: its pages were free after {took:.1} ms"
        ))
    }

    fn end_rail(&mut self, rail: usize) -> Result<(), Failure> {
        self.rails.get_mut(rail).ok_or_else(out_of_order)?.end()
    }

    fn up(&self) -> impl Iterator<Item = usize> {
        let rails = self.rails.iter().enumerate();
        rails.filter_map(|(index, rail)| rail.channel.as_ref().map(|_| index))
    }

    /// Compares every byte, and every canary.
    fn check(&mut self) {
        let turn = usize::try_from(self.generation).unwrap_or_default();
        for page in 0..self.cache.len() {
            let bytes = self.cache.bytes(self.generation, page);
            let (wrong, damaged) = self.pool.check(self.cache.place(page, turn), bytes);
            self.wrong = (self.wrong.0 + wrong, self.wrong.1 + damaged);
        }
    }

    fn report(self) -> Result<(), Failure> {
        let (pages, page_len) = (self.cache.len() as u64, self.cache.page_len as u64);
        let (count, (wrong, damaged)) = (self.took.len() as u64, self.wrong);
        say(format_args!(
            "{count} requests of {pages} pages of {page_len} bytes: {wrong} wrong bytes, {damaged} of canaries"
        ))?;
        let (ended, slowest) = (self.generation - count, self.slowest.as_secs_f64() * 1e3);
        say(format_args!(
            "{ended} ended early: their pages were free after {slowest:.1} ms at most"
        ))?;
        let (moved, took) = (count * pages, Latencies::new(self.took));
        let rate = moved as f64 / took.total().as_secs_f64().max(1e-9);
        let gigabytes = rate * page_len as f64 / 1e9;
        let cpu = self.cpu.as_secs_f64() * 1e6 / moved.max(1) as f64;
        say(format_args!(
            "{gigabytes:.3} GB/s, {rate:.0} pages/s, {cpu:.1} us of CPU a page"
        ))?;
        let [median, p99, max] = [50, 99, 100].map(|percent| took.percentile(percent));
        say(format_args!(
            "a request took {median:.0} us (median), {p99:.0} us (99 %), {max:.0} us at most"
        ))?;
        Measured::new("kv_transfer", page_len, moved, took.total(), true).print()?;
        match (wrong, damaged) {
            (0, 0) => Ok(()),
            _ => Err(Failure::new("pages or canaries were damaged")),
        }
    }
}
