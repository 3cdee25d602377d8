//! Pools: blocks that are taken and returned, from any thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use verbs_channel::verbs_core::ErrorKind;
use verbs_channel::{BufferPool, Error};
use verbs_harness::{PATIENCE, begin};

use super::ends::{bytes, filled, given, here, pair, pattern, works};

#[test]
#[ignore = "needs an RDMA device"]
fn blocks_are_disjoint_and_return_to_the_pool() {
    let _test = begin!();
    let pool = BufferPool::new(&here(), 100, 16).unwrap();
    assert_eq!(
        (pool.capacity(), pool.block_len(), pool.available()),
        (16, 100, 16)
    );
    let mut blocks: Vec<_> = (0..16).map(|_| pool.take().unwrap()).collect();
    assert!(pool.take().is_none());
    for (block, byte) in blocks.iter_mut().zip(1..) {
        assert_eq!(block[..], [0; 100]);
        block.fill(byte);
    }
    for (block, byte) in blocks.iter().zip(1..) {
        assert_eq!(block[..], [byte; 100]);
    }
    drop(blocks);
    assert_eq!(pool.available(), 16);
}

#[test]
#[ignore = "needs an RDMA device"]
fn threads_share_a_pool_without_sharing_a_block() {
    let _test = begin!();
    let pool = BufferPool::new(&here(), 64, 6).unwrap();
    let taken = AtomicUsize::new(0);
    thread::scope(|threads| {
        for mine in 1..=8_u8 {
            let (pool, taken) = (pool.clone(), &taken);
            threads.spawn(move || {
                for _ in 0..20_000 {
                    let Some(mut block) = pool.take() else {
                        thread::yield_now();
                        continue;
                    };
                    block.fill(mine);
                    std::hint::black_box(&mut block);
                    assert!(
                        block.iter().all(|byte| *byte == mine),
                        "a block that two have"
                    );
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(taken.into_inner() > 8);
    assert_eq!(pool.available(), 6);
}

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

#[test]
#[ignore = "needs an RDMA device"]
fn block_can_be_borrowed() {
    let _test = begin!();
    let (mut a, mut b) = pair();
    let pool = BufferPool::new(b.pd(), 64, 2).unwrap();
    let mut block = pool.take().unwrap();
    let from = filled(&a, 4, 64);
    let ended = b.scope(|scope| {
        let receive = scope.post_receive(block.scatter_element(..)?)?;
        a.send(from.gather_element(..)?)?;
        Ok::<_, Error>(receive.spin_poll()?)
    });
    ended.unwrap();
    assert!(block[..] == from[..]);
    // It outlives its pool, which outlives its protection domain.
    drop((pool, a, b));
    assert!(block[..] == from[..]);
    block.fill(1);
}

#[test]
#[ignore = "needs an RDMA device"]
fn empty_pool_is_an_error() {
    let _test = begin!();
    let pd = here();
    for (block_len, count) in [(0, 4), (4, 0), (0, 0)] {
        let error = BufferPool::new(&pd, block_len, count).unwrap_err();
        assert!(matches!(error, Error::Core(_)), "{error}");
    }
    let error = BufferPool::new(&pd, usize::MAX / 2, 4).unwrap_err();
    assert!(
        matches!(&error, Error::Core(core) if core.kind() == ErrorKind::InvalidInput),
        "{error}"
    );
}
