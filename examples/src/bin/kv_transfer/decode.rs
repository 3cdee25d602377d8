//! Decode: counts before it asks, checks every byte, and uses no page again before nothing can write to it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use examples::{Context as _, Failure, Frames, Latencies, Listener, Measured, say};
use verbs_channel::{ImmediateCounter, ImmediateCounters, OwnedBuffer};
use verbs_core::AccessFlags;

use crate::Options;
use crate::meter::Meter;
use crate::pool::Pool;
use crate::protocol::{Answer, Cache, Order, Share, hello, out_of_order};
use crate::rail::{DEPTH, Rail};

/// Idle rounds between two looks for a message.
const LOOK: u32 = 64;

struct Decode<'o> {
    rails: Vec<Rail>,
    pool: Arc<Pool>,
    cache: Cache,
    counters: ImmediateCounters,
    options: &'o Options,
    generation: u64,
    took: Vec<Duration>,
    /// The longest time from the end of a request to its pages being free.
    slowest: Duration,
    /// Bytes that were wrong, and those of canaries.
    wrong: (u32, u32),
}

/// A share, and how much of it has arrived.
type Counted = (Share, ImmediateCounter);

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (common, page_len) = (&options.common, options.page << 10);
    let pool = Pool::new(options.memory, options.layers * options.pages, page_len)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let rails = Rail::open_all(options, &pool, access)?;
    let cache = Cache {
        layers: options.layers,
        pages: options.pages,
        page_len,
        rails: rails.iter().map(|rail| rail.remote).collect(),
    };
    // A share of a rail that fails gets a counter of its own.
    let counters = ImmediateCounters::new(u16::try_from(rails.len() * 2)?);
    let mut decode = Decode {
        rails,
        pool,
        cache,
        counters,
        options,
        generation: 0,
        took: Vec::new(),
        slowest: Duration::ZERO,
        wrong: (0, 0),
    };
    let listener = Listener::bind(common.port)?;
    let names: Vec<&str> = decode.rails.iter().map(|rail| &rail.name[..]).collect();
    let (names, port) = (names.join(" and "), listener.port());
    say(format_args!("waiting on {names}, TCP port {port}"))?;
    let mut meter = Meter::new();
    while decode.generation < options.requests {
        let frames = Frames::greet(listener.accept(common.wait(), common.limit())?, &hello())?;
        if let Err(why) = decode.session(&frames, &mut meter) {
            decode.free(&format!("prefill is gone: {why}"))?;
        }
    }
    decode.report(&meter)
}

impl Decode<'_> {
    /// All requests, or until prefill is gone.
    fn session(&mut self, frames: &Frames, meter: &mut Meter) -> Result<(), Failure> {
        frames.send(&self.cache)?;
        let mut is_told = false;
        while self.generation < self.options.requests {
            self.join(frames)?;
            self.generation += 1;
            frames.send(&Order::Make(self.generation))?;
            let Answer::Made = frames.receive()? else {
                return Err(out_of_order());
            };
            if !is_told {
                say(format_args!(
                    "prefill is here: generation {}",
                    self.generation
                ))?;
                is_told = true;
            }
            self.request(frames, meter)?;
        }
        frames.send(&Order::Bye)
    }

    /// Connects the rails that are not, if they can be; at least one.
    fn join(&mut self, frames: &Frames) -> Result<(), Failure> {
        let deadline = Instant::now() + self.options.common.limit();
        loop {
            let mut why = None;
            for index in 0..self.rails.len() {
                why = self.join_one(frames, index)?.err().or(why);
            }
            if self.rails.iter().any(|rail| rail.channel.is_some()) {
                return Ok(());
            }
            if let Some(why) = why.filter(|_| Instant::now() >= deadline) {
                return Err(why).context(|| "no rail can be connected");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn join_one(&mut self, frames: &Frames, index: usize) -> Result<Result<(), Failure>, Failure> {
        let Some(rail) = self
            .rails
            .get_mut(index)
            .filter(|rail| rail.channel.is_none())
        else {
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
    fn request(&mut self, frames: &Frames, meter: &mut Meter) -> Result<(), Failure> {
        let timeout = Duration::from_millis(self.options.deadline);
        let start = Instant::now();
        let up = (0..self.rails.len()).filter(|rail| self.is_up(*rail));
        let (up, all) = (up.collect::<Vec<_>>(), self.cache.len());
        let each = all.div_ceil(up.len());
        let mut counted = Vec::with_capacity(up.len());
        for (rail, first) in up.into_iter().zip((0..all).step_by(each)) {
            counted.push(self.begin(rail, first, each.min(all - first))?);
        }
        let shares = counted.iter().map(|(share, _)| *share).collect();
        frames.send(&Order::Write(shares, timeout))?;
        let mut is_answered = false;
        let end = meter.run(|| self.count(frames, &mut counted, start + timeout, &mut is_answered));
        match end? {
            None => self.took.push(start.elapsed()),
            Some(why) => {
                self.free(why)?;
                if !is_answered {
                    frames.send(&Order::Abort)?;
                }
            }
        }
        // Prefill is done with its own pages when it has answered.
        let mut settled = Ok(is_answered);
        while let Ok(false) = settled {
            settled = self.settle(frames);
        }
        if counted
            .iter()
            .all(|(share, counter)| counter.count() == share.expected())
        {
            self.check();
        }
        settled.map(drop)
    }

    /// A share with a counter of its own: immediates of earlier ones are stale, and never count.
    fn begin(&self, rail: usize, first: usize, count: usize) -> Result<Counted, Failure> {
        let counter = self
            .counters
            .begin()
            .ok_or_else(|| Failure::new("no counter is free"))?;
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
        deadline: Instant,
        is_answered: &mut bool,
    ) -> Result<Option<&'static str>, Failure> {
        let aborts = self
            .options
            .abort_every
            .is_some_and(|every| self.generation.is_multiple_of(every));
        let mut rounds = 0_u32;
        loop {
            self.poll();
            let expected: u32 = counted.iter().map(|(share, _)| share.expected()).sum();
            let arrived: u32 = counted.iter().map(|(_, counter)| counter.count()).sum();
            if aborts && arrived * 2 >= expected {
                return Ok(Some("aborted"));
            }
            if arrived == expected {
                return Ok(None);
            }
            if Instant::now() >= deadline {
                return Ok(Some("its deadline has passed"));
            }
            rounds += 1;
            if !rounds.is_multiple_of(LOOK) || !frames.peer().has_sent()? {
                thread::yield_now();
                continue;
            }
            match frames.receive()? {
                Answer::Written => *is_answered = true,
                Answer::Quiesced(_) => {
                    *is_answered = true;
                    return Ok(Some("prefill has ended it"));
                }
                Answer::RailFailed(failed, why) => {
                    say(format_args!("rail {failed} failed: {why}"))?;
                    // What it had on the way cannot arrive after this.
                    self.rails.get_mut(failed).ok_or_else(out_of_order)?.channel = None;
                    let Some(rail) = (0..self.rails.len()).find(|rail| self.is_up(*rail)) else {
                        return Ok(Some("all rails have failed"));
                    };
                    let lost = counted.iter_mut().find(|(share, _)| share.rail == failed);
                    let (share, counter) = lost.ok_or_else(out_of_order)?;
                    (*share, *counter) = self.begin(rail, share.first, share.count)?;
                    frames.send(&Order::Again(Some(*share)))?;
                }
                _ => return Err(out_of_order()),
            }
        }
    }

    /// Records the immediates that have arrived, and makes room for more.
    fn poll(&mut self) {
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
                    .map(|immediate| self.counters.record(immediate));
                drop(channel.start_receive(OwnedBuffer::empty()));
            }
        }
    }

    /// Takes an answer of prefill's to a request that has ended here. Whether it has ended there.
    fn settle(&mut self, frames: &Frames) -> Result<bool, Failure> {
        match frames.receive()? {
            Answer::Written => return Ok(true),
            Answer::Quiesced(micros) => {
                let (generation, took) = (self.generation, micros as f64 / 1e3);
                say(format_args!(
                    "generation {generation}: prefill was quiesced after {took:.1} ms"
                ))?;
                self.rails.iter_mut().for_each(|rail| rail.channel = None);
                return Ok(true);
            }
            Answer::RailFailed(rail, _) => {
                self.rails.get_mut(rail).ok_or_else(out_of_order)?.channel = None;
                frames.send(&Order::Again(None))?;
            }
            _ => return Err(out_of_order()),
        }
        Ok(false)
    }

    /// Destroys the queue pairs of all rails: after this, nothing writes to the pages.
    fn free(&mut self, why: &str) -> Result<(), Failure> {
        let start = Instant::now();
        self.rails.iter_mut().for_each(|rail| rail.channel = None);
        let (took, generation) = (start.elapsed(), self.generation);
        self.slowest = self.slowest.max(took);
        let took = took.as_secs_f64() * 1e3;
        say(format_args!(
            "generation {generation}: {why}: its pages were free after {took:.1} ms"
        ))
    }

    fn is_up(&self, rail: usize) -> bool {
        self.rails
            .get(rail)
            .is_some_and(|rail| rail.channel.is_some())
    }

    /// Compares every byte, and every canary.
    fn check(&mut self) {
        let turn = usize::try_from(self.generation).unwrap_or_default();
        for page in 0..self.cache.len() {
            let bytes = self.cache.bytes(self.generation, page);
            let (wrong, damaged) = self.pool.check(self.cache.place(page, turn), bytes);
            self.wrong.0 += wrong;
            self.wrong.1 += damaged;
        }
    }

    fn report(self, meter: &Meter) -> Result<(), Failure> {
        let (pages, page_len) = (self.cache.len() as u64, self.cache.page_len as u64);
        let count = self.took.len() as u64;
        let (ended, slowest) = (self.generation - count, self.slowest.as_secs_f64() * 1e3);
        let (wrong, damaged) = self.wrong;
        say(format_args!(
            "{count} requests of {pages} pages of {page_len} bytes: {wrong} wrong bytes, {damaged} of canaries"
        ))?;
        say(format_args!(
            "{ended} ended early: their pages were free after {slowest:.1} ms at most"
        ))?;
        let took = Latencies::new(self.took);
        let rate = (count * pages) as f64 / took.total().as_secs_f64().max(1e-9);
        let (gigabytes, cost) = (rate * page_len as f64 / 1e9, meter.per_page(count * pages));
        let [median, p99, max] = [50, 99, 100].map(|percent| took.percentile(percent));
        say(format_args!(
            "{gigabytes:.3} GB/s, {rate:.0} pages/s, {cost}"
        ))?;
        say(format_args!(
            "a request took {median:.0} us (median), {p99:.0} us (99 %), {max:.0} us at most"
        ))?;
        Measured::new("kv_transfer", page_len, count * pages, took.total(), true).print()?;
        match self.wrong {
            (0, 0) => Ok(()),
            _ => Err(Failure::new("pages or canaries were damaged")),
        }
    }
}
