//! Once a channel has been built, no operation allocates.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Instant;

use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::{Device, MemoryRegion, RemoteMemoryRegion, ScatterElement};
use verbs_channel::{
    BufferPool, Channel, Datagrams, Error, Incoming, Outgoing, OwnedRequest, ScopedPendingWork,
    SharedMemory, Transfer,
};
use verbs_harness::allocations::allocations;
use verbs_harness::{PATIENCE, begin, device_name, peer_name};

use super::ends::{filled, given, inside, patient, zeros};

/// Asserts that something allocates nothing in this thread.
fn without<T>(name: &str, what: impl FnOnce() -> T) -> T {
    let before = allocations();
    let result = what();
    assert_eq!(allocations() - before, 0, "{name}");
    result
}

#[test]
#[ignore = "needs an RDMA device"]
fn no_operation_allocates() {
    let _test = begin!();
    let counted = std::hint::black_box(vec![1_u8]);
    assert!(allocations() > 0, "{counted:?}");
    let (mut a, mut b) = inside(patient);
    let (from, mut into) = (filled(&a, 1, 64), zeros(&b, 64));
    let target = given(&b, vec![0_u8; 64]);
    let remote = target.remote();
    let pool = BufferPool::new(a.pd(), 64, 40).unwrap();
    let memory = SharedMemory::new([given(&a, vec![0_u8; 64])]);
    drop(memory.slice(..).unwrap());
    let batch = |length: usize| -> Vec<OwnedRequest> {
        let blocks = (0..length).map(|_| pool.take().unwrap());
        blocks
            .map(|block| Outgoing::write(block, remote).into())
            .collect()
    };
    let mut chain = Some(OwnedChain::new(batch(8)).unwrap());
    for _ in 0..3 {
        without("blocking", || {
            a.write(from.gather_element(..).unwrap(), remote).unwrap();
            a.run_batch([Outgoing::write(from.gather_element(..).unwrap(), remote); 4])
                .unwrap();
        });
        without("scopes, loans and a batch", || {
            both(&mut a, &mut b, &mut into, &from, remote).unwrap();
        });
        without("a block that is free", || {
            let taken = pin!(pool.take_when_free());
            let taken = taken.poll(&mut Context::from_waker(Waker::noop()));
            assert!(taken.is_ready());
            drop(pool.take_with(b"filled").unwrap().unwrap());
        });
        without("owned buffers", || {
            let tickets: [_; 4] =
                std::array::from_fn(|_| a.start_write(pool.take().unwrap(), remote).unwrap());
            for ticket in tickets {
                let buffer = a.wait(ticket, Some(PATIENCE)).unwrap().unwrap().buffer;
                drop(buffer.unwrap().into_block().unwrap());
            }
        });
        without("slices of shared memory", || {
            for _ in 0..3 {
                let slices = [0, 16, 32].map(|at| memory.slice(at..at + 16).unwrap());
                let tickets = slices.map(|slice| a.start_write(slice, remote).unwrap());
                for ticket in tickets {
                    let buffer = a.wait(ticket, Some(PATIENCE)).unwrap().unwrap().buffer;
                    drop(buffer.unwrap().into_shared().unwrap());
                }
            }
        });
        for length in [1, 8, 9, 32] {
            let works = batch(length);
            let ended = without("owned batches", || {
                let ticket = a.start_batch(works).unwrap();
                a.wait(ticket, Some(PATIENCE)).unwrap().unwrap()
            });
            ended.result.unwrap();
        }
        without("an owned chain", || {
            let ticket = a.start_chain(chain.take().unwrap()).unwrap();
            let ended = a.wait(ticket, Some(PATIENCE)).unwrap().unwrap();
            ended.result.unwrap();
            chain = ended.chain;
        });
        without("what is refused", || {
            let short = remote.slice(..1).unwrap();
            assert!(a.write(from.gather_element(..).unwrap(), short).is_err());
            drop(a.start_write(pool.take().unwrap(), short).unwrap_err());
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn no_datagram_allocates() {
    let _test = begin!(iwarp lacks "datagrams");
    let [here, there] = [device_name(), peer_name()]
        .map(|name| Device::by_name(&name).unwrap().open().unwrap())
        .map(|context| context.alloc_pd().unwrap());
    let mut asks = Datagrams::builder(&here).build().unwrap();
    let mut answers = Datagrams::builder(&there).build().unwrap();
    let pool = BufferPool::new(&here, 64, 4).unwrap();
    let server = answers.endpoint();
    let mut round = || {
        for _ in 0..4 {
            let question = pool.take_with(b"question").unwrap().unwrap();
            asks.send_to(&server, question).unwrap();
        }
        for _ in 0..4 {
            let question = answers.receive_from(Some(PATIENCE)).unwrap().unwrap();
            let from = question.from();
            answers.send_to(&from, question.into_buffer()).unwrap();
        }
        for _ in 0..4 {
            let answer = asks.receive_from(Some(PATIENCE)).unwrap().unwrap();
            assert_eq!(&answer[..], b"question");
        }
        assert!(asks.flush(Some(PATIENCE)) && answers.flush(Some(PATIENCE)));
    };
    round();
    without("datagrams", || (0..5).for_each(|_| round()));
}

fn both(
    a: &mut Channel,
    b: &mut Channel,
    into: &mut MemoryRegion<Vec<u8>>,
    from: &MemoryRegion<Vec<u8>>,
    remote: RemoteMemoryRegion,
) -> Result<(), Error> {
    let ended = b.scope(|theirs| {
        let (first, second) = into.scatter_element(..)?.split_at_mut(32)?;
        let receive: ScopedPendingWork<'_, '_, ScatterElement<'_>> =
            theirs.lend(Incoming::receive(first))?;
        let read = theirs.post(Incoming::read(second, remote))?;
        let sent = a.scope(|ours| {
            let batch = [Outgoing::send(from.gather_element(..32)?)];
            ours.post_batch(batch)?.spin_poll()?;
            Ok::<_, Error>(())
        });
        assert!(sent.is_ok());
        read.spin_poll()?;
        receive.spin_poll().0?;
        Ok::<_, Error>(())
    });
    assert!(ended.is_ok());
    Ok(())
}

#[test]
#[ignore = "needs an RDMA device"]
fn transfer_that_is_used_again_allocates_nothing() {
    let _test = begin!();
    let (mut a, b) = inside(patient);
    let target = given(&b, vec![0_u8; 64]);
    let pool = BufferPool::new(a.pd(), 64, 200).unwrap();
    let mut transfer = Transfer::with_capacity(200);
    for round in 0..3 {
        let before = allocations();
        // More than the send queue holds.
        while let Some(block) = pool.take() {
            transfer.add(a.id(), Outgoing::write(block, target.remote()));
        }
        a.transfer(&mut transfer, Some(Instant::now() + PATIENCE))
            .unwrap();
        let done = transfer.drain().filter(|outcome| outcome.result.is_ok());
        assert_eq!(done.count(), 200);
        assert!(round == 0 || allocations() == before, "round {round}");
    }
    assert_eq!(pool.available(), 200);
}
