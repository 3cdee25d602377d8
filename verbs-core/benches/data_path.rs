//! The data path's loops, for `cargo xtask bench` to count instructions in: each as its twin in
//! `c/reference.c`, on a stand-in for libibverbs that completes every request at once. They count as
//! C's do, since a `for` over a range takes one or two instructions more.
//!
//! `data_path OPERATION COUNT` runs one of them.
#![expect(
    unsafe_code,
    reason = "posts; what is posted is done before anything is dropped"
)]
#![expect(clippy::print_stderr, reason = "a program: it prints why it failed")]

use std::error::Error;
use std::fmt::Display;
use std::{array, process, slice};

use verbs_core::completion::CompletionQueueEx;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::queue_pair::{QueuePairEx, SendOpsFlags};
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::work_request::{DatagramWorkRequest, RequestChain};
use verbs_core::{
    CompletionQueue, Context, GatherElement, MemoryRegion, PollSlot, QueuePair, ReceiveWorkRequest,
    RemoteMemoryRegion, SendWorkRequest,
};

const MESSAGE: usize = 64;
const BATCH: usize = 16;
const PAGES: usize = 64;
const REMOTE: u64 = 0x7000_0000;

/// The objects that every loop uses.
struct Bench {
    qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion<Vec<u8>>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(operation), Some(count)) = (args.next(), args.next()) else {
        // `cargo bench` itself comes here.
        eprintln!("this is run by `cargo xtask bench`");
        return Ok(());
    };
    let mut bench = Bench::new()?;
    let count = count.parse()?;
    match operation.as_str() {
        "send1" => bench.send1(count),
        "send1_reuse" => bench.send1_reuse(count),
        "send1_again" => bench.send1_again(count),
        "recv1" => bench.recv1(count),
        "recv1_reuse" => bench.recv1_reuse(count),
        "recv1_again" => bench.recv1_again(count),
        "srq1" => bench.srq1(count),
        "ud_send1" => bench.ud_send1(count),
        "ud_recv1" => bench.ud_recv1(count),
        "batch16" => bench.batch16(count),
        "sep16" => bench.sep16(count),
        "chain16" => bench.chain16(count),
        "quiet16" => bench.quiet16(count),
        "chain64" => bench.chain64(count),
        "poll0" => bench.poll0(count),
        "ex1" => bench.extended::<1>(count),
        "ex16" => bench.extended::<BATCH>(count),
        // In no table. It keeps the compiler from seeing that all lists of this program have one
        // element, which it could use in the loops that are measured.
        "send1_sge2" => bench.send1_sge2(count),
        other => fail(&format!("there is no operation `{other}`")),
    }
    Ok(())
}

impl Bench {
    fn new() -> Result<Self, Box<dyn Error>> {
        let context = Context::first_active()?;
        let pd = context.alloc_pd()?;
        let cq = CompletionQueue::create(&context, 64)?;
        let region = pd.reg_mr(vec![0; BATCH * MESSAGE])?;
        let prepared = QueuePair::builder(&pd, &cq, &cq).build()?;
        let own = prepared.endpoint();
        let qp = prepared.handshake(&own)?;
        Ok(Self { qp, cq, region })
    }

    #[inline(never)]
    fn send1(&self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let message = check(self.region.gather_element(..MESSAGE));
        let mut wr_id = 0;
        while wr_id < count {
            let mut list = [message];
            let mut request = [SendWorkRequest::new(&mut list).wr_id(wr_id)];
            // SAFETY: `region` outlives the wait for it, and is not written to.
            check(unsafe { self.qp.post_send(&mut request) });
            wait_for(&self.cq, &mut slots, wr_id, 1);
            wr_id += 1;
        }
    }

    #[inline(never)]
    fn send1_reuse(&self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let mut chain = check(RequestChain::sends(1, 1));
        check(chain.set(0, check(self.region.gather_element(..MESSAGE))));
        let mut wr_id = 0;
        while wr_id < count {
            check(chain.set_wr_id(0, wr_id));
            // SAFETY: `region` outlives the wait, and is not written to.
            check(unsafe { self.qp.post_chain(&mut chain, ..) });
            wait_for(&self.cq, &mut slots, wr_id, 1);
            wr_id += 1;
        }
    }

    #[inline(never)]
    fn send1_again(&self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let mut list = [check(self.region.gather_element(..MESSAGE))];
        let mut request = SendWorkRequest::new(&mut list);
        let mut wr_id = 0;
        while wr_id < count {
            request.set_wr_id(wr_id);
            // SAFETY: `region` outlives the wait, and is not written to.
            check(unsafe { self.qp.post_send(slice::from_mut(&mut request)) });
            wait_for(&self.cq, &mut slots, wr_id, 1);
            wr_id += 1;
        }
    }

    #[inline(never)]
    fn send1_sge2(&self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let message = check(self.region.gather_element(..MESSAGE));
        let mut wr_id = 0;
        while wr_id < count {
            let mut list = [message; 2];
            let mut request = [SendWorkRequest::new(&mut list).wr_id(wr_id)];
            // SAFETY: `region` outlives the wait, and is not written to.
            check(unsafe { self.qp.post_send(&mut request) });
            wait_for(&self.cq, &mut slots, wr_id, 1);
            wr_id += 1;
        }
    }

    #[inline(never)]
    fn recv1(&mut self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        // An element to receive into cannot be copied: it stays in its list.
        let mut list = [check(self.region.scatter_element(..MESSAGE))];
        let mut wr_id = 0;
        while wr_id < count {
            let mut request = [ReceiveWorkRequest::new(&mut list).wr_id(wr_id)];
            // SAFETY: `region` outlives the wait for it, and is not accessed.
            check(unsafe { self.qp.post_receive(&mut request) });
            wait_for(&self.cq, &mut slots, wr_id, 1);
            wr_id += 1;
        }
    }

    #[inline(never)]
    fn recv1_reuse(&mut self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let mut chain = check(RequestChain::receives(1, 1));
        check(chain.set(0, check(self.region.scatter_element(..MESSAGE))));
        let mut wr_id = 0;
        while wr_id < count {
            check(chain.set_wr_id(0, wr_id));
            // SAFETY: `region` outlives the wait, and is not accessed.
            check(unsafe { self.qp.post_receive_chain(&mut chain, ..) });
            wait_for(&self.cq, &mut slots, wr_id, 1);
            wr_id += 1;
        }
    }

    #[inline(never)]
    fn recv1_again(&mut self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let mut list = [check(self.region.scatter_element(..MESSAGE))];
        let mut request = ReceiveWorkRequest::new(&mut list);
        let mut wr_id = 0;
        while wr_id < count {
            request.set_wr_id(wr_id);
            // SAFETY: `region` outlives the wait, and is not accessed.
            check(unsafe { self.qp.post_receive(slice::from_mut(&mut request)) });
            wait_for(&self.cq, &mut slots, wr_id, 1);
            wr_id += 1;
        }
    }

    /// A receive of a shared receive queue.
    #[inline(never)]
    fn srq1(&mut self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let pd = self.region.pd().clone();
        let srq = check(SharedReceiveQueue::create(&pd, 16));
        let prepared = QueuePair::builder(&pd, &self.cq, &self.cq)
            .srq(&srq)
            .build();
        // Its messages arrive there.
        let _prepared = check(prepared);
        let mut list = [check(self.region.scatter_element(..MESSAGE))];
        let mut wr_id = 0;
        while wr_id < count {
            let mut request = [ReceiveWorkRequest::new(&mut list).wr_id(wr_id)];
            // SAFETY: `region` outlives the wait, and is not accessed.
            check(unsafe { srq.post_receive(&mut request) });
            wait_for(&self.cq, &mut slots, wr_id, 1);
            wr_id += 1;
        }
    }

    fn datagrams(&self) -> DatagramQueuePair {
        let builder = DatagramQueuePair::builder(self.region.pd(), &self.cq, &self.cq);
        check(builder.build())
    }

    #[inline(never)]
    fn ud_send1(&self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let qp = self.datagrams();
        let peer = qp.endpoint();
        let ah = check(qp.address_handle(&peer));
        let message = check(self.region.gather_element(..MESSAGE));
        let mut wr_id = 0;
        while wr_id < count {
            let mut list = [message];
            let mut request = [DatagramWorkRequest::to(&mut list, &ah, &peer).wr_id(wr_id)];
            // SAFETY: `region` outlives the wait, and is not written to; the handle is destroyed
            // after the loop.
            check(unsafe { qp.post_send(&mut request) });
            wait_for(&self.cq, &mut slots, wr_id, 1);
            wr_id += 1;
        }
    }

    #[inline(never)]
    fn ud_recv1(&mut self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let qp = self.datagrams();
        let mut list = [check(self.region.scatter_element(..MESSAGE))];
        let mut wr_id = 0;
        while wr_id < count {
            let mut request = [ReceiveWorkRequest::new(&mut list).wr_id(wr_id)];
            // SAFETY: `region` outlives the wait, and is not accessed.
            check(unsafe { qp.post_receive(&mut request) });
            wait_for(&self.cq, &mut slots, wr_id, 1);
            wr_id += 1;
        }
    }

    /// The messages of a batch, one after the other in the region.
    fn messages(&self) -> [GatherElement<'_>; BATCH] {
        let mut messages = [check(self.region.gather_element(..MESSAGE)); BATCH];
        for (index, message) in messages.iter_mut().enumerate() {
            let start = index * MESSAGE;
            *message = check(self.region.gather_element(start..start + MESSAGE));
        }
        messages
    }

    #[inline(never)]
    fn batch16(&self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let messages = self.messages();
        let mut batch = 0;
        while batch < count {
            let first = batch * BATCH as u64;
            let mut wr_id = first;
            let mut lists = messages.map(|message| [message]);
            let mut requests = lists.each_mut().map(|list| {
                let request = SendWorkRequest::new(list).wr_id(wr_id);
                wr_id += 1;
                request
            });
            // SAFETY: `region` outlives the wait, and is not written to.
            check(unsafe { self.qp.post_send(&mut requests) });
            wait_for(&self.cq, &mut slots, first, BATCH as u64);
            batch += 1;
        }
    }

    #[inline(never)]
    fn sep16(&self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let messages = self.messages();
        let mut batch = 0;
        while batch < count {
            let first = batch * BATCH as u64;
            for (wr_id, &message) in (first..).zip(&messages) {
                let mut list = [message];
                let mut request = [SendWorkRequest::new(&mut list).wr_id(wr_id)];
                // SAFETY: `region` outlives the wait, and is not written to.
                check(unsafe { self.qp.post_send(&mut request) });
            }
            wait_for(&self.cq, &mut slots, first, BATCH as u64);
            batch += 1;
        }
    }

    /// A chain of 16 sends, each with a completion.
    #[inline(never)]
    fn chain16(&self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let mut chain = check(RequestChain::sends(BATCH, 1));
        for (index, message) in self.messages().into_iter().enumerate() {
            check(chain.set(index, message));
        }
        let mut batch = 0;
        while batch < count {
            let first = batch * BATCH as u64;
            chain.set_wr_ids(first);
            // SAFETY: `region` outlives the wait, and is not written to.
            check(unsafe { self.qp.post_chain(&mut chain, ..) });
            wait_for(&self.cq, &mut slots, first, BATCH as u64);
            batch += 1;
        }
    }

    /// A chain of 16 sends, with one completion.
    #[inline(never)]
    fn quiet16(&self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let mut chain = check(RequestChain::sends(BATCH, 1)).signal_every(0);
        for (index, message) in self.messages().into_iter().enumerate() {
            check(chain.set(index, message));
        }
        let mut wr_id = 0;
        while wr_id < count {
            check(chain.set_wr_id(BATCH - 1, wr_id));
            // SAFETY: `region` outlives the wait, and is not written to.
            check(unsafe { self.qp.post_chain(&mut chain, ..) });
            wait_for(&self.cq, &mut slots, wr_id, 1);
            wr_id += 1;
        }
    }

    /// A chain of 64 writes, each of which is patched, with one completion.
    #[inline(never)]
    fn chain64(&self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        let mut chain = check(RequestChain::writes(PAGES, 1)).signal_every(0);
        let messages = self.messages();
        let pages: [_; PAGES] = array::from_fn(|page| {
            let addr = REMOTE + (page * MESSAGE) as u64;
            let remote = check(RemoteMemoryRegion::new(addr, MESSAGE as u64, 9));
            (messages[page % BATCH], remote)
        });
        let mut wr_id = 0;
        while wr_id < count {
            for (index, (message, remote)) in pages.iter().enumerate() {
                check(chain.set(index, *message, remote));
            }
            check(chain.set_wr_id(PAGES - 1, wr_id));
            // SAFETY: `region` outlives the wait, and is not written to.
            check(unsafe { self.qp.post_chain(&mut chain, ..) });
            wait_for(&self.cq, &mut slots, wr_id, 1);
            wr_id += 1;
        }
    }

    /// Sends of a batch of `N`, by the extended interfaces.
    #[inline(never)]
    fn extended<const N: usize>(&self, count: u64) {
        let pd = self.region.pd();
        let cq = check(CompletionQueueEx::builder(pd.context(), 64).build());
        let prepared = QueuePair::builder(pd, &cq, &cq)
            .send_ops_flags(SendOpsFlags::SEND)
            .build();
        let prepared = check(prepared);
        let own = prepared.endpoint();
        let mut qp = check(QueuePairEx::new(check(prepared.handshake(&own))));
        let messages = self.messages();
        let mut wr_id = 0;
        while wr_id < count * N as u64 {
            let mut batch = qp.start();
            for (wr_id, message) in (wr_id..).zip(messages.iter().take(N)) {
                let mut list = [*message];
                // SAFETY: `region` outlives the wait, and is not written to.
                check(unsafe { batch.push(SendWorkRequest::new(&mut list).wr_id(wr_id)) });
            }
            check(batch.complete());
            for _ in 0..N {
                let Some(done) = check(cq.poll()) else {
                    fail(&"a completion is missing")
                };
                if check(done.result()).wr_id() != wr_id {
                    fail(&"completions are out of order");
                }
                wr_id += 1;
            }
        }
    }

    #[inline(never)]
    fn poll0(&self, count: u64) {
        let mut slots = [const { PollSlot::new() }; 16];
        for _ in 0..count {
            if !check(self.cq.poll(&mut slots)).is_empty() {
                fail(&"an empty queue had a completion");
            }
        }
    }
}

/// Polls until `count` requests are done, the first of which is called `first`.
#[inline(always)]
fn wait_for(cq: &CompletionQueue, slots: &mut [PollSlot; 16], first: u64, count: u64) {
    let mut done = 0;
    while done < count {
        for completion in check(cq.poll(slots)) {
            if check(completion.result()).wr_id() != first + done {
                fail(&"completions are out of order");
            }
            done += 1;
        }
    }
}

/// The value, or the end of the program.
#[inline(always)]
fn check<T, E: Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| fail(&error))
}

#[cold]
#[inline(never)]
fn fail(why: &dyn Display) -> ! {
    eprintln!("data_path: {why}");
    process::exit(1);
}
