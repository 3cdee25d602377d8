//! Decode: counts before it asks, checks every byte, and uses no page again before nothing can write to it.

use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use examples::{Context as _, Failure, Latencies, Listener, Measured, Meter, runtime, say};
use futures_util::future::join_all;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout, timeout_at};
use verbs_async::{AsyncGroup, CqEvents, IncomingMessages};
use verbs_channel::{BufferPool, ImmediateCounters, OwnedBuffer, Recorded, SharedMemory};
use verbs_core::{AccessFlags, Context};

use crate::Options;
use crate::pool::Pool;
use crate::protocol::{Cache, ORDER_LEN, Order};

/// Receives for immediates on a rail.
const RECEIVES: u16 = 256;
/// How long to wait for a rail that has just gone down, while another is up.
const GRACE: Duration = Duration::from_secs(2);

struct Rail {
    name: String,
    group: AsyncGroup,
    memory: SharedMemory,
    orders: BufferPool,
    /// The immediates, while it is connected.
    incoming: Option<IncomingMessages>,
}

struct Decode<'o> {
    rails: Vec<Rail>,
    /// How many of them were up at the last request.
    expected: usize,
    listener: TcpListener,
    pool: Arc<Pool>,
    counters: ImmediateCounters,
    options: &'o Options,
}

/// What the rails of a request share.
struct Request<'d> {
    counters: &'d ImmediateCounters,
    options: &'d Options,
    generation: u64,
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
        let start = Instant::now();
        let ended = meter.measure(|| runtime.block_on(decode.request(generation)));
        match &ended {
            Ok(()) => took.push(start.elapsed()),
            Err(why) => freed.push(decode.free(&format!("generation {generation}: {why}"))?),
        }
        for page in 0..options.all_pages() {
            let place = options.place(page, generation);
            damaged += decode.pool.damaged(place);
            if ended.is_ok() {
                wrong += decode.pool.wrong(place, page, generation);
            }
        }
    }
    runtime.block_on(decode.leave());
    let (done, early, pages) = (took.len(), freed.len(), options.all_pages());
    let (took, freed) = (Latencies::new(took), Latencies::new(freed));
    let (moved, page_len) = ((done * pages) as u64, options.page_len());
    let rate = moved as f64 / took.total().as_secs_f64().max(1e-9);
    let (gigabytes, costs) = (rate * page_len as f64 / 1e9, meter.costs(moved));
    let slowest = freed.percentile(100) / 1e3;
    say(format_args!(
        "{done} requests of {pages} pages of {page_len} bytes: {wrong} wrong bytes, {damaged} of canaries\n\
         {early} ended early: their pages were free after {slowest:.1} ms at most\n\
         {gigabytes:.3} GB/s, {rate:.0} pages/s: {costs} a page\n\
         requests in {took}"
    ))?;
    Measured::new("kv_transfer", page_len as u64, moved, took.total(), true).print()?;
    match (wrong, damaged) {
        (0, 0) => Ok(()),
        _ => Err(Failure::new("pages or canaries were damaged")),
    }
}

impl<'o> Decode<'o> {
    fn new(options: &'o Options, devices: &[Context]) -> Result<Self, Failure> {
        let pool = Pool::new(options)?;
        let rails = devices
            .iter()
            .map(|device| Rail::new(device, &pool, options));
        let rails: Vec<Rail> = rails.collect::<Result<_, Failure>>()?;
        let listener = Listener::bind(options.common.port)?;
        let names: Vec<_> = rails.iter().map(|rail| &rail.name[..]).collect();
        let (names, port) = (names.join(" and "), listener.port());
        say(format_args!("waiting on {names}, TCP port {port}"))?;
        Ok(Self {
            counters: ImmediateCounters::new(u16::try_from(rails.len())?),
            expected: rails.len(),
            rails,
            listener: TcpListener::from_std(listener.into_socket())?,
            pool,
            options,
        })
    }

    /// Connects rails that are down: at least one, and those that have just gone down.
    async fn join(&mut self) -> Result<(), Failure> {
        let (mut since, mut up) = (Instant::now(), self.up());
        while up < self.rails.len() {
            let wait = match up {
                0 => self.options.common.wait(),
                _ if up < self.expected => GRACE,
                _ => Duration::ZERO,
            };
            match timeout_at((since + wait).into(), self.listener.accept()).await {
                Err(_elapsed) if up > 0 => break,
                Err(_elapsed) => return Err(Failure::new("no prefill came (--wait waits longer)")),
                Ok(accepted) => {
                    let meet = async { self.meet(accepted?.0).await };
                    // One that is silent or fails is as none: it can come again.
                    if let Ok(Ok(())) = timeout(GRACE, meet).await {
                        (since, up) = (Instant::now(), self.up());
                    }
                }
            }
        }
        self.expected = up;
        Ok(())
    }

    /// Connects the rail at the other end of a stream, which names it in a byte.
    async fn meet(&mut self, mut stream: TcpStream) -> Result<(), Failure> {
        let number = stream.read_u8().await?;
        let rail = self.rails.get_mut(usize::from(number));
        let Some(rail) = rail.filter(|rail| !rail.is_up()) else {
            return Err(Failure::new("prefill has another number of rails"));
        };
        let cache = Cache {
            pages: self.options.all_pages(),
            page_len: self.options.page_len(),
            memory: rail.memory.remote(),
        };
        let cache = serde_json::to_vec(&cache)?;
        let (channel, _) = rail.group.exchange_tokio(stream, &cache).await?;
        let receives = iter::repeat_with(OwnedBuffer::empty).take(RECEIVES.into());
        rail.incoming = Some(channel.into_incoming(receives));
        say(format_args!("rail {} is up", rail.name))
    }

    fn up(&self) -> usize {
        self.rails.iter().filter(|rail| rail.is_up()).count()
    }

    /// A request: ready when all pages are there. When it fails, or is dropped before, its pages are not
    /// [free](Self::free) yet.
    async fn request(&mut self, generation: u64) -> Result<(), Failure> {
        let options = self.options;
        let request = Request {
            counters: &self.counters,
            options,
            generation,
            arrived: watch::Sender::new(0),
        };
        let mut arrived = request.arrived.subscribe();
        let (all, aborts) = (options.all_pages(), options.abort_every);
        let aborts = aborts.is_some_and(|every| generation.is_multiple_of(every));
        let ended = tokio::select! {
            moved = request.carry_out(&mut self.rails) => return moved,
            _ = arrived.wait_for(|arrived| arrived * 2 >= all), if aborts => "aborted",
            () = sleep(Duration::from_millis(options.deadline)) => "its deadline has passed",
        };
        let arrived = *arrived.borrow();
        Err(Failure::new(format!(
            "{ended} with {arrived} of {all} pages there"
        )))
    }

    /// Ends all rails: after this nothing writes to the pages, whatever prefill does. Returns how long it
    /// took.
    fn free(&mut self, why: &str) -> Result<Duration, Failure> {
        let start = Instant::now();
        self.rails.iter_mut().try_for_each(Rail::end)?;
        let took = start.elapsed();
        let shown = took.as_secs_f64() * 1e3;
        say(format_args!(
            "{why}: its pages were free after {shown:.1} ms"
        ))?;
        Ok(took)
    }

    /// Takes leave of prefill, whose rails may be about to come back.
    async fn leave(&mut self) {
        drop(timeout(GRACE, self.join()).await);
        let up = self.rails.iter().filter(|rail| rail.is_up());
        // One that is gone needs no leave.
        drop(join_all(up.map(|rail| rail.send(None))).await);
    }
}

impl Request<'_> {
    /// Gives each rail a part of the pages, and the part of a rail that fails to another one.
    async fn carry_out(&self, rails: &mut [Rail]) -> Result<(), Failure> {
        let up = rails.iter().filter(|rail| rail.is_up()).count();
        let all = self.options.all_pages();
        let each = all.div_ceil(up.max(1));
        let firsts = (0..all).step_by(each);
        let mut parts: Vec<_> = firsts.map(|first| first..all.min(first + each)).collect();
        while !parts.is_empty() {
            let up: Vec<_> = rails.iter_mut().filter(|rail| rail.is_up()).collect();
            if up.is_empty() {
                return Err(Failure::new("all rails have failed"));
            }
            let later = parts.split_off(parts.len().min(up.len()));
            let moves = up.into_iter().zip(parts).map(async |(rail, part)| {
                let Err(why) = self.fetch(rail, &part).await else {
                    return Ok(None);
                };
                say(format_args!("rail {} failed: {why}", rail.name))?;
                rail.end()?;
                Ok(Some(part))
            });
            let failed: Result<Vec<_>, Failure> = join_all(moves).await.into_iter().collect();
            parts = failed?.into_iter().flatten().chain(later).collect();
        }
        Ok(())
    }

    /// Asks a rail for pages, and counts their immediates: all again for pages that a rail has lost. The counter
    /// ends with this, and an immediate that is still on its way is stale then.
    async fn fetch(&self, rail: &mut Rail, part: &Range<usize>) -> Result<(), Failure> {
        let counter = self.counters.begin();
        let counter = counter.ok_or_else(|| Failure::new("no counter is free"))?;
        let order = Order {
            generation: self.generation,
            first: part.start,
            end: part.end,
            immediate: counter.immediate(),
            counts_pages: !self.options.count_rails,
            timeout: Duration::from_millis(self.options.deadline),
        };
        rail.send(Some(&order)).await?;
        let incoming = rail.incoming.as_mut().ok_or_else(is_down)?;
        let expected = order.immediates();
        while counter.count() < expected {
            let message = incoming.next().await.ok_or_else(is_down)??;
            let immediate = message.success().imm_data();
            let recorded = immediate.map(|immediate| self.counters.record(immediate));
            if recorded == Some(Recorded::Counted) {
                let pages = part.len() / expected as usize;
                self.arrived.send_modify(|arrived| *arrived += pages);
            }
        }
        Ok(())
    }
}

impl Rail {
    fn new(device: &Context, pool: &Arc<Pool>, options: &Options) -> Result<Self, Failure> {
        let pd = device.alloc_pd()?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let events = CqEvents::create_tokio(device)?;
        Ok(Self {
            name: device.device().name().to_owned(),
            group: AsyncGroup::new(options.channels(&pd, 1, RECEIVES), 1, &events)?,
            memory: pool.register(&pd, access, 0)?,
            orders: BufferPool::new(&pd, ORDER_LEN, 1)?,
            incoming: None,
        })
    }

    const fn is_up(&self) -> bool {
        self.incoming.is_some()
    }

    /// Sends an order, or takes leave.
    async fn send(&self, order: Option<&Order>) -> Result<(), Failure> {
        let incoming = self.incoming.as_ref().ok_or_else(is_down)?;
        let message = self.orders.take_with(&serde_json::to_vec(&order)?)?;
        let message = message.ok_or_else(|| Failure::new("the last order is still in flight"))?;
        incoming.channel().send(message).result().await?;
        Ok(())
    }

    /// Destroys the queue pair: after this, nothing is written over this rail.
    fn end(&mut self) -> Result<(), Failure> {
        let Some(incoming) = self.incoming.take() else {
            return Ok(());
        };
        let destroyed = incoming.channel().destroy();
        destroyed.context(|| format!("the pages are never free of {}", self.name))
    }
}

fn is_down() -> Failure {
    Failure::new("the rail is down")
}
