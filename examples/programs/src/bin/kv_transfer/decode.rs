//! Decode: counts before it asks, checks every byte, and uses no page again before nothing can write to it.

use std::cell::RefCell;
use std::iter;
use std::mem;
use std::ops::Range;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use programs::{Context as _, Failure, Latencies, Listener, Measured, Meter, Pages, runtime, say};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout, timeout_at};
use verbs_async::{AsyncGroup, CqEvents, IncomingMessages};
use verbs_channel::error::CloseError;
use verbs_channel::immediates::ImmediateCounters;
use verbs_channel::{BufferPool, Connect, OwnedBuffer};
use verbs_core::{AccessFlags, Context, RemoteMemoryRegion};

use crate::{Cache, ORDER_LEN, Options, Order};

/// Receives for immediates on a rail.
const RECEIVES: u16 = 256;
/// How long to wait for a rail that has just gone down, while another is up.
const GRACE: Duration = Duration::from_secs(2);

struct Decode<'o> {
    rails: Vec<Rail<'o>>,
    /// How many of them were up at the last request.
    expected: usize,
    listener: TcpListener,
    pages: Pages,
    /// No request is under way, and the last one ended early.
    are_free: bool,
    counters: ImmediateCounters,
    options: &'o Options,
}

struct Rail<'o> {
    name: &'o str,
    group: AsyncGroup,
    memory: RemoteMemoryRegion,
    orders: BufferPool,
    /// The immediates, while it is connected.
    incoming: Option<IncomingMessages>,
}

/// State shared by the rails of a request.
struct Request<'d> {
    generation: u64,
    options: &'d Options,
    counters: &'d ImmediateCounters,
    /// How many pages have come.
    arrived: watch::Sender<usize>,
}

pub(crate) fn run(options: &Options, devices: &[Context]) -> Result<(), Failure> {
    let runtime = runtime(1)?;
    let _entered = runtime.enter();
    let mut decode = Decode::new(options, devices)?;
    let (mut took, mut freed, mut meter) = (Vec::new(), Vec::new(), Meter::new());
    let (mut wrong, mut damaged) = (0, 0);
    for generation in 1..=options.requests {
        runtime.block_on(decode.join())?;
        wrong += decode.written_while_free();
        let start = Instant::now();
        let ended = meter.measure(|| runtime.block_on(decode.request(generation)));
        match &ended {
            Ok(()) => took.push(start.elapsed()),
            Err(why) => {
                let why = format!("generation {generation}: {why}");
                freed.push(runtime.block_on(decode.free(&why))?);
            }
        }
        for page in 0..options.pages {
            let place = options.place(page, generation);
            damaged += decode.pages.damaged(place);
            if ended.is_ok() {
                wrong += decode.pages.wrong(place, page, generation);
            }
        }
    }
    runtime.block_on(decode.leave())?;
    wrong += decode.written_while_free();
    let (took, freed) = (Latencies::new(took), Latencies::new(freed));
    let (done, early, slowest) = (took.len(), freed.len(), freed.percentile(100) / 1e3);
    let (pages, page_len) = options.size();
    let moved = (done * pages) as u64;
    let measured = Measured::new("kv_transfer", page_len as u64, moved, took.total(), true);
    let (gigabytes, rate, costs) = (measured.gigabytes(), measured.rate(), meter.costs(moved));
    say(format_args!(
        "{done} requests of {pages} pages of {page_len} bytes: {wrong} wrong bytes, {damaged} of canaries\n\
         {early} ended early: their pages were free after {slowest:.1} ms at most\n\
         {gigabytes:.3} GB/s, {rate:.0} pages/s: {costs} a page\n\
         requests in {took}"
    ))?;
    measured.print()?;
    match (wrong, damaged) {
        (0, 0) => Ok(()),
        _ => Err(Failure::new("pages or canaries were damaged")),
    }
}

impl<'o> Decode<'o> {
    fn new(options: &'o Options, devices: &'o [Context]) -> Result<Self, Failure> {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let domains = devices
            .iter()
            .map(Context::alloc_pd)
            .collect::<Result<Vec<_>, _>>()?;
        let pages = Pages::new(options.memory, options.size(), &domains, access)?;
        let rails = devices.iter().zip(&domains).map(|(device, pd)| {
            let events = CqEvents::create_tokio(device)?;
            let mut channels = options.common.channels(pd);
            channels.max_recv_wr = RECEIVES.into();
            Ok(Rail {
                name: device.device().name(),
                group: AsyncGroup::new(channels, 1, &events)?,
                memory: pages.remote(pd)?,
                orders: BufferPool::new(pd, ORDER_LEN, 1)?,
                incoming: None,
            })
        });
        let rails: Vec<Rail<'_>> = rails.collect::<Result<_, Failure>>()?;
        let listener = Listener::bind(options.common.port)?;
        let names: Vec<_> = rails.iter().map(|rail| rail.name).collect();
        let (names, port) = (names.join(" and "), listener.port());
        say(format_args!("waiting on {names}, TCP port {port}"))?;
        Ok(Self {
            counters: ImmediateCounters::new(u16::try_from(rails.len())?),
            expected: rails.len(),
            rails,
            listener: TcpListener::from_std(listener.into_socket())?,
            pages,
            are_free: false,
            options,
        })
    }

    /// Connects rails that are down: at least one, and those that have just gone down.
    async fn join(&mut self) -> Result<(), Failure> {
        let (mut since, mut up) = (Instant::now(), up(&self.rails));
        while up < self.rails.len() {
            let wait = match up {
                0 => self.options.common.wait(),
                _ if up < self.expected => GRACE,
                _ => Duration::ZERO,
            };
            let accepted = timeout_at((since + wait).into(), self.listener.accept()).await;
            let Ok(accepted) = accepted else { break };
            let meet = async { self.meet(accepted?.0).await };
            // One that is silent or fails is as none: it can come again.
            if let Ok(Ok(())) = timeout(GRACE, meet).await {
                (since, up) = (Instant::now(), self::up(&self.rails));
            }
        }
        self.expected = up;
        let some = (up > 0).then_some(());
        some.ok_or_else(|| Failure::new("no prefill came (--wait waits longer)"))
    }

    /// Connects the rail at the other end of a stream, which names it in a byte.
    async fn meet(&mut self, mut stream: TcpStream) -> Result<(), Failure> {
        let rail = self.rails.get_mut(usize::from(stream.read_u8().await?));
        let Some(rail) = rail.filter(|rail| rail.incoming.is_none()) else {
            return Err(Failure::new("prefill has another number of rails"));
        };
        let (size, memory) = (self.options.size(), rail.memory);
        let cache = serde_json::to_vec(&Cache { size, memory })?;
        let options = Connect::within(self.options.common.limit()).private_data(&cache);
        let met = rail.group.exchange(stream.into_std()?, options).await?;
        let receives = iter::repeat_with(OwnedBuffer::empty).take(RECEIVES.into());
        rail.incoming = Some(met.channel.into_incoming(receives));
        say(format_args!("rail {} is up", rail.name))
    }

    /// A request: ready when all pages are there. When it fails, or is dropped before, its pages are not
    /// [free](Self::free) yet.
    async fn request(&mut self, generation: u64) -> Result<(), Failure> {
        let (options, all) = (self.options, self.options.pages);
        let request = Request {
            generation,
            options,
            counters: &self.counters,
            arrived: watch::Sender::new(0),
        };
        let mut arrived = request.arrived.subscribe();
        let every = options.abort_every.unwrap_or(u64::MAX);
        // The deadline first: whatever is there after it is late, such as rails that fail since prefill has given up.
        let ended = tokio::select! {
            biased;
            () = sleep(options.deadline()) => "its deadline has passed",
            _ = arrived.wait_for(|arrived| arrived * 2 >= all), if generation.is_multiple_of(every) => "aborted",
            moved = request.carry_out(&mut self.rails) => return moved,
        };
        let arrived = *arrived.borrow();
        let why = format!("{ended} with {arrived} of {all} pages there");
        Err(Failure::new(why))
    }

    /// Ends all rails: after this nothing writes to the pages, whatever prefill does. Returns how long it
    /// took.
    async fn free(&mut self, why: &str) -> Result<Duration, Failure> {
        let start = Instant::now();
        try_join_all(self.rails.iter_mut().map(Rail::end)).await?;
        let took = start.elapsed();
        let ms = took.as_secs_f64() * 1e3;
        (0..self.options.pages).for_each(|place| self.pages.free(place));
        self.are_free = true;
        say(format_args!("{why}: its pages were free after {ms:.1} ms"))?;
        Ok(took)
    }

    /// How many bytes have been written to pages since they were freed. They are not free from now on.
    fn written_while_free(&mut self) -> u32 {
        match mem::take(&mut self.are_free) {
            true => (0..self.options.pages)
                .map(|place| self.pages.written(place))
                .sum(),
            false => 0,
        }
    }

    /// Takes leave of prefill, whose rails may be about to come back, and ends all rails.
    async fn leave(&mut self) -> Result<(), Failure> {
        drop(timeout(GRACE, self.join()).await);
        // One that is gone needs no leave.
        drop(join_all(self.rails.iter().map(|rail| rail.send(None))).await);
        try_join_all(self.rails.iter_mut().map(Rail::end)).await?;
        Ok(())
    }
}

impl Request<'_> {
    /// Gives each rail a part of the pages, and the part of a rail that fails to another one.
    async fn carry_out(&self, rails: &mut [Rail<'_>]) -> Result<(), Failure> {
        let all = self.options.pages;
        let each = all.div_ceil(up(rails).max(1));
        let parts = (0..all).step_by(each);
        let parts = parts.map(|first| first..all.min(first + each)).collect();
        let parts: RefCell<Vec<_>> = RefCell::new(parts);
        while !parts.borrow().is_empty() {
            let up = rails.iter_mut().filter(|rail| rail.incoming.is_some());
            let moves = up.map(async |rail| {
                let part = parts.borrow_mut().pop();
                if let Some(part) = part
                    && let Err(why) = self.fetch(rail, &part).await
                {
                    parts.borrow_mut().push(part);
                    say(format_args!("rail {} failed: {why}", rail.name))?;
                    rail.end().await?;
                }
                Ok::<_, Failure>(())
            });
            if try_join_all(moves).await?.is_empty() {
                return Err(Failure::new("all rails have failed"));
            }
        }
        Ok(())
    }

    /// Asks a rail for pages, and counts their immediates: all again for pages that a rail has lost. The counter
    /// ends with this, and an immediate that is still on its way is stale then.
    async fn fetch(&self, rail: &mut Rail<'_>, pages: &Range<usize>) -> Result<(), Failure> {
        let counter = self.counters.begin();
        let counter = counter.ok_or_else(|| Failure::new("no counter is free"))?;
        let each = match self.options.count_rails {
            true => pages.len(),
            false => 1,
        };
        let order = Order {
            generation: self.generation,
            pages: pages.clone(),
            immediate: counter.immediate(),
            each,
            timeout: self.options.deadline(),
        };
        rail.send(Some(&order)).await?;
        let incoming = rail.incoming.as_mut().ok_or_else(is_down)?;
        while (counter.count() as usize) * each < pages.len() {
            let message = incoming.next().await.ok_or_else(is_down)??;
            let immediate = message.success().imm_data();
            if immediate.is_some_and(|immediate| self.counters.record(immediate)) {
                self.arrived.send_modify(|arrived| *arrived += each);
            }
        }
        Ok(())
    }
}

impl Rail<'_> {
    /// Sends an order, or takes leave.
    async fn send(&self, order: Option<&Order>) -> Result<(), Failure> {
        let incoming = self.incoming.as_ref().ok_or_else(is_down)?;
        let message = self.orders.take_with(&serde_json::to_vec(&order)?)?;
        let message = message.ok_or_else(|| Failure::new("the last order is still in flight"))?;
        incoming.channel().send(message).result().await?;
        Ok(())
    }

    /// Destroys the queue pair: after this, nothing is written over this rail.
    async fn end(&mut self) -> Result<(), Failure> {
        if let Some(incoming) = &self.incoming {
            incoming.channel().abort();
            if let Err(error @ CloseError::Stuck) = incoming.channel().close().await {
                Err(error).context(|| format!("the pages are never free of {}", self.name))?;
            }
        }
        self.incoming = None;
        Ok(())
    }
}

/// How many of them are connected.
fn up(rails: &[Rail<'_>]) -> usize {
    rails.iter().filter(|rail| rail.incoming.is_some()).count()
}

fn is_down() -> Failure {
    Failure::new("the rail is down")
}
