//! Prefill: a thread for each rail, which writes the pages that decode asks for.

use std::iter;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use examples::{Context as _, Failure, Meter, Peer, say};
use verbs_channel::{
    Channel, ChannelBuilder, CloseError, Outgoing, OwnedBuffer, OwnedChain, SharedMemory,
    SharedSlice,
};
use verbs_core::{AccessFlags, Context, ProtectionDomain, RemoteMemoryRegion};

use crate::Options;
use crate::pool::Pool;
use crate::protocol::{Cache, ORDER_LEN, Order};

/// Chains in flight on a rail.
const CHAINS: u16 = 4;
/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);

struct Rail<'o> {
    number: u8,
    pd: ProtectionDomain,
    channels: ChannelBuilder,
    memory: SharedMemory,
    pool: &'o Arc<Pool>,
    options: &'o Options,
    /// Pages.
    written: u64,
}

pub(crate) fn run(options: &Options, devices: &[Context], host: &str) -> Result<(), Failure> {
    let pool = Pool::new(options)?;
    let rails = devices.iter().zip(0..);
    let rails = rails.map(|(device, number)| Rail::new(number, device, &pool, options));
    let rails: Vec<Rail<'_>> = rails.collect::<Result<_, Failure>>()?;
    let ended: Vec<Result<(), Failure>> = thread::scope(|scope| {
        let threads = rails.into_iter().map(|rail| scope.spawn(|| rail.run(host)));
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(ScopedJoinHandle::join);
        joined
            .map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    // A rail that was down when decode took its leave has found nothing to connect to.
    if ended.iter().any(Result::is_ok) {
        return Ok(());
    }
    ended.into_iter().collect()
}

impl<'o> Rail<'o> {
    fn new(
        number: u8,
        device: &Context,
        pool: &'o Arc<Pool>,
        options: &'o Options,
    ) -> Result<Self, Failure> {
        let (pd, depth) = (device.alloc_pd()?, CHAINS * options.chain);
        Ok(Self {
            number,
            channels: options.channels(&pd, depth, 1),
            memory: pool.register(&pd, AccessFlags::empty(), usize::from(depth) + 1)?,
            pd,
            pool,
            options,
            written: 0,
        })
    }

    /// Connects, again and again, and writes what decode asks for, until it takes its leave.
    fn run(mut self, host: &str) -> Result<(), Failure> {
        let name = self.pd.context().device().name().to_owned();
        let mut meter = Meter::new();
        loop {
            let (mut channel, theirs) = self.connect(host)?;
            let ended = self.serve(&mut channel, theirs, &mut meter);
            let start = Instant::now();
            // To ERR, and drained: or destroyed, after which the device is done with the pages, too.
            channel.abort();
            if let Err(stuck @ CloseError::Stuck) = channel.close() {
                return Err(stuck).context(|| format!("{name} never lets go of the pages"));
            }
            let (took, written) = (start.elapsed().as_secs_f64() * 1e3, self.written);
            let Err(why) = ended else {
                let costs = meter.costs(written);
                return say(format_args!(
                    "{name}: {written} pages written: {costs} a page"
                ));
            };
            say(format_args!("{name}: {why}: quiesced after {took:.1} ms"))?;
        }
    }

    /// Connects to decode, unless that is gone.
    fn connect(&self, host: &str) -> Result<(Channel, RemoteMemoryRegion), Failure> {
        let (common, start) = (&self.options.common, Instant::now());
        loop {
            let peer = Peer::connect(host, common.port, common.limit())?;
            peer.send(&[self.number])?;
            let prepared = self.channels.build()?;
            match prepared.exchange(peer.stream(), common.limit(), &[]) {
                Ok((channel, cache)) => {
                    let cache: Cache = serde_json::from_slice(&cache)?;
                    return Ok((channel, cache.memory_for(self.options)?));
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
        let mut inbox = self.pd.reg_mr(vec![0_u8; ORDER_LEN])?;
        // Each request is replaced before it is started.
        let blank = || Outgoing::send(OwnedBuffer::empty()).into();
        let chain = || {
            OwnedChain::new(
                iter::repeat_with(blank)
                    .take(self.options.chain.into())
                    .collect(),
            )
        };
        let chains = iter::repeat_with(chain).take(CHAINS.into());
        let mut idle: Vec<OwnedChain> = chains.collect::<Result<_, _>>()?;
        loop {
            // The wait has no bound but decode's leaving.
            let received = channel.receive(inbox.scatter_element(..)?)?;
            let message = received.message_in(&inbox).unwrap_or_default();
            let Some(order) = serde_json::from_slice::<Option<Order>>(message)? else {
                return Ok(());
            };
            if order.end > self.options.all_pages() {
                return Err(Failure::new("decode asks for pages that are not there"));
            }
            meter.measure(|| self.write(channel, theirs, &order, &mut idle))?;
        }
    }

    /// Writes the pages of an order. Allocates nothing: chains differ by places and immediates only.
    fn write(
        &mut self,
        channel: &mut Channel,
        theirs: RemoteMemoryRegion,
        order: &Order,
        idle: &mut Vec<OwnedChain>,
    ) -> Result<(), Failure> {
        let start = Instant::now();
        let every = self.options.lose_every.unwrap_or(u64::MAX);
        let is_lost = self.number == 0 && order.generation.is_multiple_of(every);
        let mut pages = order.first..order.end;
        while !pages.is_empty() || idle.len() < usize::from(CHAINS) {
            let Some(mut chain) = idle.pop_if(|_| !pages.is_empty()) else {
                let left = order.timeout.saturating_sub(start.elapsed());
                let completed = channel.wait_completed(Some(left));
                let completed = completed.ok_or_else(|| Failure::new("the deadline has passed"))?;
                self.written += completed.chain.as_ref().map_or(0, OwnedChain::done) as u64;
                idle.extend(completed.chain);
                completed.result?;
                continue;
            };
            let requests = chain.len().min(pages.len());
            for (at, page) in pages.by_ref().take(requests).enumerate() {
                drop(chain.set(at, self.page(page, theirs, order)?)?);
            }
            chain.set_range(..requests)?;
            let _completed_above = channel.start_chain(chain)?;
            if is_lost {
                return Err(Failure::new("lost, as --lose-every asks"));
            }
        }
        Ok(())
    }

    /// Makes a page of the order's generation, and the write that brings it to its place.
    fn page(
        &self,
        page: usize,
        theirs: RemoteMemoryRegion,
        order: &Order,
    ) -> Result<Outgoing<SharedSlice>, Failure> {
        self.pool.stamp(page, order.generation);
        let place = self.pool.bounds(self.options.place(page, order.generation));
        let theirs = theirs.slice(place.start as u64..place.end as u64)?;
        let write = Outgoing::write(self.memory.slice(self.pool.bounds(page))?, theirs);
        let is_announced = order.counts_pages || page + 1 == order.end;
        Ok(if is_announced {
            write.immediate(order.immediate)
        } else {
            write
        })
    }
}
