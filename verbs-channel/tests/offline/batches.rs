//! Batches of owned buffers: no buffer is released before the whole batch has completed.

use fake_libibverbs::with;
use verbs_channel::error::Queue;
use verbs_channel::{
    BufferPool, Channel, DownReason, Incoming, Outgoing, OwnedRequest, RejectReason,
};

use crate::fake_device::{
    channel, connected, forget_the_past, pd, posted, region, remote, sends, succeeds,
};

#[test]
fn a_batch_is_one_doorbell_one_completion_and_one_ticket() {
    let builder = Channel::builder(&pd()).max_send_wr(200).max_recv_wr(4);
    let mut channel = connected(builder.build().unwrap());
    let pool = BufferPool::new(channel.pd(), 64, 200).unwrap();
    // Around the limits of each way in which a chain is built.
    let counts = [1, 2, 7, 8, 9, 31, 32, 33, 100, 200];
    for count in counts.into_iter().take(if cfg!(miri) { 5 } else { 10 }) {
        forget_the_past();
        let works = sends(&pool, count);
        let addresses: Vec<_> = works
            .iter()
            .map(|work| work.buffer().as_ptr().addr() as u64)
            .collect();
        let ticket = channel.start_batch(works).unwrap();
        assert_eq!(channel.credits(Queue::Send) as usize, 200 - count);
        let (sent, signaled) = with(|library| {
            assert_eq!(library.posted.len(), 1, "doorbells");
            let chain = &library.posted[0];
            let sent: Vec<_> = chain.iter().map(|posted| posted.list[0].0).collect();
            let signaled: Vec<_> = chain.iter().map(|posted| posted.send_flags & 2).collect();
            (sent, signaled)
        });
        assert_eq!(sent, addresses);
        let (last, others) = signaled.split_last().unwrap();
        assert!(*last == 2 && others.iter().all(|flags| *flags == 0));
        assert!(channel.poll(ticket).unwrap().is_none());
        assert_eq!(pool.available(), 200 - count, "the device has them");
        succeeds(*posted().last().unwrap());
        let ended = channel.poll(ticket).unwrap().unwrap();
        ended.result.unwrap();
        assert!(ended.buffer.is_none());
        assert_eq!(
            (ended.batch.as_ref().map_or(0, Vec::len), pool.available()),
            (count, 200 - count)
        );
        drop(ended.batch);
        assert_eq!((pool.available(), channel.is_idle()), (200, true));
    }
}

#[test]
fn invalid_batches_are_rejected_with_all_requests() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 8).unwrap();
    let receive = |pool: &BufferPool| OwnedRequest::receive(pool.take().unwrap());
    let short = remote().slice(..1).unwrap();
    let write = |pool: &BufferPool| Outgoing::write(pool.take().unwrap(), short).into();
    let add = |pool: &BufferPool| Incoming::fetch_and_add(pool.take().unwrap(), remote(), 1).into();
    let wrong: [&dyn Fn(&BufferPool) -> OwnedRequest; 3] = [&receive, &write, &add];
    for last in wrong {
        let mut works = sends(&pool, 2);
        works.push(last(&pool));
        let rejected = channel.start_batch(works).unwrap_err();
        assert!(!rejected.error().is_backpressure(), "{rejected}");
        assert_eq!(rejected.into_given().len(), 3);
        assert_eq!(pool.available(), 8);
    }
    let reject_reason = |works, channel: &mut Channel| {
        let rejected = channel.start_batch(works).unwrap_err();
        *rejected.error()
    };
    let works = vec![receive(&pool)];
    assert_eq!(
        reject_reason(works, &mut channel),
        RejectReason::ReceiveInBatch
    );
    assert_eq!(
        reject_reason(Vec::new(), &mut channel),
        RejectReason::EmptyBatch
    );
    let (asked, max) = (5, 4);
    let too_long = RejectReason::BatchTooLong { asked, max };
    assert_eq!(reject_reason(sends(&pool, 5), &mut channel), too_long);
    // A batch that has no room now.
    let ticket = channel.start_batch(sends(&pool, 3)).unwrap();
    let full = RejectReason::Backpressure(Queue::Send);
    assert_eq!(reject_reason(sends(&pool, 2), &mut channel), full);
    assert_eq!(with(|library| library.posted.len()), 1);
    succeeds(*posted().last().unwrap());
    assert!(channel.poll(ticket).unwrap().is_some());
    assert_eq!((pool.available(), channel.is_idle()), (8, true));
    channel.engine_mut().destroy_all(DownReason::Closed);
    let down = RejectReason::Down(DownReason::Closed);
    assert_eq!(reject_reason(sends(&pool, 2), &mut channel), down);
}

#[test]
fn receive_in_a_borrowed_batch_is_rejected_before_anything_is_posted() {
    let mut channel = channel();
    let mut into = region(&channel);
    let receive = Incoming::receive(into.scatter_element(..).unwrap());
    let error = channel.run_batch([receive]).unwrap_err();
    assert_eq!(error, RejectReason::ReceiveInBatch.into());
    assert!(posted().is_empty() && !channel.is_down());
    // It is no matter of room in the receive queue.
    let pool = BufferPool::new(channel.pd(), 64, 4).unwrap();
    while let Some(block) = pool.take() {
        let _ticket = channel.start_receive(block).unwrap();
    }
    let receive = Incoming::receive(into.scatter_element(..).unwrap());
    let error = channel.run_batch([receive]).unwrap_err();
    assert_eq!(error, RejectReason::ReceiveInBatch.into());
}
