//! The client: asks for runs, moves the bytes, and checks its own side.
#![expect(unsafe_code, reason = "posts work requests")]

use std::time::{Duration, Instant};

use programs::{
    Context as _, Failure, Frames, Measured, Patience, Peer, Progress, Waiter, check, elements,
    in_memory, say,
};
use verbs_core::work_request::WorkRequest;
use verbs_core::{
    AccessFlags, CompletionQueue, GatherElement, MemoryRegion, QueuePair, ReadWorkRequest,
    RemoteMemoryRegion, ScatterElement, SendWorkRequest, WriteWorkRequest,
};

use crate::protocol::{Answer, Needs, Offer, Operation, Order, Run, STALE, hello};
use crate::{Options, prepare};

const DEFAULT_SIZES: [u32; 4] = [1, 4096, 65537, 4 << 20];
/// How many bytes a run moves at most, if a message has fewer.
const BYTES_OF_A_RUN: usize = 4 << 20;

pub(crate) struct Client<'o> {
    // First, so that it is destroyed before the local memory.
    qp: QueuePair,
    cq: CompletionQueue,
    local: MemoryRegion<Vec<u8>>,
    remote: RemoteMemoryRegion,
    frames: Frames,
    options: &'o Options,
}

impl<'o> Client<'o> {
    pub(crate) fn start(options: &'o Options, host: &str) -> Result<Self, Failure> {
        let common = &options.common;
        let context = programs::open(common)?;
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
        programs::check_size(&context, port_num, largest.unwrap_or(0))?;
        let local = pd.reg_mr(programs::memory(STALE, area)?)?;
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

    pub(crate) fn run(mut self) -> Result<(), Failure> {
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
            Measured::new(name, size as u64, count.into(), took, true).print()?;
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

    /// Posts all requests of a run in batches, and waits for them.
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
            // SAFETY: the elements in `lists` borrow the region, for writing where the device writes,
            // until the completion of the chain's last request has been polled below.
            unsafe { self.qp.post(&mut chain) }?;
            self.waiter.wait(1, |_success| Ok(()))?;
            progress.at(indices.start.into());
        }
        Ok(start.elapsed())
    }
}

/// The runs, each with a pattern of its own.
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
