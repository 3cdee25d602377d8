//! Prefill: a thread for each rail, which writes the pages that decode asks for.

use std::panic::resume_unwind;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use programs::{Context as _, Failure, Meter, Pages, Peer, say};
use verbs_channel::buffer::SharedSlice;
use verbs_channel::engine::TransferError;
use verbs_channel::error::CloseError;
use verbs_channel::{Channel, ChannelConfig, Outgoing, Transfer};
use verbs_core::{AccessFlags, Context, RemoteMemoryRegion};

use crate::{Cache, ORDER_LEN, Options, Order};

/// Chains that are in flight on a rail.
const CHAINS: u16 = 4;
/// The pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(10);

struct Rail<'o> {
    number: u8,
    device: &'o Context,
    channels: ChannelConfig,
    pages: &'o Pages,
    options: &'o Options,
    // Empty between orders.
    writes: Transfer,
    pages_written: u64,
}

/// A rail that is connected.
struct Link<'r, 'o> {
    rail: &'r mut Rail<'o>,
    channel: Channel,
    theirs: RemoteMemoryRegion,
}

pub(crate) fn run(options: &Options, devices: &[Context], host: &str) -> Result<(), Failure> {
    let depth = CHAINS * options.chain;
    let domains = devices
        .iter()
        .map(Context::alloc_pd)
        .collect::<Result<Vec<_>, _>>()?;
    let pages = &Pages::new(
        options.memory,
        options.size(),
        &domains,
        AccessFlags::empty(),
    )?;
    // Room for the slices of all pages: more than ever before would allocate.
    let slices = (0..options.pages).map(|page| pages.slice(page));
    drop(slices.collect::<Result<Vec<_>, _>>()?);
    let rails = devices
        .iter()
        .zip(&domains)
        .zip(0..)
        .map(|((device, pd), number)| {
            let mut channels = options.common.channels(pd);
            channels.max_send_wr = depth.into();
            Ok(Rail {
                number,
                device,
                channels,
                pages,
                options,
                writes: Transfer::with_capacity(options.pages),
                pages_written: 0,
            })
        });
    let rails: Vec<Rail<'_>> = rails.collect::<Result<_, Failure>>()?;
    thread::scope(|scope| {
        let threads = rails.into_iter().map(|rail| scope.spawn(|| rail.run(host)));
        let threads: Vec<_> = threads.collect();
        let ended = threads.into_iter().map(ScopedJoinHandle::join);
        let ended = ended.map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic)));
        // A rail that was down when decode took its leave has found nothing to connect to.
        ended.reduce(Result::or).unwrap_or(Ok(()))
    })
}

impl<'o> Rail<'o> {
    /// Connects, again and again, and writes what decode asks for, until it takes its leave.
    fn run(mut self, host: &str) -> Result<(), Failure> {
        let (name, mut meter) = (self.device.device().name(), Meter::new());
        loop {
            let mut link = self.connect(host)?;
            let (ended, start) = (link.serve(&mut meter), Instant::now());
            // To ERR, and drained: or destroyed, after which the device is done with the pages, too.
            link.channel.abort();
            if let Err(stuck @ CloseError::Stuck) = link.channel.close() {
                return Err(stuck).context(|| format!("{name} never lets go of the pages"));
            }
            let (took, count) = (start.elapsed().as_secs_f64() * 1e3, self.pages_written);
            let Err(why) = ended else {
                let costs = meter.costs(count);
                return say(format_args!(
                    "{name}: {count} pages written: {costs} a page"
                ));
            };
            say(format_args!("{name}: {why}: quiesced after {took:.1} ms"))?;
        }
    }

    /// Connects to decode, unless that is gone.
    fn connect(&mut self, host: &str) -> Result<Link<'_, 'o>, Failure> {
        let (common, start) = (&self.options.common, Instant::now());
        let met = loop {
            let peer = Peer::connect(host, common.port, common.limit())?;
            peer.send(&[self.number])?;
            let prepared = self.channels.build()?;
            match prepared.exchange(peer.stream(), common.limit()) {
                Ok(connected) => break connected,
                Err(why) if start.elapsed() >= common.limit() => return Err(why.into()),
                // The device may have no link now, and decode is in the middle of a request.
                Err(_) => thread::sleep(PAUSE),
            }
        };
        let (channel, cache) = (met.channel, met.private_data);
        let cache: Cache = serde_json::from_slice(&cache)?;
        if cache.size != self.options.size() {
            return Err(Failure::new("decode has another number or length of pages"));
        }
        Ok(Link {
            rail: self,
            channel,
            theirs: cache.memory,
        })
    }
}

impl Link<'_, '_> {
    /// Carries out orders until there is none.
    fn serve(&mut self, meter: &mut Meter) -> Result<(), Failure> {
        let mut inbox = self.channel.pd().reg_mr(vec![0_u8; ORDER_LEN])?;
        loop {
            // The wait has no bound but decode's leaving.
            let received = self.channel.receive(inbox.scatter_element(..)?)?;
            let message = received.message_in(&inbox).unwrap_or_default();
            let Some(order) = serde_json::from_slice::<Option<Order>>(message)? else {
                return Ok(());
            };
            if order.pages.end > self.rail.options.pages {
                return Err(Failure::new("decode asks for pages that are not there"));
            }
            meter.measure(|| self.write(&order))?;
        }
    }

    /// Writes the pages of an order, in chains. It returns when the device is done with them, by its deadline.
    fn write(&mut self, order: &Order) -> Result<(), Failure> {
        let deadline = Instant::now() + order.timeout;
        let every = self.rail.options.lose_every.unwrap_or(u64::MAX);
        let is_lost = self.rail.number == 0 && order.generation.is_multiple_of(every);
        let pages = order.pages.len() >> u32::from(is_lost);
        for page in order.pages.clone().take(pages) {
            let write = self.page(page, order)?;
            self.rail.writes.add(self.channel.id(), write);
        }
        let ended = self.channel.transfer(&mut self.rail.writes, Some(deadline));
        let outcomes = self.rail.writes.drain();
        self.rail.pages_written += outcomes.filter(|page| page.result.is_ok()).count() as u64;
        match ended {
            Ok(()) if is_lost => Err(Failure::new("lost, as --lose-every asks")),
            Ok(()) => Ok(()),
            Err(TransferError::Failed { first, .. }) => Err(first.into()),
            Err(stuck) => Err(stuck.into()),
        }
    }

    /// Makes a page of the order's generation, and the write that brings it to its place.
    fn page(&self, page: usize, order: &Order) -> Result<Outgoing<SharedSlice>, Failure> {
        let rail = &*self.rail;
        rail.pages.stamp(page, order.generation);
        let place = rail.options.place(page, order.generation);
        let place = rail.pages.bounds(place);
        let theirs = self.theirs.slice(place.start as u64..place.end as u64)?;
        let write = Outgoing::write(rail.pages.slice(page)?, theirs);
        let is_announced = (page + 1 - order.pages.start).is_multiple_of(order.each);
        match is_announced {
            true => Ok(write.immediate(order.immediate)),
            false => Ok(write),
        }
    }
}
