//! Decode: counts before it asks, checks every byte, and uses no page again before nothing can write to it.

use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use examples::{Context as _, Failure, Latencies, Listener, Measured, runtime, say};
use futures_util::future::join_all;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout, timeout_at};
use verbs_async::{AsyncGroup, CqEvents, IncomingMessages};
use verbs_channel::{
    BufferPool, Channel, DownReason, ImmediateCounters, OwnedBuffer, Recorded, SharedMemory,
};
use verbs_core::{AccessFlags, Context, RemoteMemoryRegion};

use crate::Options;
use crate::cost::Meter;
use crate::pool::Pool;
use crate::protocol::{Cache, ORDER_LEN, Order};

/// Receives for immediates on a rail.
const RECEIVES: u16 = 256;
/// How long to wait for a rail that has just gone down, while another is up.
const GRACE: Duration = Duration::from_secs(2);

struct Rail {
    name: String,
    group: AsyncGroup,
    /// Registered as long as this lives, and how prefill reaches it.
    memory: (SharedMemory, RemoteMemoryRegion),
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
    /// The longest time from the end of a request to its pages being free.
    slowest: Duration,
}

/// What the rails of a request share.
struct Request<'d> {
    counters: &'d ImmediateCounters,
    options: &'d Options,
    generation: u64,
    /// How many pages have come.
    arrived: watch::Sender<usize>,
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let runtime = runtime(1)?;
    let _entered = runtime.enter();
    let mut decode = Decode::new(options)?;
    let (mut took, mut meter) = (Vec::new(), Meter::new());
    let (mut wrong, mut damaged) = (0, 0);
    for generation in 1..=options.requests {
        runtime.block_on(decode.join())?;
        let start = Instant::now();
        let ended = meter.measure(|| runtime.block_on(decode.request(generation)));
        match &ended {
            Ok(()) => took.push(start.elapsed()),
            Err(why) => decode.free(&format!("generation {generation}: {why}"))?,
        }
        for page in 0..options.all_pages() {
            let place = options.place(page, generation);
            let found = decode.pool.check(place, page, generation);
            wrong += if ended.is_ok() { found.0 } else { 0 };
            damaged += found.1;
        }
    }
    runtime.block_on(decode.leave());
    let (pages, page_len) = (options.all_pages() as u64, options.page_len() as u64);
    let (count, slowest) = (took.len() as u64, decode.slowest.as_secs_f64() * 1e3);
    let (early, moved, took) = (
        options.requests - count,
        count * pages,
        Latencies::new(took),
    );
    let rate = moved as f64 / took.total().as_secs_f64().max(1e-9);
    let (gigabytes, costs) = (rate * page_len as f64 / 1e9, meter.per_page(moved));
    let [median, p99, max] = [50, 99, 100].map(|percent| took.percentile(percent));
    say(format_args!(
        "{count} requests of {pages} pages of {page_len} bytes: {wrong} wrong bytes, {damaged} of canaries\n\
         {early} ended early: their pages were free after {slowest:.1} ms at most\n\
         {gigabytes:.3} GB/s, {rate:.0} pages/s: {costs}\n\
         a request took {median:.0} us (median), {p99:.0} us (99 %), {max:.0} us at most"
    ))?;
    Measured::new("kv_transfer", page_len, moved, took.total(), true).print()?;
    match (wrong, damaged) {
        (0, 0) => Ok(()),
        _ => Err(Failure::new("pages or canaries were damaged")),
    }
}

impl<'o> Decode<'o> {
    fn new(options: &'o Options) -> Result<Self, Failure> {
        let pool = Pool::new(options)?;
        let rails = options
            .open()?
            .into_iter()
            .map(|context| Rail::new(&context, &pool, options));
        let rails: Vec<Rail> = rails.collect::<Result<_, Failure>>()?;
        let listener = Listener::bind(options.common.port)?;
        let names: Vec<&str> = rails.iter().map(|rail| &rail.name[..]).collect();
        say(format_args!(
            "waiting on {}, TCP port {}",
            names.join(" and "),
            listener.port()
        ))?;
        Ok(Self {
            counters: ImmediateCounters::new(u16::try_from(rails.len())?),
            expected: rails.len(),
            rails,
            listener: TcpListener::from_std(listener.into_socket())?,
            pool,
            options,
            slowest: Duration::ZERO,
        })
    }

    /// Connects rails that are down: at least one, and those that have just gone down.
    async fn join(&mut self) -> Result<(), Failure> {
        let (start, mut last, mut up) = (Instant::now(), Instant::now(), self.up());
        while up < self.rails.len() {
            let until = match up {
                0 => start + self.options.common.wait(),
                _ if up < self.expected => last + GRACE,
                _ => last,
            };
            let joined = match timeout_at(until.into(), self.listener.accept()).await {
                Err(_elapsed) => Err(Failure::new("no prefill came (--wait waits longer)")),
                Ok(Err(why)) => Err(why).context(|| "cannot accept a rail"),
                Ok(Ok((stream, _))) => timeout(GRACE, self.meet(stream))
                    .await
                    .unwrap_or_else(|_elapsed| Err(Failure::new("prefill is silent"))),
            };
            match joined {
                Ok(()) => (up, last) = (self.up(), Instant::now()),
                Err(why) if up == 0 && Instant::now() >= until => return Err(why),
                Err(_) if Instant::now() >= until => break,
                Err(_) => {}
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
            memory: rail.memory.1,
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

    /// Ends all rails: after this nothing writes to the pages, whatever prefill does.
    fn free(&mut self, why: &str) -> Result<(), Failure> {
        let start = Instant::now();
        self.rails.iter_mut().try_for_each(Rail::end)?;
        self.slowest = self.slowest.max(start.elapsed());
        let took = start.elapsed().as_secs_f64() * 1e3;
        say(format_args!(
            "{why}: its pages were free after {took:.1} ms"
        ))
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
    fn new(context: &Context, pool: &Arc<Pool>, options: &Options) -> Result<Self, Failure> {
        let pd = context.alloc_pd()?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let memory = pool.register(&pd, access, 0)?;
        let channels = Channel::builder(&pd)
            .port_num(options.common.ib_port)
            .gid_index(options.common.gid_idx)
            .max_send_wr(1)
            .max_recv_wr(u32::from(RECEIVES));
        Ok(Self {
            name: context.device().name().to_owned(),
            group: AsyncGroup::new(channels, 1, &CqEvents::create_tokio(context)?)?,
            memory,
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
        let (sent, _block) = incoming.channel().send(message).await;
        sent?;
        Ok(())
    }

    /// Destroys the queue pair: after this, nothing is written over this rail.
    fn end(&mut self) -> Result<(), Failure> {
        let Some(incoming) = self.incoming.take() else {
            return Ok(());
        };
        self.group.destroy_all(DownReason::Closed);
        match incoming.channel().endpoint() {
            None => Ok(()),
            Some(_) => Err(Failure::new("stuck: the pages are never free")),
        }
    }
}

fn is_down() -> Failure {
    Failure::new("the rail is down")
}
