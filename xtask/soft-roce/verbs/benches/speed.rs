//! Speed in process: a small send from post to both completions, writes of 1 MiB beside `memcpy`, and memory that is lent by
//! a window beside a registration for each loan.
#![expect(unsafe_code, reason = "posts")]
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use soft_verbs as _;
use verbs_channel::{Channel, SharedMemory};
use verbs_core::{
    AccessFlags, CompletionQueue, Device, PollSlot, QueuePair, ReceiveWorkRequest, SendWorkRequest,
    WriteWorkRequest,
};

const SIZE: usize = 1 << 20;

/// The best of several runs, in nanoseconds for each of `count` operations.
fn best(count: u32, mut operation: impl FnMut()) -> f64 {
    let run = |_| {
        let start = Instant::now();
        (0..count).for_each(|_| operation());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(count)
    };
    (0..9).map(run).fold(f64::INFINITY, f64::min)
}

fn finish(cq: &CompletionQueue, mut count: usize) {
    let mut slots = [const { PollSlot::new() }; 2];
    while count > 0 {
        for completion in cq.poll(&mut slots).unwrap() {
            completion.result().unwrap();
            count -= 1;
        }
    }
}

fn main() {
    let context = Device::by_name("soft0").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = CompletionQueue::create(&context, 16).unwrap();
    let [a, b] = [(); 2].map(|()| QueuePair::builder(&pd, &cq, &cq).build().unwrap());
    let ends = [a.endpoint(), b.endpoint()];
    let (a, b) = (
        a.handshake(&ends[1]).unwrap(),
        b.handshake(&ends[0]).unwrap(),
    );

    let small = pd.reg_mr(vec![1_u8; 64]).unwrap();
    let mut inbox = pd.reg_mr(vec![0_u8; 64]).unwrap();
    let nanoseconds = best(20_000, || {
        let mut room = inbox.scatter_element(..).unwrap();
        let mut message = small.gather_element(..).unwrap();
        // SAFETY: nothing uses the memory before both completions have been polled.
        unsafe { b.post_receive(&mut ReceiveWorkRequest::new(&mut room)) }.unwrap();
        // SAFETY: nothing uses the memory before both completions have been polled.
        unsafe { a.post_send(&mut SendWorkRequest::new(&mut message)) }.unwrap();
        finish(&cq, 2);
    });
    println!("send of 64 bytes, with its receive: {nanoseconds:.0} ns");

    let large = pd.reg_mr(vec![1_u8; SIZE]).unwrap();
    let target = pd.reg_shared(vec![0_u8; SIZE], AccessFlags::REMOTE_WRITE);
    let target = target.unwrap();
    let remote = target.remote();
    let nanoseconds = best(100, || {
        let mut bytes = large.gather_element(..).unwrap();
        let mut write = WriteWorkRequest::new(&mut bytes, &remote).unwrap();
        // SAFETY: nothing uses the memory before the completion has been polled.
        unsafe { a.post_write(&mut write) }.unwrap();
        finish(&cq, 1);
    });
    let mut copy = vec![0_u8; SIZE];
    let beside = best(100, || {
        black_box(&mut copy).copy_from_slice(black_box(&large));
    });
    let gigabytes = 1.048_576e6;
    println!("write of 1 MiB: {:.2} GB/s", gigabytes / nanoseconds);
    println!("memcpy of 1 MiB: {:.2} GB/s", gigabytes / beside);

    // A region without the right to bind windows is registered for each lease.
    let [window, registration] = [AccessFlags::MW_BIND, AccessFlags::empty()].map(|access| {
        let builder = Channel::builder(&pd)
            .lease_windows(2)
            .lease_rest(Duration::ZERO);
        let (mut owner, _peer) = builder.loopback().unwrap();
        let memory = SharedMemory::register([&pd], vec![0_u8; SIZE], access).unwrap();
        best(100, || {
            let lease = owner.lease(memory.slice(..).unwrap(), AccessFlags::REMOTE_READ);
            drop(owner.revoke(lease.unwrap()).unwrap());
        })
    });
    println!("1 MiB lent by a window: {window:.0} ns, by a registration: {registration:.0} ns");
}
