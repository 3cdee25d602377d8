//! Moves bytes one-sidedly and with immediates between two processes, and checks each at both ends.
#![expect(unsafe_code, reason = "posts work requests")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use examples::{
    Common, Context as _, Failure, Frames, Hello, Listener, Measured, Patience, Pattern, Peer,
    Progress, Waiter, check, elements, in_memory, run, say,
};
use serde::{Deserialize, Serialize};
use verbs_core::{
    AccessFlags, CompletionQueue, GatherElement, MemoryRegion, PreparedQueuePair, ProtectionDomain,
    QueuePair, QueuePairEndpoint, ReadWorkRequest, ReceiveWorkRequest, RemoteMemoryRegion,
    ScatterElement, SendWorkRequest, SharedRegion, WcOpcode, WorkRequest, WriteWorkRequest,
};

/// Write, read, and send with immediates between two processes, and check every byte at both ends
///
/// The client asks for one run after the other; the server checks what came, and that nothing else
/// was touched. What is sent lies in pieces, which a list of elements puts together; several
/// requests are posted at once, and only the last of them is signalled.
#[derive(Debug, Parser)]
#[command(name = "rdma_read_write", after_help = EXAMPLES)]
struct Options {
    #[command(flatten)]
    common: Common,

    /// Bytes in a message; may be given several times [default: 1 4096 65537 4194304]
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: Vec<u32>,

    /// How many messages of each kind and size; fewer of large ones
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=4096))]
    iters: u32,

    /// How many requests to post with one doorbell
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    chain: u16,

    /// How many elements in a request
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    elements: u16,
}

const EXAMPLES: &str = "\
Examples:
  rdma_read_write                       be the server, on the first active device
  rdma_read_write 192.0.2.1             be its client
  rdma_read_write -s 1000000 -n 8 HOST  8 messages of 1,000,000 bytes of each kind
  rdma_read_write --chain 1 HOST        each request on its own";

const DEFAULT_SIZES: [u32; 4] = [1, 4096, 65537, 4 << 20];
/// How many bytes a run moves at most, if a message has fewer.
const BYTES_OF_A_RUN: usize = 8 << 20;
/// The most that a server gives to a client.
const MAX_AREA: usize = 1 << 30;
const MAX_DEPTH: u32 = 4096;
/// Bytes behind the area that nobody may touch.
const GUARD: usize = 4096;
const STALE: u8 = 0xa5;

/// The client's first message: what it needs.
#[derive(Debug, Serialize, Deserialize)]
struct Needs {
    area: usize,
    depth: u32,
    endpoint: QueuePairEndpoint,
}

/// The server's answer: what it has.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    area: RemoteMemoryRegion,
    endpoint: QueuePairEndpoint,
}

/// What the client asks for then.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Prepare(Run),
    Check,
    Bye,
}

/// What the server answers, to each order but the last.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Ready,
    Right,
    Wrong(String),
}

/// Messages of one kind and size: the one of index i goes to byte i × size of the area.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Run {
    operation: Operation,
    size: usize,
    count: u32,
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Operation {
    Write,
    Read,
    WriteImm,
    SendImm,
}

impl Operation {
    const ALL: [Self; 4] = [Self::Write, Self::Read, Self::WriteImm, Self::SendImm];

    const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::WriteImm => "write_imm",
            Self::SendImm => "send_imm",
        }
    }

    /// What the server's receives complete with, if it takes receives.
    const fn completes_as(self) -> Option<WcOpcode> {
        match self {
            Self::Write | Self::Read => None,
            Self::WriteImm => Some(WcOpcode::RECV_RDMA_WITH_IMM),
            Self::SendImm => Some(WcOpcode::RECV),
        }
    }
}

impl Run {
    const fn pattern(&self) -> Pattern {
        Pattern::new(self.seed)
    }

    fn len(&self) -> Option<usize> {
        self.size.checked_mul(usize::try_from(self.count).ok()?)
    }
}

fn main() -> ExitCode {
    run(|options: &Options| match &options.common.host {
        Some(host) => Client::start(options, host)?.run(),
        None => Server::start(options)?.run(),
    })
}

fn hello() -> Hello {
    Hello::new("rdma_read_write", 1)
}

/// A queue pair of either side, whose send and receive queues have `depth` places.
fn prepare(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    common: &Common,
    [send, receive]: [u32; 2],
    elements: u32,
    access: AccessFlags,
) -> verbs_core::Result<PreparedQueuePair> {
    QueuePair::builder(pd, cq, cq)
        .max_send_wr(send)
        .max_recv_wr(receive)
        .max_send_sge(elements)
        .maybe_port_num(common.ib_port)
        .maybe_gid_index(common.gid_idx)
        .qp_access_flags(access)
        .build()
}

struct Server<'o> {
    // First, so that it is destroyed before the area.
    qp: QueuePair,
    cq: CompletionQueue,
    area: SharedRegion<Vec<u8>>,
    frames: Frames,
    options: &'o Options,
}

impl<'o> Server<'o> {
    fn start(options: &'o Options) -> Result<Self, Failure> {
        let common = &options.common;
        let context = examples::open(common.ib_dev.as_deref())?;
        let pd = context.alloc_pd()?;
        let listener = Listener::bind(common.port)?;
        say(format_args!(
            "serving on {}, TCP port {}",
            context.device().name(),
            common.port
        ))?;
        let peer = listener.accept(common.wait(), common.limit())?;
        let frames = Frames::greet(peer, &hello())?;
        let needs: Needs = frames.receive()?;
        if needs.area > MAX_AREA || needs.depth > MAX_DEPTH {
            let Needs { area, depth, .. } = needs;
            return Err(Failure::new(format!(
                "the client asks for {area} bytes and {depth} receives: too many"
            )));
        }
        let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let area = pd.reg_shared(vec![STALE; needs.area + GUARD], access)?;
        let cq = CompletionQueue::create(&context, needs.depth.max(1))?;
        let prepared = prepare(&pd, &cq, common, [1, needs.depth], 1, access)?;
        let offer = Offer {
            area: area.remote().slice(..needs.area as u64)?,
            endpoint: prepared.endpoint(),
        };
        let qp = prepared.handshake(&needs.endpoint)?;
        frames.send(&offer)?;
        Ok(Self {
            qp,
            cq,
            area,
            frames,
            options,
        })
    }

    fn run(self) -> Result<(), Failure> {
        loop {
            let run = match self.frames.receive()? {
                Order::Prepare(run) => run,
                Order::Check => return Err(Failure::new("the client asks for a check too early")),
                Order::Bye => return Ok(self.qp.close()?),
            };
            self.prepare(&run)?;
            self.frames.send(&Answer::Ready)?;
            let took_part = self.take_part(&run);
            let Order::Check = self.frames.receive()? else {
                return Err(Failure::new("the client asks for no check"));
            };
            let name = run.operation.name();
            let checked = took_part.and_then(|()| self.check(&run));
            if let Err(failure) = checked.context(|| name) {
                self.frames.send(&Answer::Wrong(failure.to_string()))?;
                return Err(failure);
            }
            self.frames.send(&Answer::Right)?;
            let Run { size, count, .. } = run;
            say(format_args!("{name}: {count} x {size} bytes are right"))?;
        }
    }

    /// Fills the area, and posts receives if there will be something to receive.
    fn prepare(&self, run: &Run) -> Result<(), Failure> {
        let len = run.len().filter(|len| *len <= self.area.len() - GUARD);
        let (Some(len), 1.., ..=MAX_DEPTH) = (len, run.size, run.count) else {
            return Err(Failure::new("the client asks for a run that does not fit"));
        };
        self.area.write(0, &vec![STALE; self.area.len()])?;
        if run.operation == Operation::Read {
            self.area.write(0, &run.pattern().bytes(0, len))?;
        }
        if run.operation.completes_as().is_some() {
            for (index, slot) in (0..run.count).zip((0..).step_by(run.size)) {
                let mut list = [self.area.element(slot..slot + run.size)?];
                let receive = ReceiveWorkRequest::new(&mut list).wr_id(index.into());
                // SAFETY: the area is a shared region, which lives until the queue pair is gone.
                unsafe { self.qp.post_receive(&mut [receive]) }?;
            }
        }
        Ok(())
    }

    /// Waits for what comes with a completion on this side.
    fn take_part(&self, run: &Run) -> Result<(), Failure> {
        let Some(opcode) = run.operation.completes_as() else {
            return Ok(());
        };
        let patience = Patience::new(self.options.common.limit(), Some(self.frames.peer()));
        let mut indices = 0..run.count;
        Waiter::new(&self.cq, patience).wait(run.count.into(), |success| {
            let index = indices.next().unwrap_or(run.count);
            let is = (
                success.wr_id(),
                success.opcode(),
                success.byte_len(),
                success.imm_data(),
            );
            let len = u32::try_from(run.size)?;
            let imm_data = run.pattern().immediate(index);
            let should_be = (index.into(), opcode, len, Some(imm_data));
            if is == should_be {
                return Ok(());
            }
            Err(Failure::new(format!(
                "completion (wr_id, opcode, byte_len, imm_data) is {is:?}, not {should_be:?}"
            )))
        })
    }

    /// Checks every byte of the area, and behind it.
    fn check(&self, run: &Run) -> Result<(), Failure> {
        let mut bytes = vec![0; self.area.len()];
        self.area.read(0, &mut bytes)?;
        let (moved, rest) = bytes.split_at(run.len().unwrap_or(0));
        run.pattern().check(0, moved)?;
        let untouched = check(moved.len(), rest, &vec![STALE; rest.len()]);
        untouched.context(|| "behind what was to be moved")
    }
}

struct Client<'o> {
    // First, so that it is destroyed before the local memory.
    qp: QueuePair,
    cq: CompletionQueue,
    local: MemoryRegion<Vec<u8>>,
    remote: RemoteMemoryRegion,
    frames: Frames,
    options: &'o Options,
}

impl<'o> Client<'o> {
    fn start(options: &'o Options, host: &str) -> Result<Self, Failure> {
        let common = &options.common;
        let context = examples::open(common.ib_dev.as_deref())?;
        let pd = context.alloc_pd()?;
        let runs = runs(options);
        let area = runs.iter().filter_map(Run::len).max().unwrap_or(0);
        let depth = runs.iter().map(|run| run.count).max().unwrap_or(0);
        let chain = u32::from(options.chain);
        let cq = CompletionQueue::create(&context, chain)?;
        let elements = options.elements.into();
        let nothing = AccessFlags::empty();
        let prepared = prepare(&pd, &cq, common, [chain, 1], elements, nothing)?;
        let largest = runs.iter().map(|run| run.size as u64).max();
        let port_num = prepared.endpoint().port_num();
        examples::check_size(&context, port_num, largest.unwrap_or(0))?;
        let local = pd.reg_mr(vec![STALE; area])?;
        let peer = Peer::connect(host, common.port, common.limit())?;
        let frames = Frames::greet(peer, &hello())?;
        frames.send(&Needs {
            area,
            depth,
            endpoint: prepared.endpoint(),
        })?;
        let offer: Offer = frames.receive()?;
        let qp = prepared.handshake(&offer.endpoint)?;
        Ok(Self {
            qp,
            cq,
            local,
            remote: offer.area,
            frames,
            options,
        })
    }

    fn run(mut self) -> Result<(), Failure> {
        let (chain, elements) = (self.options.chain, self.options.elements);
        say(format_args!(
            "up to {chain} requests with one doorbell, {elements} elements in each"
        ))?;
        say(format_args!(
            "{:<10} {:>9} {:>8} {:>10} {:>8}",
            "operation", "bytes", "messages", "usec each", "MB/s"
        ))?;
        for run in runs(self.options) {
            let took = self.one(&run).context(|| {
                let Run { size, count, .. } = run;
                format!("{} of {count} x {size} bytes", run.operation.name())
            })?;
            let (name, size, count) = (run.operation.name(), run.size, run.count);
            let usec = took.as_secs_f64() * 1e6;
            let (each, rate) = (
                usec / f64::from(count),
                run.len().unwrap_or(0) as f64 / usec,
            );
            say(format_args!(
                "{name:<10} {size:>9} {count:>8} {each:>10.2} {rate:>8.2}  right at both ends"
            ))?;
            Measured::new(name, size as u64, count.into(), took, true).tell()?;
        }
        self.frames.send(&Order::Bye)?;
        Ok(self.qp.close()?)
    }

    fn one(&mut self, run: &Run) -> Result<Duration, Failure> {
        self.ask(&Order::Prepare(*run))?;
        let (pieces, reads) = (self.pieces(), run.operation == Operation::Read);
        let pattern = run.pattern().bytes(0, run.len().unwrap_or(0));
        let mut right = Vec::with_capacity(pattern.len());
        for message in pattern.chunks(run.size) {
            right.extend(in_memory(message, pieces));
        }
        for (slot, right) in self.local.chunks_mut(run.size).zip(right.chunks(run.size)) {
            if reads {
                slot.fill(STALE);
            } else {
                slot.copy_from_slice(right);
            }
        }
        let took = self.transfer(run)?;
        self.ask(&Order::Check)?;
        let local = self.local.get(..right.len()).unwrap_or_default();
        check(0, local, &right).context(|| "on this side")?;
        Ok(took)
    }

    /// Gives an order, and waits until it is carried out.
    fn ask(&self, order: &Order) -> Result<(), Failure> {
        self.frames.send(order)?;
        match (order, self.frames.receive()?) {
            (Order::Prepare(_), Answer::Ready) | (Order::Check, Answer::Right) => Ok(()),
            (_, Answer::Wrong(how)) => Err(Failure::new(format!("on the server's side: {how}"))),
            _ => Err(Failure::new("the server's answer makes no sense")),
        }
    }

    /// Posts all requests of a run, so many at a time, and waits for them.
    fn transfer(&mut self, run: &Run) -> Result<Duration, Failure> {
        let (pieces, size, pattern) = (self.pieces(), run.size, run.pattern());
        let len = run.len().unwrap_or(0);
        let remote = |index: u32| {
            let start = u64::from(index) * size as u64;
            self.remote.slice(start..start + size as u64)
        };
        let line = Line {
            qp: &self.qp,
            waiter: Waiter::new(
                &self.cq,
                Patience::new(self.options.common.limit(), Some(self.frames.peer())),
            ),
            chain: self.options.chain.into(),
        };
        if run.operation == Operation::Read {
            let slots = self.local.scatter_element(..len)?.chunks_mut(size)?;
            let lists =
                slots.map(|slot| elements(slot, size, pieces, ScatterElement::split_at_mut));
            return line.post(lists.collect::<Result<_, _>>()?, |index, list, signaled| {
                let read = ReadWorkRequest::new(list, &remote(index)?)?;
                Ok(if signaled { read } else { read.unsignaled() }.into())
            });
        }
        let slots = self.local.gather_element(..len)?.chunks(size)?;
        let lists = slots.map(|slot| elements(slot, size, pieces, GatherElement::split_at));
        line.post(lists.collect::<Result<_, _>>()?, |index, list, signaled| {
            if run.operation == Operation::SendImm {
                let send = SendWorkRequest::new(list).immediate(pattern.immediate(index));
                return Ok(if signaled { send } else { send.unsignaled() }.into());
            }
            let mut write = WriteWorkRequest::new(list, &remote(index)?)?;
            if run.operation == Operation::WriteImm {
                write = write.immediate(pattern.immediate(index));
            }
            Ok(if signaled { write } else { write.unsignaled() }.into())
        })
    }

    fn pieces(&self) -> usize {
        self.options.elements.into()
    }
}

/// Where requests go out and completions come back.
struct Line<'a> {
    qp: &'a QueuePair,
    waiter: Waiter<'a>,
    chain: usize,
}

impl Line<'_> {
    /// Posts a request for each list of elements, in chains whose last request is signalled; waits
    /// for each chain.
    ///
    /// The lists are borrows of registered memory that end after this call, and when it fails the
    /// program ends without a look at that memory.
    fn post<E>(
        mut self,
        mut lists: Vec<Vec<E>>,
        request: impl for<'l> Fn(u32, &'l mut [E], bool) -> verbs_core::Result<WorkRequest<'l>>,
    ) -> Result<Duration, Failure> {
        let mut progress = Progress::new("messages", lists.len() as u64);
        let mut indices = 0_u32..;
        let start = Instant::now();
        for lists in lists.chunks_mut(self.chain) {
            let last = lists.len() - 1;
            let numbered = lists.iter_mut().enumerate().zip(&mut indices);
            let chain = numbered.map(|((at, list), index)| request(index, list, at == last));
            let mut chain: Vec<WorkRequest<'_>> = chain.collect::<Result<_, _>>()?;
            // SAFETY: the elements in `lists` borrow the region, for writing where the card writes,
            // until the completion of the chain's last request has been polled below.
            unsafe { self.qp.post(&mut chain) }?;
            self.waiter.wait(1, |_success| Ok(()))?;
            progress.at(indices.start.into());
        }
        Ok(start.elapsed())
    }
}

/// What is to be done, with a pattern of its own each.
fn runs(options: &Options) -> Vec<Run> {
    let sizes = if options.size.is_empty() {
        &DEFAULT_SIZES
    } else {
        &options.size[..]
    };
    let mut runs = Vec::new();
    for size in sizes {
        let size = usize::try_from(*size).unwrap_or(usize::MAX);
        let most = u32::try_from(BYTES_OF_A_RUN / size).unwrap_or(u32::MAX);
        for operation in Operation::ALL {
            runs.push(Run {
                operation,
                size,
                count: options.iters.min(most.max(1)),
                seed: 1 + runs.len() as u64,
            });
        }
    }
    runs
}
