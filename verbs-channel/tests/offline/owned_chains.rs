//! Chains of requests on owned buffers: built once, started again and again, and returned.

use fake_libibverbs::{Posted, with};
use verbs_channel::error::Queue;
use verbs_channel::request::OwnedChain;
use verbs_channel::verbs_core::verbs_sys::IBV_WC_WR_FLUSH_ERR;
use verbs_channel::verbs_core::{AccessFlags, ProtectionDomain, SharedRegion};
use verbs_channel::{
    BufferPool, Channel, DownReason, Incoming, Outgoing, OwnedBuffer, OwnedRequest, RejectReason,
    SharedMemory, Ticket, TransportError,
};

use crate::fake_device::{
    DRAIN, called, channel, connected, ends, flushes, forget_the_past, pd, posted, remote, sends,
    shut_down, succeeds,
};

const SIGNALED: u32 = 2;

/// Requests of each kind, with options.
fn of_each_kind(pd: &ProtectionDomain) -> Vec<OwnedRequest> {
    let buffer = |len: usize| {
        let mut buffer = OwnedBuffer::from(pd.reg_mr(vec![3_u8; 64]).unwrap());
        buffer.set_range(8..8 + len).unwrap();
        buffer
    };
    let memory = SharedMemory::new([shared(pd)]);
    let slice = memory.slice(16..32).unwrap();
    vec![
        Outgoing::write(slice, remote()).fence().into(),
        Outgoing::write(buffer(9), remote()).inline().into(),
        Incoming::read(buffer(10), remote()).into(),
        Incoming::compare_and_swap(buffer(8), remote(), 3, 4).into(),
        Incoming::fetch_and_add(buffer(8), remote(), 5)
            .fence()
            .into(),
        Outgoing::write(buffer(11), remote()).immediate(6).into(),
        Outgoing::send(OwnedBuffer::empty()).immediate(7).into(),
        Outgoing::send(buffer(12)).solicited().into(),
    ]
}

fn shared(pd: &ProtectionDomain) -> SharedRegion<Vec<u8>> {
    let access = AccessFlags::LOCAL_WRITE;
    pd.reg_shared(vec![1_u8; 64], access).unwrap()
}

/// A channel with room for `requests` requests.
fn channel_for(requests: u32) -> Channel {
    let builder = Channel::builder(&pd()).max_send_wr(requests).max_recv_wr(4);
    let builder = builder.max_inline_data(64).drain_timeout(DRAIN);
    connected(builder.build().unwrap())
}

/// The last post, with the `wr_id`s left out.
fn last_post() -> Vec<Posted> {
    let mut post = with(|library| library.posted.last().unwrap().clone());
    post.iter_mut().for_each(|posted| posted.wr_id = 0);
    post
}

/// The last request of the last post completes, and the chain comes back.
fn finish(channel: &mut Channel, ticket: Ticket) -> OwnedChain {
    assert!(channel.poll(ticket).unwrap().is_none());
    succeeds(*posted().last().unwrap());
    let ended = channel.poll(ticket).unwrap().unwrap();
    ended.result.unwrap();
    assert!(ended.buffer.is_none() && ended.batch.is_none());
    ended.chain.unwrap()
}

fn start(channel: &mut Channel, chain: OwnedChain) -> (RejectReason, OwnedChain) {
    channel.start_chain(chain).unwrap_err().into_parts()
}

#[test]
fn chain_is_posted_as_the_same_batch_each_time() {
    let mut channel = channel_for(8);
    let ticket = channel.start_batch(of_each_kind(channel.pd())).unwrap();
    let expected = last_post();
    succeeds(*posted().last().unwrap());
    let batch = channel.poll(ticket).unwrap().unwrap().batch.unwrap();
    let mut chain = OwnedChain::new(batch).unwrap();
    assert_eq!((chain.len(), chain.range(), chain.done()), (8, 0..8, 0));
    for _ in 0..3 {
        forget_the_past();
        let ticket = channel.start_chain(chain).unwrap();
        assert_eq!(with(|library| library.posted.len()), 1, "doorbells");
        assert_eq!(last_post(), expected);
        assert_eq!(channel.credits(Queue::Send), 0);
        chain = finish(&mut channel, ticket);
        assert_eq!((chain.done(), channel.credits(Queue::Send)), (8, 8));
        assert!(channel.poll(ticket).is_err(), "it was taken");
    }
    let ticket = channel.start_batch(chain.into_requests()).unwrap();
    assert_eq!(last_post(), expected, "its requests are unchanged");
    succeeds(*posted().last().unwrap());
    channel.poll(ticket).unwrap().unwrap().result.unwrap();
}

#[test]
fn each_range_is_posted_alone() {
    let mut channel = channel_for(8);
    let mut chain = OwnedChain::new(of_each_kind(channel.pd())).unwrap();
    let ticket = channel.start_chain(chain).unwrap();
    let whole = last_post();
    chain = finish(&mut channel, ticket);
    for (start, end) in [(0, 1), (7, 8), (2, 5), (0, 7), (1, 8), (4, 5), (0, 8)] {
        chain.set_range(start..end).unwrap();
        assert_eq!(chain.done(), 0);
        let ticket = channel.start_chain(chain).unwrap();
        let mut part = whole[start..end].to_vec();
        part.last_mut().unwrap().send_flags |= SIGNALED;
        assert_eq!(last_post(), part);
        chain = finish(&mut channel, ticket);
        assert_eq!((chain.range(), chain.done()), (start..end, end - start));
    }
    assert!(chain.set_range(..9).is_err());
    assert_eq!(chain.range(), 0..8, "it is not changed");
    // Longer than its queue: part by part.
    let mut channel = channel_for(3);
    let mut long = OwnedChain::blank(7);
    for start in (0..7).step_by(3) {
        long.set_range(start..7.min(start + 3)).unwrap();
        let ticket = channel.start_chain(long).unwrap();
        assert_eq!(last_post().len(), if start < 6 { 3 } else { 1 });
        assert!(last_post().iter().all(|blank| blank.list.is_empty()));
        long = finish(&mut channel, ticket);
    }
    assert_eq!(channel.credits(Queue::Send), 3);
}

#[test]
fn replaced_request_is_posted_and_the_previous_one_is_returned() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 8).unwrap();
    let mut chain = OwnedChain::new(sends(&pool, 3)).unwrap();
    let mut block = pool.take().unwrap();
    block.fill(9);
    let addr = block.as_ptr().addr() as u64;
    let before = chain.request(1).unwrap().buffer().as_ptr();
    let previous = chain.set(1, Outgoing::write(block, remote())).unwrap();
    assert_eq!(previous.as_ptr(), before);
    assert_eq!(pool.available(), 4, "the chain has three");
    drop(previous);
    assert_eq!(pool.available(), 5);
    chain.bytes_mut(1).unwrap()[0] = 8;
    let bytes = &chain.request(1).unwrap().buffer()[..2];
    assert_eq!(bytes, [8, 9]);
    let ticket = channel.start_chain(chain).unwrap();
    let post = last_post();
    assert_eq!((post[1].opcode, post[1].list[0].0), (0, addr));
    assert_eq!((post[1].remote_addr, post[1].rkey), (0x1000, 77));
    assert_eq!((post[0].opcode, post[2].opcode), (2, 2));
    let mut chain = finish(&mut channel, ticket);

    // A chain that cannot be posted is handed back, and nothing is changed.
    let short = remote().slice(..1).unwrap();
    let rejected = chain.set(1, Outgoing::write(pool.take().unwrap(), short));
    let rejected = rejected.unwrap_err();
    let (local, remote) = (64, 1);
    let too_short = RejectReason::RemoteTooShort { local, remote };
    assert_eq!(*rejected.error(), too_short);
    assert_eq!(rejected.into_given().buffer().len(), 64);
    let receive = OwnedRequest::receive(pool.take().unwrap());
    let receive = chain.set(0, receive).unwrap_err();
    assert_eq!(*receive.error(), RejectReason::ReceiveInBatch);
    drop(receive);
    for (mut short, len) in [
        (OwnedChain::new(sends(&pool, 3)).unwrap(), 3),
        (OwnedChain::blank(0), 0),
    ] {
        let past = short.set(len, Outgoing::send(pool.take().unwrap()));
        let (why, back) = past.unwrap_err().into_parts();
        assert_eq!(why, RejectReason::NoRequest { index: len, len });
        assert_eq!(back.buffer().len(), 64);
    }
    assert!(chain.request(3).is_none() && chain.bytes_mut(3).is_none());
    assert_eq!(pool.available(), 5);
    let ticket = channel.start_chain(chain).unwrap();
    assert_eq!(last_post(), post);
    assert_eq!(finish(&mut channel, ticket).into_requests().len(), 3);
}

#[test]
fn aborted_chain_counts_those_that_are_known_to_have_succeeded() {
    for flushed in 0..3 {
        let mut channel = channel();
        let ticket = channel.start_chain(OwnedChain::blank(3)).unwrap();
        shut_down(&mut channel);
        posted()[flushed..].iter().copied().for_each(flushes);
        let ended = channel.poll(ticket).unwrap().unwrap();
        assert!(matches!(ended.result, Err(TransportError::Aborted(_))));
        assert_eq!(ended.chain.unwrap().done(), flushed);
    }
    // Without a completion nothing is known; with some of them, what they show.
    for is_flushed in [false, true] {
        let mut channel = channel();
        let ticket = channel.start_chain(OwnedChain::blank(3)).unwrap();
        if is_flushed {
            ends(posted()[1], IBV_WC_WR_FLUSH_ERR);
        }
        channel.engine_mut().destroy_all(DownReason::Closed);
        let ended = channel.poll(ticket).unwrap().unwrap();
        assert!(ended.result.is_err());
        assert_eq!(ended.chain.unwrap().done(), usize::from(is_flushed));
    }
}

#[test]
fn chain_beyond_a_limit_is_handed_back() {
    let mut channel = channel();
    let (why, back) = start(&mut channel, OwnedChain::default());
    assert_eq!((why, back.len()), (RejectReason::EmptyBatch, 0));
    let mut empty = OwnedChain::blank(2);
    empty.set_range(1..1).unwrap();
    let (why, back) = start(&mut channel, empty);
    assert_eq!((why, back.len()), (RejectReason::EmptyBatch, 2));
    let (asked, max) = (5, 4);
    let (why, back) = start(&mut channel, OwnedChain::blank(5));
    assert_eq!(why, RejectReason::BatchTooLong { asked, max });
    assert_eq!(back.len(), 5);

    let long = channel.pd().reg_mr(vec![0_u8; 65]).unwrap();
    let inline = vec![
        Outgoing::send(OwnedBuffer::empty()).into(),
        Outgoing::send(long).inline().into(),
    ];
    let (why, mut back) = start(&mut channel, OwnedChain::new(inline).unwrap());
    let (len, max) = (65, 64);
    assert_eq!(why, RejectReason::InlineTooLong { len, max });
    // The others of it pass.
    back.set_range(..1).unwrap();
    let ticket = channel.start_chain(back).unwrap();
    assert_eq!(finish(&mut channel, ticket).len(), 2);
    let posts = with(|library| library.posted.len());
    assert_eq!((posts, channel.credits(Queue::Send)), (1, 4));
}

#[test]
fn full_queue_is_backpressure() {
    let mut channel = channel();
    let ticket = channel.start_chain(OwnedChain::blank(3)).unwrap();
    let (full, back) = start(&mut channel, OwnedChain::blank(2));
    assert_eq!(full, RejectReason::Backpressure(Queue::Send));
    assert!(full.is_backpressure());
    assert_eq!((back.len(), back.done()), (2, 0));
    drop(finish(&mut channel, ticket));
    let ticket = channel.start_chain(back).unwrap();
    drop(finish(&mut channel, ticket));
    assert!(channel.is_idle());
}

#[test]
fn requests_that_no_channel_takes_are_handed_back() {
    let pd = pd();
    let buffer = || pd.reg_mr(vec![0_u8; 64]).unwrap();
    let short = remote().slice(..1).unwrap();
    let slice = SharedMemory::new([shared(&pd)]).slice(..);
    let wrong: [OwnedRequest; 4] = [
        OwnedRequest::receive(buffer()),
        Outgoing::write(buffer(), short).into(),
        Incoming::fetch_and_add(buffer(), remote(), 1).into(),
        Outgoing::send(slice.unwrap()).inline().into(),
    ];
    for last in wrong {
        let requests = vec![Outgoing::send(buffer()).into(), last];
        let rejected = OwnedChain::new(requests).unwrap_err();
        assert!(!rejected.error().is_backpressure(), "{rejected}");
        assert_eq!(rejected.into_given().len(), 2);
    }
    let most = OwnedChain::MAX_LEN;
    let requests = |count| {
        let empty = || Outgoing::send(OwnedBuffer::empty()).into();
        std::iter::repeat_with(empty).take(count).collect()
    };
    let rejected = OwnedChain::new(requests(most + 1)).unwrap_err();
    let (asked, max) = (65_536, 65_535);
    assert_eq!(*rejected.error(), RejectReason::BatchTooLong { asked, max });
    // It takes minutes under Miri.
    if !cfg!(miri) {
        assert_eq!(OwnedChain::new(requests(most)).unwrap().len(), most);
    }
}

#[test]
fn chain_of_another_protection_domain_is_rejected_until_its_buffers_are_replaced() {
    let mut channel = channel();
    let other = pd();
    let memory = |pd| SharedMemory::new([shared(pd)]);
    let (ours, others) = (memory(channel.pd()), memory(&other));
    let ours = |len| Outgoing::write(ours.slice(..len).unwrap(), remote());
    let others = |len| Outgoing::write(others.slice(..len).unwrap(), remote());
    let requests = vec![others(8).into(), others(8).into()];
    let (why, mut chain) = start(&mut channel, OwnedChain::new(requests).unwrap());
    assert_eq!(why, RejectReason::OtherDomain);
    for index in 0..2 {
        let (why, back) = start(&mut channel, chain);
        assert_eq!(why, RejectReason::OtherDomain);
        chain = back;
        chain.set(index, ours(index + 1)).unwrap();
    }
    let ticket = channel.start_chain(chain).unwrap();
    drop(finish(&mut channel, ticket));
    let mut mixed = OwnedChain::new(vec![ours(8).into(), others(8).into()]).unwrap();
    mixed.set_range(..1).unwrap();
    let ticket = channel.start_chain(mixed).unwrap();
    drop(finish(&mut channel, ticket));
}

#[test]
fn chain_keeps_its_memory_until_the_device_is_done_with_it() {
    let mut channel = channel();
    let memory = SharedMemory::new([shared(channel.pd())]);
    let writes = (0..3).map(|_| Outgoing::write(memory.slice(..8).unwrap(), remote()).into());
    let chain = OwnedChain::new(writes.collect()).unwrap();
    let ticket = channel.start_chain(chain).unwrap();
    drop(memory);
    assert!(!called("ibv_dereg_mr"));
    // Its ticket is lost: it is still returned.
    succeeds(*posted().last().unwrap());
    let ended = channel.next_completed().unwrap();
    assert_eq!(ended.ticket, ticket);
    let requests = ended.chain.unwrap().into_requests();
    assert!(!called("ibv_dereg_mr"));
    drop(requests);
    assert!(called("ibv_dereg_mr"));
}
