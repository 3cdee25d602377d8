//! Prefill: a thread for each rail, which writes the pages that decode asks for.

use std::iter;
use std::panic::resume_unwind;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use examples::{Failure, Peer, say};
use verbs_channel::{
    BufferPool, Channel, Completed, Outgoing, OwnedChain, OwnedRequest, SharedMemory,
    TransportError,
};
use verbs_core::{AccessFlags, Context, ProtectionDomain, RemoteMemoryRegion};

use crate::Options;
use crate::cost::Meter;
use crate::pool::Pool;
use crate::protocol::{Cache, ORDER_LEN, Order};

/// Chains in flight on a rail.
const CHAINS: u16 = 4;
/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);

struct Rail<'o> {
    number: u8,
    pd: ProtectionDomain,
    memory: SharedMemory,
    pool: &'o Pool,
    options: &'o Options,
    host: &'o str,
    /// Pages.
    written: u64,
}

pub(crate) fn run(options: &Options, host: &str) -> Result<(), Failure> {
    let pool = Pool::new(options)?;
    let rail = |(context, number): (Context, u8)| -> Result<Rail<'_>, Failure> {
        let pd = context.alloc_pd()?;
        let slices = usize::from(CHAINS * options.chain) + 1;
        let (memory, _) = pool.register(&pd, AccessFlags::empty(), slices)?;
        let (pool, written) = (&*pool, 0);
        Ok(Rail {
            number,
            pd,
            memory,
            pool,
            options,
            host,
            written,
        })
    };
    let rails = options.open()?.into_iter().zip(0..).map(rail);
    let rails: Vec<Rail<'_>> = rails.collect::<Result<_, Failure>>()?;
    let ended: Vec<Result<(), Failure>> = thread::scope(|scope| {
        let threads = rails.into_iter().map(|rail| scope.spawn(|| rail.run()));
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(ScopedJoinHandle::join);
        let ended = joined.map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic)));
        ended.collect()
    });
    // A rail that was down when decode took its leave has found nothing to connect to.
    let failed = ended.iter().all(Result::is_err);
    if failed {
        ended.into_iter().collect()
    } else {
        Ok(())
    }
}

impl Rail<'_> {
    /// Connects, again and again, and writes what decode asks for, until it takes its leave.
    fn run(mut self) -> Result<(), Failure> {
        let mut meter = Meter::new();
        let name = self.pd.context().device().name().to_owned();
        loop {
            let (mut channel, theirs) = self.connect()?;
            let ended = self.serve(&mut channel, theirs, &mut meter);
            // To ERR, and drained, or destroyed: then the device is done with the pages.
            let start = Instant::now();
            channel.abort();
            let mut left = iter::from_fn(|| channel.next_completed());
            if left.any(|left| matches!(left.result, Err(TransportError::Stuck))) {
                return Err(Failure::new(format!(
                    "{name} is stuck: it never lets go of the pages"
                )));
            }
            let (took, written) = (start.elapsed().as_secs_f64() * 1e3, self.written);
            let Err(why) = ended else {
                let costs = meter.per_page(written);
                return say(format_args!("{name}: {written} pages written: {costs}"));
            };
            say(format_args!("{name}: {why}: quiesced after {took:.1} ms"))?;
        }
    }

    /// Connects to decode, unless that is gone.
    fn connect(&self) -> Result<(Channel, RemoteMemoryRegion), Failure> {
        let (common, start) = (&self.options.common, Instant::now());
        let builder = Channel::builder(&self.pd)
            .port_num(common.ib_port)
            .gid_index(common.gid_idx)
            .max_send_wr(u32::from(CHAINS * self.options.chain))
            .max_recv_wr(1);
        loop {
            let peer = Peer::connect(self.host, common.port, common.limit())?;
            peer.send(&[self.number])?;
            match builder
                .build()?
                .exchange(peer.stream(), common.limit(), &[])
            {
                Ok((channel, cache)) => {
                    let cache: Cache = serde_json::from_slice(&cache)?;
                    let is_same = (cache.pages, cache.page_len)
                        == (self.options.all_pages(), self.options.page_len());
                    let is_other =
                        || Failure::new("decode's cache has another number or length of pages");
                    return is_same
                        .then_some((channel, cache.memory))
                        .ok_or_else(is_other);
                }
                Err(why) if start.elapsed() >= common.limit() => return Err(why.into()),
                // The device may have no link now, and decode is in the middle of a request.
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    /// Carries out orders until there is none.
    fn serve(
        &mut self,
        channel: &mut Channel,
        theirs: RemoteMemoryRegion,
        meter: &mut Meter,
    ) -> Result<(), Failure> {
        let orders = BufferPool::new(&self.pd, ORDER_LEN, 1)?;
        let mut chains = self.chains(theirs)?;
        loop {
            let block = orders
                .take()
                .ok_or_else(|| Failure::new("a block is missing"))?;
            let ticket = channel.start_receive(block)?;
            // The wait has no bound but decode's leaving.
            let (received, block) = channel.wait_success(ticket)?;
            let message = received.message_in(&block).unwrap_or_default();
            let Some(order) = serde_json::from_slice::<Option<Order>>(message)? else {
                return Ok(());
            };
            drop(block);
            if order.end > self.options.all_pages() {
                return Err(Failure::new("decode asks for pages that are not there"));
            }
            meter.measure(|| self.write(channel, theirs, &order, &mut chains))?;
        }
    }

    /// Chains of writes, each of which is replaced before it is started.
    fn chains(&self, theirs: RemoteMemoryRegion) -> Result<Vec<OwnedChain>, Failure> {
        let len = self.options.page_len();
        let write = |_| -> Result<OwnedRequest, Failure> {
            Ok(Outgoing::write(self.memory.slice(..len)?, theirs.slice(..len as u64)?).into())
        };
        let chain = |_| {
            let requests = (0..self.options.chain).map(write);
            Ok(OwnedChain::new(requests.collect::<Result<_, Failure>>()?)?)
        };
        (0..CHAINS).map(chain).collect()
    }

    /// Writes the pages of an order. Allocates nothing: chains differ by places and immediates only.
    fn write(
        &mut self,
        channel: &mut Channel,
        theirs: RemoteMemoryRegion,
        order: &Order,
        idle: &mut Vec<OwnedChain>,
    ) -> Result<(), Failure> {
        let (start, len) = (Instant::now(), self.options.page_len());
        let every = self.options.lose_every.unwrap_or(u64::MAX);
        let is_lost = self.number == 0 && order.generation.is_multiple_of(every);
        let mut pages = order.first..order.end;
        while !pages.is_empty() || idle.len() < usize::from(CHAINS) {
            if !pages.is_empty()
                && let Some(mut chain) = idle.pop()
            {
                let requests = chain.len().min(pages.len());
                for (at, page) in pages.by_ref().take(requests).enumerate() {
                    self.pool.stamp(page, order.generation);
                    let place = Pool::bounds(self.options.place(page, order.generation), len);
                    let theirs = theirs.slice(place.start as u64..place.end as u64)?;
                    let ours = self.memory.slice(Pool::bounds(page, len))?;
                    let mut write = Outgoing::write(ours, theirs);
                    if order.counts_pages || page + 1 == order.end {
                        write = write.immediate(order.immediate);
                    }
                    drop(chain.set(at, write)?);
                }
                chain.set_range(..requests)?;
                let _completed_below = channel.start_chain(chain)?;
                if is_lost {
                    return Err(Failure::new("lost, as --lose-every asks"));
                }
                continue;
            }
            let left = order.timeout.saturating_sub(start.elapsed());
            let Completed { result, chain, .. } = channel
                .wait_completed(Some(left))
                .ok_or_else(|| Failure::new("the deadline has passed"))?;
            self.written += chain.as_ref().map_or(0, OwnedChain::done) as u64;
            idle.extend(chain);
            result?;
        }
        Ok(())
    }
}
