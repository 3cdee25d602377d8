//! Pools: blocks that are taken and returned, from any thread.

use std::thread;

use verbs_channel::BufferPool;
use verbs_harness::{PATIENCE, begin};

use super::ends::{bytes, given, pair, pattern, works};

#[test]
#[ignore = "needs an RDMA device"]
fn blocks_are_shared_by_threads_and_the_device() {
    let _test = begin!(iwarp lacks "writes that are in place when they have completed");
    let (mut a, mut b) = pair();
    let pool = BufferPool::new(a.pd(), 64, 4).unwrap();
    let target = given(&b, vec![0_u8; 64]);
    let (give, take) = std::sync::mpsc::channel();
    let producer = pool.clone();
    thread::scope(|threads| {
        threads.spawn(move || {
            for seed in 0..200 {
                let mut block = loop {
                    match producer.take() {
                        Some(block) => break block,
                        None => thread::yield_now(),
                    }
                };
                block.copy_from_slice(&pattern(seed, 64));
                give.send(block).unwrap();
            }
        });
        for (block, seed) in take.into_iter().zip(0..) {
            let ticket = a.start_write(block, target.remote()).unwrap();
            let done = a.wait(ticket, Some(PATIENCE)).unwrap().unwrap();
            done.result.unwrap();
            assert!(bytes(&target) == pattern(seed, 64), "block {seed}");
            // It is returned to the pool by this thread.
        }
    });
    assert_eq!(pool.available(), 4);
    works(&mut a, &mut b, 10);
}
