//! Batches: one doorbell, one completion, one handle.

use verbs_channel::error::Queue;
use verbs_channel::verbs_core::RemoteMemoryRegion;
use verbs_channel::{BufferPool, Error, Incoming, Outgoing, OwnedRequest};
use verbs_harness::{PATIENCE, begin};

use super::ends::{bytes, filled, given, pair, pattern, zeros};

#[test]
#[ignore = "needs an RDMA device"]
fn batches_of_reads_atomics_and_sends_complete() {
    let _test = begin!(iwarp lacks "atomics");
    let (mut a, mut b) = pair();
    let source = given(&b, pattern(1, 400));
    let mut into = zeros(&a, 400);
    let mut at = 0_u64..;
    let mut chunks = into.scatter_element(..).unwrap().chunks_mut(100).unwrap();
    let reads: [_; 4] = std::array::from_fn(|_| {
        let start = at.next().unwrap() * 100;
        Incoming::read(
            chunks.next().unwrap(),
            source.remote().slice(start..).unwrap(),
        )
    });
    a.run_batch(reads).unwrap();
    assert!(into[..] == pattern(1, 400));
    // Adds that depend on one another.
    let number = given(&b, 0_u64.to_ne_bytes().to_vec());
    let mut before = zeros(&a, 24);
    let mut places = before.scatter_element(..).unwrap().chunks_mut(8).unwrap();
    let adds: [_; 3] = std::array::from_fn(|_| {
        Incoming::fetch_and_add(places.next().unwrap(), number.remote(), 5)
    });
    a.run_batch(adds).unwrap();
    let before: Vec<_> = before
        .chunks(8)
        .map(|was| u64::from_ne_bytes(was.try_into().unwrap()))
        .collect();
    assert_eq!(before, [0, 5, 10]);

    let from = filled(&a, 2, 300);
    let mut sink = zeros(&b, 300);
    let ended = b.scope(|scope| {
        for chunk in sink.scatter_element(..)?.chunks_mut(100)? {
            drop(scope.post_receive(chunk)?);
        }
        let mut chunks = from.gather_element(..)?.chunks(100)?;
        let sends: [_; 3] = std::array::from_fn(|_| Outgoing::send(chunks.next().unwrap()));
        a.run_batch(sends)?;
        Ok::<_, Error>(())
    });
    ended.unwrap();
    assert!(sink[..] == from[..]);
}

/// Eight writes of owned blocks, to consecutive places.
fn owned_eight(pool: &BufferPool, seed: usize, to: RemoteMemoryRegion) -> Vec<OwnedRequest> {
    let bytes = pattern(seed, 800);
    let works = bytes.chunks(100).zip(0_u64..).map(|(chunk, index)| {
        let mut block = pool.take().unwrap();
        block.copy_from_slice(chunk);
        Outgoing::write(block, to.slice(index * 100..).unwrap()).into()
    });
    works.collect()
}

#[test]
#[ignore = "needs an RDMA device"]
fn owned_batch_is_returned_and_can_be_started_again() {
    let _test = begin!();
    let (mut a, b) = pair();
    let target = given(&b, vec![0_u8; 800]);
    let pool = BufferPool::new(a.pd(), 100, 8).unwrap();
    let mut works = owned_eight(&pool, 0, target.remote());
    for round in 1..50 {
        for (work, chunk) in works.iter_mut().zip(pattern(round, 800).chunks(100)) {
            work.buffer_mut().copy_from_slice(chunk);
        }
        let ticket = a.start_batch(works).unwrap();
        let ended = a.wait(ticket, Some(PATIENCE)).unwrap().expect("in time");
        ended.result.unwrap();
        works = ended.batch.unwrap();
        assert!(bytes(&target) == pattern(round, 800), "round {round}");
    }
    drop(works);
    assert_eq!((pool.available(), a.is_idle()), (8, true));
}

#[test]
#[ignore = "needs an RDMA device"]
fn owned_batch_mixes_all_opcodes_of_the_send_queue() {
    let _test = begin!(iwarp lacks "atomics");
    let (mut a, mut b) = pair();
    let target = given(&b, vec![0_u8; 64]);
    let receive = b.start_receive(zeros(&b, 64)).unwrap();
    // Each request sees the effects of those before it.
    let works = vec![
        Outgoing::write(filled(&a, 1, 64), target.remote()).into(),
        Incoming::read(zeros(&a, 64), target.remote()).into(),
        Incoming::fetch_and_add(zeros(&a, 8), target.remote(), 1).into(),
        Outgoing::send(filled(&a, 2, 64))
            .immediate(7)
            .fence()
            .into(),
    ];
    let ticket = a.start_batch(works).unwrap();
    let ended = a.wait(ticket, Some(PATIENCE)).unwrap().expect("in time");
    ended.result.unwrap();
    let batch = ended.batch.unwrap();
    assert!(batch[1].buffer()[..] == pattern(1, 64));
    assert!(batch[2].buffer()[..] == pattern(1, 64)[..8]);
    let received = b.wait(receive, Some(PATIENCE)).unwrap().expect("in time");
    assert_eq!(received.result.unwrap().imm_data(), Some(7));
    assert!(received.buffer.unwrap()[..] == pattern(2, 64));
}

#[test]
#[ignore = "needs an RDMA device"]
fn owned_batches_longer_than_those_on_the_stack_complete() {
    let _test = begin!();
    let (mut a, b) = pair();
    let target = given(&b, vec![0_u8; 64]);
    let pool = BufferPool::new(a.pd(), 1, 64).unwrap();
    let works = (0..64_u8).map(|index| {
        let mut block = pool.take().unwrap();
        block[0] = index;
        let place = target.remote().slice(u64::from(index)..).unwrap();
        OwnedRequest::from(Outgoing::write(block, place))
    });
    let ticket = a.start_batch(works.collect()).unwrap();
    assert_eq!(a.credits(Queue::Send), 0);
    let ended = a.wait(ticket, Some(PATIENCE)).unwrap().expect("in time");
    ended.result.unwrap();
    assert!(bytes(&target).into_iter().eq(0..64));
    assert_eq!(
        (
            ended.batch.as_ref().map_or(0, Vec::len),
            a.credits(Queue::Send)
        ),
        (64, 64)
    );
}
