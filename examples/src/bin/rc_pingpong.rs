//! Sends a message back and forth over a reliable connection, as `ibv_rc_pingpong` does.
//!
//! It speaks to C's program in both directions: same options, same exchange over TCP, same output.
//! Where C needs `-g` to work on RoCE, this one chooses the GID by itself.
#![expect(unsafe_code, reason = "posts work requests")]

use std::ops::Deref as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use examples::{
    Address, AddressError, Common, Context as _, Failure, Listener, Measured, Patience, Peer,
    Progress, run, say,
};
use verbs_core::{
    AccessFlags, CompletionChannel, CompletionQueue, Context, GatherElement, MaximumTransferUnit,
    MemoryRegion, PollSlot, PostError, PreparedQueuePair, ProtectionDomain, QueuePair,
    ReceiveWorkRequest, SendWorkRequest, SharedElement, SharedRegion, WorkSuccess,
};

/// Send a message back and forth over a reliable connection (RC), like `ibv_rc_pingpong`
///
/// Either end may be C's `ibv_rc_pingpong`, with the same -s and -n (and -g, which C needs on RoCE).
#[derive(Debug, Parser)]
#[command(name = "rc_pingpong", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Size of the message in bytes
    #[arg(short, long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,

    /// Path MTU, the same at both ends: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, value_name = "BYTES", default_value = "1024")]
    mtu: MaximumTransferUnit,

    /// How many receives to post at a time
    #[arg(short, long, value_name = "COUNT", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rx_depth: u32,

    /// How many messages each side sends
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,

    /// Service level
    #[arg(short = 'l', long, value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    sl: u8,

    /// Sleep until completions are announced, instead of polling
    #[arg(short, long)]
    events: bool,

    /// Check every byte of every message
    #[arg(short, long)]
    chk: bool,
}

const EXAMPLES: &str = "\
Examples:
  rc_pingpong                           be the server, on the first active device
  rc_pingpong 192.0.2.1                 be its client
  rc_pingpong -d rxe0 -s 65536 -c       64 KiB messages over rxe0, every byte checked
  rc_pingpong -d rxe1 -s 65536 -c HOST  the client for that; either may be ibv_rc_pingpong";

/// What completions are told apart by, as in C.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

fn main() -> ExitCode {
    run(pingpong)
}

fn pingpong(options: &Options) -> Result<(), Failure> {
    let Options { common, iters, .. } = options;
    let context = examples::open(common)?;
    let pd = context.alloc_pd()?;
    let buffers = Buffers::new(&pd, options)?;
    let (cq, channel) = completions(&context, options)?;
    let prepared = QueuePair::builder(&pd, &cq, &cq)
        .max_send_wr(1)
        .max_recv_wr(options.rx_depth)
        .maybe_port_num(common.ib_port)
        .maybe_gid_index(common.gid_idx)
        .qp_access_flags(AccessFlags::empty())
        .path_mtu(options.mtu)
        .max_rd_atomic(1)
        .max_dest_rd_atomic(1)
        .sl(options.sl)
        .build()?;
    let port_num = prepared.endpoint().port_num();
    examples::check_size(&context, port_num, options.size.into())?;
    let mut element = buffers.receive()?;
    receive(&mut element, options.rx_depth, |receive| {
        // SAFETY: `buffers` outlives the queue pair, which is declared after it; its receive buffer
        // is a shared region, of which only copies are taken.
        unsafe { prepared.post_receive(receive) }
    })?;
    if channel.is_some() {
        cq.req_notify(false)?;
    }
    let qp = connect(prepared, common)?;
    let mut game = Game {
        buffers: &buffers,
        patience: Patience::new(common.limit(), None),
        options,
        posted: options.rx_depth,
        received: 0,
        sent: 0,
        underway: RECEIVE,
        qp,
        cq,
        channel,
    };
    let took = game.play(common.host.is_some())?;
    game.close()?;
    report(options, took)?;
    if common.host.is_some() {
        let (size, iters) = (options.size.into(), (*iters).into());
        Measured::new("send", size, iters, took, options.chk).tell()?;
    }
    Ok(())
}

/// The queue, with a channel that announces its completions if they are to be slept for.
fn completions(
    context: &Context,
    options: &Options,
) -> Result<(CompletionQueue, Option<CompletionChannel>), Failure> {
    let channel = options.events.then(|| CompletionChannel::create(context));
    let channel = channel.transpose()?;
    let cq = CompletionQueue::builder(context, options.rx_depth + 1)
        .maybe_channel(channel.as_ref())
        .build()?;
    Ok((cq, channel))
}

/// Exchanges addresses over TCP and connects. The server connects first, so that it is ready when
/// the client has its address.
fn connect(prepared: PreparedQueuePair, common: &Common) -> Result<QueuePair, Failure> {
    let ours = Address::from(&prepared.endpoint());
    say(format_args!("  local address:  {ours}"))?;
    let connected = |theirs: Address| {
        say(format_args!("  remote address: {theirs}"))?;
        let connected = prepared.handshake(&theirs.to_endpoint()?);
        connected.context(|| "cannot connect the queue pair")
    };
    if let Some(host) = &common.host {
        let peer = Peer::connect(host, common.port, common.limit())?;
        peer.send(&ours.to_wire())?;
        let qp = connected(address(&peer)?)?;
        peer.send(&Address::DONE)?;
        Ok(qp)
    } else {
        let peer = Listener::bind(common.port)?.accept(common.wait(), common.limit())?;
        let qp = connected(address(&peer)?)?;
        peer.send(&ours.to_wire())?;
        let mut done = [0; Address::DONE.len()];
        peer.receive(&mut done)
            .context(|| "the client did not connect")?;
        if done == Address::DONE {
            Ok(qp)
        } else {
            Err(AddressError::Format.into())
        }
    }
}

fn address(peer: &Peer) -> Result<Address, Failure> {
    let mut wire = [0; Address::WIRE_LEN];
    peer.receive(&mut wire)?;
    Ok(Address::from_wire(&wire)?)
}

/// Posts the receive `count` times, as C does: all of them into the same buffer.
fn receive(
    element: &mut SharedElement<'_>,
    count: u32,
    mut post: impl FnMut(&mut ReceiveWorkRequest<'_>) -> Result<(), PostError>,
) -> Result<(), PostError> {
    let mut request = ReceiveWorkRequest::new(element).wr_id(RECEIVE);
    (0..count).try_for_each(|_| post(&mut request))
}

/// C's output.
fn report(options: &Options, took: Duration) -> Result<(), Failure> {
    let (size, iters) = (u64::from(options.size), u64::from(options.iters));
    let (bytes, seconds) = (size * iters * 2, took.as_secs_f64());
    let usec = seconds * 1e6;
    let megabits = bytes as f64 * 8.0 / usec;
    say(format_args!(
        "{bytes} bytes in {seconds:.2} seconds = {megabits:.2} Mbit/sec"
    ))?;
    let each = usec / iters as f64;
    say(format_args!(
        "{iters} iters in {seconds:.2} seconds = {each:.2} usec/iter"
    ))
}

/// What is sent, and where what comes is received: begun at a page, as C's buffer.
struct Buffers {
    send: MemoryRegion<Vec<u8>>,
    receive: SharedRegion<Vec<u8>>,
    size: usize,
    page: usize,
}

/// C's buffer is filled with this, and checked for a zero at the begin of each page.
const FILL: u8 = 0x7b;
const PAGE_MARK: u8 = 0;
/// What no message has.
const STALE: u8 = 0xff;

impl Buffers {
    fn new(pd: &ProtectionDomain, options: &Options) -> Result<Self, Failure> {
        let (size, page) = (usize::try_from(options.size)?, page_size()?);
        let room = || examples::memory(STALE, size + page);
        let mut this = Self {
            send: pd.reg_mr(room()?)?,
            receive: pd.reg_shared(room()?, AccessFlags::LOCAL_WRITE)?,
            size,
            page,
        };
        let start = this.send.deref().as_ptr().align_offset(page);
        let message = this.send.get_mut(start..start + size).unwrap_or_default();
        for page in message.chunks_mut(page) {
            fill(page, options.chk);
        }
        Ok(this)
    }

    fn send(&self) -> verbs_core::Result<GatherElement<'_>> {
        let start = self.send.deref().as_ptr().align_offset(self.page);
        self.send.gather_element(start..start + self.size)
    }

    fn receive(&self) -> verbs_core::Result<SharedElement<'_>> {
        let start = self.received();
        self.receive.element(start..start + self.size)
    }

    fn received(&self) -> usize {
        self.receive.as_ptr().align_offset(self.page)
    }

    /// Checks the message that has come, and makes its bytes stale. Nothing comes meanwhile: the
    /// peer waits for the answer.
    fn check(&self, message: u32) -> Result<(), Failure> {
        let (start, end) = (self.received(), self.received() + self.size);
        let mut right = vec![0; self.page];
        fill(&mut right, true);
        let stale = vec![STALE; self.page];
        let mut came = vec![0; self.page];
        for (number, at) in (start..end).step_by(self.page).enumerate() {
            let len = self.page.min(end - at);
            let (came, right, stale) = (&mut came[..len], &right[..len], &stale[..len]);
            self.receive.read(at, came)?;
            if came != right {
                return Err(Failure::new(format!(
                    "invalid data in page {number} of message {message}"
                )));
            }
            self.receive.write(at, stale)?;
        }
        Ok(())
    }
}

fn fill(page: &mut [u8], mark: bool) {
    page.fill(FILL);
    if let Some(first) = page.first_mut().filter(|_| mark) {
        *first = PAGE_MARK;
    }
}

/// A game in progress.
struct Game<'b> {
    // First, so that it is destroyed first, before what the card reaches.
    qp: QueuePair,
    buffers: &'b Buffers,
    cq: CompletionQueue,
    channel: Option<CompletionChannel>,
    patience: Patience<'static>,
    options: &'b Options,
    posted: u32,
    received: u32,
    sent: u32,
    /// What must complete before the next send: C's `pending`.
    underway: u64,
}

impl Game<'_> {
    /// Plays to the end, and returns how long it took. The client begins.
    fn play(&mut self, begin: bool) -> Result<Duration, Failure> {
        let iters = self.options.iters;
        if begin {
            self.send()?;
        }
        let mut progress = Progress::new("messages", iters.into());
        let start = Instant::now();
        let mut slots = [const { PollSlot::new() }; 2];
        while self.received < iters || self.sent < iters {
            if let Some(channel) = &self.channel {
                let event = channel.get_cq_event(Some(self.options.common.limit()))?;
                let ready = event.ok_or_else(|| self.patience.over())?;
                ready.req_notify(false)?;
            }
            // After an event until nothing is left, else until something comes.
            loop {
                let completions = self.cq.poll(&mut slots)?;
                for completion in completions {
                    let success = completion.result();
                    self.completed(success.context(|| doing(completion.wr_id()))?)?;
                }
                if !completions.is_empty() {
                    self.patience.renew();
                    progress.at(self.received.into());
                }
                if completions.is_empty() == self.channel.is_some() {
                    break;
                }
                if completions.is_empty() {
                    self.patience.idle()?;
                }
            }
        }
        Ok(start.elapsed())
    }

    fn completed(&mut self, success: WorkSuccess) -> Result<(), Failure> {
        match success.wr_id() {
            SEND => self.sent += 1,
            RECEIVE => self.has_come(success)?,
            other => {
                return Err(Failure::new(format!(
                    "completion for unknown wr_id {other}"
                )));
            }
        }
        self.underway &= !success.wr_id();
        if self.sent < self.options.iters && self.underway == 0 {
            self.send()?;
        }
        Ok(())
    }

    fn has_come(&mut self, success: WorkSuccess) -> Result<(), Failure> {
        let (came, size) = (success.byte_len(), self.options.size);
        if came != size {
            return Err(Failure::new(format!(
                "a message of {came} bytes came, not of {size}: both ends need the same -s"
            )));
        }
        self.received += 1;
        if self.options.chk {
            self.buffers.check(self.received)?;
        }
        self.posted -= 1;
        if self.posted <= 1 {
            let missing = self.options.rx_depth - self.posted;
            let mut element = self.buffers.receive()?;
            receive(&mut element, missing, |receive| {
                // SAFETY: `self` borrows `buffers` for longer than it has the queue pair; the
                // receive buffer is a shared region, of which only copies are taken.
                unsafe { self.qp.post_receive(receive) }
            })?;
            self.posted += missing;
        }
        Ok(())
    }

    /// Destroys the queue pair, and says so if that fails.
    fn close(self) -> Result<(), Failure> {
        Ok(self.qp.close()?)
    }

    fn send(&mut self) -> Result<(), Failure> {
        let mut element = self.buffers.send()?;
        let mut request = SendWorkRequest::new(&mut element).wr_id(SEND);
        if self.qp.cap().max_inline_data >= self.options.size {
            request = request.inline();
        }
        // SAFETY: `self` borrows `buffers` for longer than it has the queue pair, so nobody writes
        // to the send buffer.
        unsafe { self.qp.post_send(&mut request) }?;
        self.underway = SEND | RECEIVE;
        Ok(())
    }
}

/// What a completion was about.
const fn doing(wr_id: u64) -> &'static str {
    match wr_id {
        SEND => "sending",
        RECEIVE => "receiving (both ends need the same -s)",
        _ => "a request of somebody else",
    }
}

fn page_size() -> Result<usize, Failure> {
    // SAFETY: it takes a number and touches no memory.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).context(|| "cannot tell the size of a page")
}
