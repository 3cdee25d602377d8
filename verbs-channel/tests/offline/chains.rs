//! Chains that were built once, on a channel: one operation, whose buffers the caller manages.

use fake_libibverbs::with;
use verbs_channel::error::{Queue, Rejected};
use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::codes::WcStatus;
use verbs_channel::verbs_core::memory::Sge;
use verbs_channel::verbs_core::verbs_sys::IBV_WC_REM_ACCESS_ERR;
use verbs_channel::verbs_core::work_request::RequestChain;
use verbs_channel::verbs_core::{
    GatherElement, RemoteMemoryRegion, SendWorkRequest, WriteWorkRequest,
};
use verbs_channel::{BufferPool, DownReason, Outgoing, RejectReason, TransportError};
use verbs_harness::logged::listen;

use crate::fake_device::{
    self, LONG, called, channel, channel_with, ends, flushes, pd, posted, refuse, succeeds,
};
use crate::gate::without_reads;

/// Writes of 8 bytes each. The library reads no memory of theirs.
fn writes(len: usize) -> RequestChain<WriteWorkRequest<'static>> {
    let mut chain = RequestChain::writes(len, 2).unwrap();
    for (index, at) in (0..len).zip((0..).step_by(8)) {
        let remote = RemoteMemoryRegion::new(0x7000 + at, 8, 9).unwrap();
        chain.set(index, Sge::new(0, 0, 1), &remote).unwrap();
    }
    chain
}

fn sends(len: usize) -> RequestChain<SendWorkRequest<'static>> {
    RequestChain::sends(len, 2).unwrap()
}

/// Whether each request of the last post was signalled.
fn signaled() -> Vec<bool> {
    let is_signaled = |posted: &fake_libibverbs::Posted| posted.send_flags & 2 != 0;
    with(|library| {
        library
            .posted
            .last()
            .unwrap()
            .iter()
            .map(is_signaled)
            .collect()
    })
}

#[test]
fn chain_is_one_doorbell_one_slot_and_one_completion_each_time() {
    let mut channel = channel();
    let mut chain = writes(4).signal_every(1);
    for round in 0..5 {
        let end = 4 - round % 2;
        // SAFETY: the requests name no memory.
        let ticket = unsafe { channel.post_chain_unpolled(&mut chain, ..end) }.unwrap();
        assert_eq!(with(|library| library.posted.len()), round + 1, "doorbells");
        let mut expected = vec![false; end];
        expected[end - 1] = true;
        assert_eq!(signaled(), expected);
        assert_eq!(channel.credits(Queue::Send) as usize, 4 - end);
        assert!(channel.poll(ticket).unwrap().is_none());
        succeeds(*posted().last().unwrap());
        let ended = channel.poll(ticket).unwrap().unwrap();
        assert_eq!(ended.result.unwrap().wr_id(), *posted().last().unwrap());
        assert!(ended.buffer.is_none() && ended.batch.is_none());
        assert_eq!(channel.credits(Queue::Send), 4);
        assert!(channel.poll(ticket).is_err(), "it was taken");
    }
}

#[test]
fn operation_of_several_requests_ends_when_its_last_request_does() {
    for (way, failed) in (0..3).flat_map(|way| (0..3).map(move |failed| (way, failed))) {
        let mut channel = channel_with(LONG);
        let pool = BufferPool::new(channel.pd(), 64, 3).unwrap();
        let ticket = match way {
            0 => channel.start_batch(fake_device::sends(&pool, 3)).unwrap(),
            1 => {
                let chain = OwnedChain::new(fake_device::sends(&pool, 3)).unwrap();
                channel.start_chain(chain).unwrap()
            }
            // SAFETY: the requests name no memory.
            _ => unsafe { channel.post_chain_unpolled(&mut sends(3), ..) }.unwrap(),
        };
        ends(posted()[failed], IBV_WC_REM_ACCESS_ERR);
        for &later in &posted()[failed + 1..] {
            assert!(
                channel.poll(ticket).unwrap().is_none(),
                "the rest is in flight"
            );
            flushes(later);
        }
        let ended = channel.poll(ticket).unwrap().unwrap();
        let TransportError::Work { error, .. } = ended.result.unwrap_err() else {
            panic!("no work error");
        };
        assert_eq!(error.status, WcStatus::REM_ACCESS_ERR);
        assert!(ended.chain.is_none_or(|chain| chain.done() == failed));
        assert!(channel.is_down() && channel.is_idle());
    }
}

#[test]
fn request_beyond_a_limit_is_not_posted() {
    let mut channel = channel();
    let (mut chain, mut long) = (sends(2), sends(5));
    let mut post = |chain: &mut _, range: std::ops::Range<usize>| {
        // SAFETY: nothing is posted.
        unsafe { channel.post_chain_unpolled(chain, range) }.unwrap_err()
    };
    assert_eq!(post(&mut chain, 1..1), RejectReason::EmptyBatch);
    assert!(matches!(post(&mut chain, 1..3), RejectReason::Post(_)));
    assert!(matches!(
        post(&mut long, 0..5),
        RejectReason::BatchTooLong { asked: 5, .. }
    ));
    // It takes minutes under Miri.
    if !cfg!(miri) {
        let mut huge = sends(1 << 16);
        assert!(matches!(
            post(&mut huge, 0..1 << 16),
            RejectReason::BatchTooLong { asked: 65536, .. }
        ));
    }
    // Together they are longer than 4 GiB, which drivers count as 8 bytes.
    let list = [u32::MAX, 9].map(|length| Sge::new(0x1000, length, 1));
    chain.set_list(1, list).unwrap();
    assert!(matches!(
        post(&mut chain, 0..2),
        RejectReason::MessageTooLong {
            len: 0x1_0000_0008,
            ..
        }
    ));
    let mut inline = sends(2).inline();
    inline.set(1, Sge::new(0x1000, 100, 1)).unwrap();
    assert!(matches!(
        post(&mut inline, 0..2),
        RejectReason::InlineTooLong { len: 100, .. }
    ));
    let mut many = RequestChain::sends(1, 40).unwrap();
    many.set_list(0, [Sge::new(0x1000, 1, 1); 40]).unwrap();
    assert!(matches!(
        post(&mut many, 0..1),
        RejectReason::TooManyElements { count: 40, .. }
    ));
    assert_eq!(with(|library| library.posted.len()), 0, "no doorbell");
    assert_eq!(
        (channel.credits(Queue::Send), channel.is_down()),
        (4, false)
    );
    // The first of them has nothing wrong with it.
    // SAFETY: the request names no memory.
    let ticket = unsafe { channel.post_chain_unpolled(&mut chain, ..1) }.unwrap();
    succeeds(posted()[0]);
    channel.poll(ticket).unwrap().unwrap().result.unwrap();
}

#[test]
fn reads_need_a_read_depth_and_room_is_counted() {
    let mut without = without_reads(&pd());
    let mut reads = RequestChain::reads(2, 1).unwrap();
    // SAFETY: nothing is posted.
    let rejected = unsafe { without.post_chain_unpolled(&mut reads, ..) }.unwrap_err();
    assert_eq!(rejected, RejectReason::NoReads);
    let mut channel = channel();
    let mut chain = sends(3);
    // SAFETY: the requests name no memory.
    unsafe { channel.post_chain_unpolled(&mut chain, ..) }.unwrap();
    // SAFETY: the requests name no memory.
    let full = unsafe { channel.post_chain_unpolled(&mut chain, ..) }.unwrap_err();
    assert_eq!(full, RejectReason::Backpressure(Queue::Send));
    channel.abort();
    // SAFETY: nothing is posted.
    let down = unsafe { channel.post_chain_unpolled(&mut chain, ..) }.unwrap_err();
    assert!(matches!(down, RejectReason::Down(_)));
}

#[test]
fn unpolled_request_or_chain_that_is_posted_in_part_ends_by_its_ticket() {
    listen();
    for (is_chain, is_stuck) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut channel = channel();
        let mut chain = writes(3);
        with(|library| library.refuse_post = Some((usize::from(is_chain), libc::EIO, is_chain)));
        refuse("ibv_destroy_qp", usize::from(is_stuck));
        let empty = Outgoing::send(Vec::<GatherElement<'_>>::new());
        let ticket = match is_chain {
            // SAFETY: the requests name no memory.
            true => unsafe { channel.post_chain_unpolled(&mut chain, ..) },
            // SAFETY: the request names no memory.
            false => unsafe { channel.post_unpolled(empty) }.map_err(Rejected::into_error),
        };
        let ticket = ticket.unwrap();
        assert!(called("ibv_destroy_qp"));
        let error = channel.poll(ticket).unwrap().unwrap().result.unwrap_err();
        assert_eq!(error == TransportError::Stuck, is_stuck, "{error:?}");
        assert!(matches!(channel.down_reason(), Some(DownReason::Post(_))));
    }
    // A request that the driver rejects first leaves the channel as it was.
    let mut channel = channel();
    let mut chain = writes(3);
    with(|library| library.refuse_post = Some((0, libc::EIO, true)));
    // SAFETY: nothing is posted.
    let rejected = unsafe { channel.post_chain_unpolled(&mut chain, ..) }.unwrap_err();
    assert!(matches!(rejected, RejectReason::Post(_)));
    assert_eq!(
        (channel.credits(Queue::Send), channel.is_down()),
        (4, false)
    );
}
