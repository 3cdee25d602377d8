//! Engines that are swapped, replaced and dropped: what is in flight stays with its engine.

use std::mem;
use std::time::Duration;

use verbs_channel::engine::Engine;
use verbs_channel::error::Queue;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::completion::CompletionChannel;
use verbs_channel::{
    BufferPool, Channel, CreateChannel as _, DownReason, Error, OwnedRequest, PollStrategy,
    RejectReason, TransportError,
};

use crate::fake_device::{
    bounded, called, channel, connected, forget_the_past, group, pd, posted, region, succeeds,
};

/// An engine without channels.
fn fresh(pd: &ProtectionDomain) -> Engine {
    let events = CompletionChannel::create(pd.context()).unwrap();
    Channel::builder(pd).config().engine(1, &events).unwrap().0
}

#[test]
fn channel_without_a_queue_pair_rejects_everything_and_waits_for_nothing() {
    let pd = pd();
    let strategy = PollStrategy::Notify { after: 0 };
    let mut channel = connected(pd.create_channel().strategy(strategy).build().unwrap());
    let pool = BufferPool::new(&pd, 64, 4).unwrap();
    let ticket = channel.start_receive(pool.take().unwrap()).unwrap();
    let ids = [channel.id(), group(&pd, 1).1[0]];
    forget_the_past();
    let old = mem::replace(channel.engine_mut(), fresh(&pd));
    let mut into = region(&channel);
    bounded(|| {
        let down = |error: &TransportError| {
            matches!(error, TransportError::Rejected(RejectReason::Down(_)))
        };
        assert!(down(
            &channel.send(into.gather_element(..).unwrap()).unwrap_err()
        ));
        assert!(down(
            &channel
                .receive(into.scatter_element(..).unwrap())
                .unwrap_err()
        ));
        let scoped = channel.scope(|scope| {
            assert_eq!(scope.poll(), 0);
            scope
                .post_receive(into.scatter_element(..).unwrap())
                .map(drop)
        });
        assert!(scoped.is_err());
        assert!(channel.manual_scope(|_scope| Ok::<_, ()>(())).is_ok());
        let batch = vec![OwnedRequest::receive(pool.take().unwrap())];
        assert!(channel.start_batch(batch).is_err());
        assert!(channel.start_send(pool.take().unwrap()).is_err());
        assert!(matches!(channel.poll(ticket), Err(Error::StaleTicket)));
        assert!(matches!(
            channel.wait(ticket, None),
            Err(Error::StaleTicket)
        ));
        assert!(channel.wait_completed(None).is_none() && channel.next_completed().is_none());
        channel.abort();
        assert!(channel.is_idle() && channel.endpoint().is_none());
        assert_eq!(
            (
                channel.credits(Queue::Send),
                channel.in_flight(Queue::Receive)
            ),
            (0, 0)
        );
        let engine = channel.engine_mut();
        for id in ids {
            assert!(engine.flush(id, DownReason::Closed).is_err());
            assert!(engine.remove(id).is_err() && engine.reserve(id, u32::MAX).is_err());
        }
        engine.destroy_all(DownReason::Closed);
    });
    assert_eq!(pool.available(), 3, "the device has a block");
    drop(channel);
    assert_eq!(pool.available(), 3, "the device has a block");
    assert!(!called("ibv_destroy_qp"));
    drop(old);
    assert!(called("ibv_destroy_qp"));
    assert_eq!(pool.available(), 4);
}

#[test]
fn operations_stay_with_their_engine_when_engines_are_swapped() {
    let pd = pd();
    let mut channel = channel();
    let pool = BufferPool::new(&pd, 64, 3).unwrap();
    let (mut group, ids) = group(&pd, 2);
    let ours = channel.start_receive(region(&channel)).unwrap();
    let theirs = [0, 1].map(|number| {
        let mut member = group.channel(ids[number]).unwrap();
        member.start_receive(pool.take().unwrap()).unwrap()
    });
    let wr_ids = posted();
    mem::swap(channel.engine_mut(), group.engine_mut());
    // The channel is the group's first now.
    assert_eq!(channel.id(), ids[0]);
    assert!(matches!(channel.poll(ours), Err(Error::StaleTicket)));
    assert!(matches!(group.poll(theirs[0]), Err(Error::StaleTicket)));
    assert!(matches!(
        group.channel(ids[0]),
        Err(Error::UnknownChannel(_))
    ));
    // A blocking call and a scope, while both of its operations are in flight.
    let from = region(&channel);
    let mut into = region(&channel);
    forget_the_past();
    let scoped = channel.scope(|scope| {
        let sent = scope.post_send(from.gather_element(..).unwrap())?;
        let received = scope.post_receive(into.scatter_element(..).unwrap())?;
        posted().into_iter().for_each(succeeds);
        wr_ids[1..2].iter().copied().for_each(succeeds);
        received.spin_poll()?;
        sent.spin_poll()?;
        Ok::<_, Error>(())
    });
    scoped.unwrap();
    let timeout = Some(Duration::ZERO);
    channel.set_timeout(timeout);
    assert!(bounded(|| channel.receive(into.scatter_element(..).unwrap())).is_err());
    // That has aborted the first channel, and none of the others.
    let ended = bounded(|| channel.wait_completed(None)).unwrap();
    assert_eq!(ended.ticket, theirs[0]);
    ended.result.unwrap();
    assert!(channel.engine_mut().down_reason(ids[0]).is_some());
    assert!(channel.engine_mut().down_reason(ids[1]).is_none());
    assert_eq!((pool.available(), group.len()), (1, 1));
    drop(ended.buffer);
    // This drops the group's engine, with the second channel's receive.
    drop(channel);
    assert_eq!(pool.available(), 3);
    let first = ours.channel();
    assert!(group.poll(ours).unwrap().is_none());
    group.remove(first).unwrap();
    let ended = group.poll(ours).unwrap().unwrap();
    assert!(ended.result.is_err() && ended.buffer.is_some());
}

#[test]
fn channel_whose_queue_pair_is_elsewhere_ends_its_scopes_and_calls() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 1).unwrap();
    let ticket = channel.start_receive(pool.take().unwrap()).unwrap();
    let id = channel.id();
    let why = DownReason::Closed;
    let engine = channel.engine_mut();
    engine.defer_closing();
    engine.destroy(id, why).unwrap();
    let closing = engine.next_closing().unwrap();
    let mut into = region(&channel);
    bounded(|| {
        assert!(channel.receive(into.scatter_element(..).unwrap()).is_err());
        let scoped = channel.scope(|scope| {
            scope.close_with_receives_left();
            scope
                .post_receive(into.scatter_element(..).unwrap())
                .map(drop)
        });
        assert!(scoped.is_err());
        assert!(channel.scope(|_scope| Ok::<_, ()>(())).is_ok());
        channel.abort();
        let engine = channel.engine_mut();
        engine.flush(id, why).unwrap();
        engine.destroy(id, why).unwrap();
        engine.remove(id).unwrap();
        engine.remove(id).unwrap();
        engine.destroy_all(why);
    });
    // The device may still have the block.
    assert!(channel.poll(ticket).unwrap().is_none() && pool.available() == 0);
    let closed = closing.destroy();
    channel.engine_mut().finish_close(closed).unwrap();
    assert!(channel.poll(ticket).unwrap().unwrap().buffer.is_some());
    assert_eq!(pool.available(), 1);
}
