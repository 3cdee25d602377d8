//! Receives that are started before their channel joins.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use fake_libibverbs::{assert_all_is_well, with};
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::verbs_core::ProtectionDomain;
use verbs_async::verbs_channel::verbs_core::codes::WcStatus;
use verbs_async::verbs_channel::verbs_core::verbs_sys::{IBV_WC_RECV, ibv_wc};
use verbs_async::verbs_channel::{BufferPool, Channel, TransportError};
use verbs_async::{AsyncChannel, AsyncGroup};

use crate::bench::{Bench, Task, announce, bounded, done};
use crate::groups::posted;

/// A group of one channel with room for two receives, and a pool of two blocks.
fn group(bench: &Bench) -> (AsyncGroup, BufferPool, ProtectionDomain) {
    let pd = bench.context.alloc_pd().unwrap();
    let builder = Channel::builder(&pd).max_send_wr(2).max_recv_wr(2);
    let group = AsyncGroup::new(builder, 1, &bench.events).unwrap();
    let pool = BufferPool::new(&pd, 64, 2).unwrap();
    (group, pool, pd)
}

/// Joins a channel with a receive for each free block.
fn join(group: &AsyncGroup, pool: &BufferPool) -> AsyncChannel {
    let mut member = group.prepare().unwrap();
    while let Some(block) = pool.take() {
        member.start_receive(block).unwrap();
    }
    with(|library| library.posted.clear());
    let endpoint = member.endpoint();
    let member = member.handshake(&endpoint).unwrap();
    assert!(posted().is_empty());
    group.join(member).unwrap()
}

#[test]
fn prepared_receives_are_operations_of_the_channel_that_joins() {
    let bench = Bench::new();
    let (group, pool, _pd) = group(&bench);
    let channel = join(&group, &pool);
    let ids = posted();
    assert_eq!((ids.len(), channel.credits(Queue::Receive)), (2, 0));
    // One completes before its operation is polled, and one wakes its task.
    done([ids[0]]);
    let mut receives = channel.prepared_receives().into_iter().map(Task::new);
    assert!(
        channel.prepared_receives().is_empty(),
        "they are taken once"
    );
    let (mut first, second) = (receives.next().unwrap(), receives.next().unwrap());
    let mut second = second.waits();
    let (received, block) = first.ends();
    assert_eq!((received.is_ok(), block.capacity()), (true, 64));
    done([ids[1]]);
    announce(&bench);
    assert_eq!(second.was_woken(), 1);
    assert!(second.ends().0.is_ok());
    drop(block);
    assert_eq!(pool.available(), 2);
}

#[test]
fn messages_of_prepared_receives_come_first_and_their_blocks_are_posted_again() {
    let bench = Bench::new();
    let (group, pool, pd) = group(&bench);
    let mut member = group.prepare().unwrap();
    member.start_receive(pool.take().unwrap()).unwrap();
    with(|library| library.posted.clear());
    let endpoint = member.endpoint();
    let channel = group.join(member.handshake(&endpoint).unwrap()).unwrap();
    let region = pd.reg_mr(vec![0_u8; 32]).unwrap();
    let mut incoming = channel.into_incoming([region]);
    let ids = posted();
    let lengths = || -> Vec<u32> {
        let of = |posted: &fake_libibverbs::Posted| posted.list[0].1;
        with(|library| library.posted.iter().flatten().map(of).collect())
    };
    assert_eq!(lengths(), [64, 32]);
    assert!(incoming.channel().prepared_receives().is_empty());
    let received = |wr_id| ibv_wc {
        wr_id,
        opcode: IBV_WC_RECV,
        byte_len: 5,
        ..Default::default()
    };
    with(|library| library.done.extend(ids.into_iter().map(received)));
    for again in [64, 32] {
        let message = Task::new(Box::pin(incoming.next())).ends();
        let message = message.unwrap().unwrap();
        assert_eq!(message.len(), 5);
        drop(message);
        assert_eq!(*lengths().last().unwrap(), again);
    }
    drop(incoming);
}

#[test]
fn message_that_is_said_to_be_longer_than_its_buffer_is_an_error_that_ends_the_channel() {
    let bench = Bench::new();
    let (group, _pool, pd) = group(&bench);
    let member = group.prepare().unwrap();
    let endpoint = member.endpoint();
    let channel = group.join(member.handshake(&endpoint).unwrap()).unwrap();
    with(|library| library.posted.clear());
    let mut incoming = channel.into_incoming([pd.reg_mr(vec![0_u8; 32]).unwrap()]);
    let received = ibv_wc {
        wr_id: posted()[0],
        opcode: IBV_WC_RECV,
        byte_len: 33,
        ..Default::default()
    };
    with(|library| library.done.push_back(received));
    let message = Task::new(Box::pin(incoming.next())).ends();
    match message.unwrap().unwrap_err() {
        TransportError::Work { error, .. } => assert_eq!(error.status, WcStatus::LOC_LEN_ERR),
        error => panic!("{error}"),
    }
    assert!(Task::new(Box::pin(incoming.next())).ends().is_none());
    assert!(incoming.channel().is_down());
}

/// Uses a channel where it is woken, as a task that is polled in place does.
struct UsesChannel(AsyncChannel, AtomicBool);

impl Wake for UsesChannel {
    fn wake(self: Arc<Self>) {
        self.1.store(self.0.is_down(), Ordering::Relaxed);
    }
}

#[test]
fn rejected_prepared_receives_are_dropped_without_the_lock() {
    {
        let bench = Bench::new();
        let pd = bench.context.alloc_pd().unwrap();
        let builder = Channel::builder(&pd).max_recv_wr(2);
        let group = AsyncGroup::new(builder, 2, &bench.events).unwrap();
        let pool = BufferPool::new(&pd, 64, 2).unwrap();
        let other = crate::bench::join(&group);
        other.abort();
        let mut member = group.prepare().unwrap();
        while let Some(block) = pool.take() {
            member.start_receive(block).unwrap();
        }
        let endpoint = member.endpoint();
        let member = member.handshake(&endpoint).unwrap();
        let task = Arc::new(UsesChannel(other, AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&task));
        let mut free = pool.take_when_free();
        let mut cx = Context::from_waker(&waker);
        assert!(Future::poll(Pin::new(&mut free), &mut cx).is_pending());
        with(|library| library.refuse_post = Some((0, libc::ENOMEM, true)));
        let channel = bounded(|| group.join(member).unwrap());
        assert!(channel.is_down());
        assert!(task.1.load(Ordering::Relaxed), "it was not woken");
        drop(free);
        assert_eq!(pool.available(), 2);
    }
    assert_all_is_well();
}
