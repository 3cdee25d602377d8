//! Queue pairs that are destroyed outside of their engine, by layers that keep it under a lock.

use std::io::{ErrorKind, Read as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use fake_libibverbs::{in_flight, lend, with};
use verbs_channel::__private::Closing;
use verbs_channel::engine::TransferError;
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, DownReason, OwnedRequest, Ticket, Transfer,
    TransportError,
};

use crate::fake_device::{
    bounded, called, channel, forget_the_past, group, join, pd, posted, refuse, region, succeeds,
};

/// A channel with a receive in flight, whose queue pair is taken out to be destroyed.
fn closing(group: &mut ChannelGroup) -> (Closing, Ticket) {
    let id = group.channels().next().unwrap();
    let buffer = group.pd().reg_mr(vec![0_u8; 64]).unwrap();
    let ticket = group.channel(id).unwrap().start_receive(buffer).unwrap();
    let engine = group.engine_mut();
    engine.defer_closing();
    engine.destroy(id, DownReason::Abandoned).unwrap();
    assert!(engine.has_deferred() && engine.is_closing());
    let closing = engine.next_closing().unwrap();
    assert!(!engine.has_deferred() && engine.is_closing());
    assert_eq!(closing.channel(), id);
    (closing, ticket)
}

#[test]
fn operations_end_when_their_queue_pair_was_destroyed_outside_the_group() {
    let pd = pd();
    let mut group = group(&pd, 2).0;
    let (closing, ticket) = closing(&mut group);
    let id = ticket.channel();
    assert!(!called("ibv_destroy_qp"));
    let channel = group.channel(id).unwrap();
    assert_eq!(channel.down_reason(), Some(DownReason::Abandoned));
    assert!(!channel.is_idle(), "its buffer is in flight");
    assert!(group.next_completed().is_none());
    // There is nothing more to destroy, and that ends no operation.
    group.engine_mut().remove(id).unwrap();
    assert!(group.engine_mut().next_closing().is_none());
    assert!(!group.channel(id).unwrap().is_idle());
    let closed = std::thread::scope(|scope| {
        let library = lend();
        let destroyer = scope.spawn(move || {
            library();
            closing.destroy()
        });
        destroyer.join().unwrap()
    });
    assert!(called("ibv_destroy_qp"));
    assert!(!group.channel(id).unwrap().is_idle());
    group.engine_mut().finish_close(closed).unwrap();
    assert!(!group.engine_mut().is_closing());
    let ended = group.next_completed().unwrap();
    assert_eq!(ended.ticket, ticket);
    let aborted = TransportError::Aborted(DownReason::Abandoned);
    assert_eq!(ended.result.unwrap_err(), aborted);
    assert!(ended.buffer.is_some());
    assert_eq!(group.len(), 1);
}

#[test]
fn socket_of_a_peer_is_closed_where_no_lock_is_held() {
    let pd = pd();
    let (mut group, ids) = group(&pd, 1);
    let id = ids[0];
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let engine = group.engine_mut();
    engine.defer_closing();
    engine.watch_peer(id, ours).unwrap();
    engine.destroy(id, DownReason::Abandoned).unwrap();
    let closed = engine.next_closing().unwrap().destroy();
    engine.finish_close(closed).unwrap();
    let open = theirs.read(&mut [0]).unwrap_err();
    assert_eq!(open.kind(), ErrorKind::WouldBlock);
    assert!(engine.has_deferred());
    while let Some((next, _is_slow)) = engine.next_afterwards() {
        next();
    }
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "it is closed");
}

#[test]
fn buffers_of_a_queue_pair_that_was_not_returned_are_leaked() {
    let pd = pd();
    let mut group = group(&pd, 1).0;
    let (closing, _ticket) = closing(&mut group);
    drop(group);
    assert!(!called("ibv_dereg_mr"), "the device may write to it");
    drop(closing);
    assert!(called("ibv_destroy_qp") && !called("ibv_dereg_mr"));
}

#[test]
fn queue_pair_that_is_stuck_outside_the_group_is_stuck() {
    let pd = pd();
    let mut group = group(&pd, 1).0;
    let (closing, ticket) = closing(&mut group);
    refuse("ibv_destroy_qp", 1);
    group.engine_mut().finish_close(closing.destroy()).unwrap();
    let ended = group.poll(ticket).unwrap().unwrap();
    assert_eq!(ended.result.unwrap_err(), TransportError::Stuck);
    assert!(ended.buffer.is_none());
}

#[test]
fn index_is_not_reused_while_its_queue_pair_is_being_destroyed() {
    let pd = pd();
    let mut group = Channel::builder(&pd).group(3).unwrap();
    join(&mut group);
    group.engine_mut().defer_closing();
    for _ in 0..5 {
        let id = group.channels().next().unwrap();
        group.remove(id).unwrap();
        let closing = group.engine_mut().next_closing().unwrap();
        let next = join(&mut group);
        assert_ne!(next.index(), id.index(), "its queue pair still exists");
        let closed = closing.destroy();
        group.engine_mut().finish_close(closed).unwrap();
        assert_eq!((group.len(), group.channels().count()), (1, 1));
    }
}

#[test]
fn closed_queue_pair_of_another_group_is_handed_back() {
    let pd = pd();
    let (mut ours, mut other) = (group(&pd, 1).0, group(&pd, 1).0);
    let (closing, ticket) = closing(&mut ours);
    let closed = other
        .engine_mut()
        .finish_close(closing.destroy())
        .unwrap_err();
    ours.engine_mut().finish_close(closed).unwrap();
    assert!(ours.poll(ticket).unwrap().is_some());
}

#[test]
fn failed_queue_pair_is_handed_out_and_destroyed_when_it_is_returned() {
    let pd = pd();
    for way in 0..4 {
        let mut group = group(&pd, 2).0;
        group.engine_mut().defer_closing();
        let ids: Vec<ChannelId> = group.channels().collect();
        let tickets = [0, 1].map(|at| {
            let buffer = pd.reg_mr(vec![0_u8; 64]).unwrap();
            let mut channel = group.channel(ids[at]).unwrap();
            channel.start_receive(buffer).unwrap()
        });
        forget_the_past();
        let engine = group.engine_mut();
        match way {
            0 => engine.destroy_all(DownReason::Closed),
            1 => {
                with(|library| library.poll_answer = Some(-2));
                engine.drive();
            }
            2 => {
                refuse("ibv_modify_qp", 2);
                ids.iter()
                    .for_each(|id| engine.flush(*id, DownReason::Closed).unwrap());
            }
            _ => {
                refuse("ibv_query_qp", 2);
                engine.probe(Instant::now());
            }
        }
        assert!(!called("ibv_destroy_qp"), "{way}");
        for ticket in tickets {
            assert!(engine.poll(ticket).unwrap().is_none(), "{way}");
        }
        while let Some(closing) = engine.next_closing() {
            engine.finish_close(closing.destroy()).unwrap();
        }
        for ticket in tickets {
            let ended = engine.poll(ticket).unwrap().unwrap();
            assert!(ended.result.is_err() && ended.buffer.is_some(), "{way}");
        }
    }
}

#[test]
fn deferred_queue_pairs_that_nobody_takes_are_destroyed_with_the_group() {
    let pd = pd();
    let mut group = group(&pd, 1).0;
    group.engine_mut().defer_closing();
    let id = group.channels().next().unwrap();
    let buffer = pd.reg_mr(vec![0_u8; 64]).unwrap();
    let _ticket = group.channel(id).unwrap().start_receive(buffer).unwrap();
    group.engine_mut().destroy(id, DownReason::Closed).unwrap();
    forget_the_past();
    drop(group);
    assert!(called("ibv_destroy_qp") && called("ibv_dereg_mr"));
}

#[test]
fn borrowed_buffers_are_not_given_back_before_their_queue_pair_is_destroyed() {
    let mut channel = channel();
    channel.engine_mut().defer_closing();
    let mut into = region(&channel);
    bounded(|| {
        let scoped = channel.scope(|scope| {
            scope.post_receive(into.scatter_element(..).unwrap())?;
            Err::<(), _>(verbs_channel::Error::StaleTicket)
        });
        assert!(scoped.is_err());
    });
    assert!(called("ibv_destroy_qp"), "the device may write to it");
}

#[test]
fn transfer_and_abort_and_reset_and_close_leave_nothing_in_flight() {
    for (way, is_moved) in (0..5).flat_map(|way| [(way, true), (way, false)]) {
        with(|library| library.refuse.clear());
        let mut channel = channel();
        channel.engine_mut().defer_closing();
        let pool = BufferPool::new(channel.pd(), 64, 1).unwrap();
        let request = OwnedRequest::receive(pool.take().unwrap());
        refuse("ibv_modify_qp", usize::from(!is_moved && way != 3));
        let id = channel.id();
        if way == 0 {
            let mut transfer = Transfer::default();
            transfer.add(id, request);
            let ended = bounded(|| channel.transfer(&mut transfer, Some(Instant::now())));
            assert!(matches!(ended, Err(TransferError::Failed { .. })));
            let outcome = transfer.drain().next().unwrap();
            assert!(outcome.buffer.is_some() && channel.is_idle());
        } else {
            let ticket = channel.start(request).unwrap();
            if way == 1 {
                // Its queue pair is queued, and nobody takes it.
                let engine = channel.engine_mut();
                engine.destroy(id, DownReason::Closed).unwrap();
            }
            match way {
                1 | 2 => bounded(|| channel.abort()),
                3 => drop(channel.reset().unwrap()),
                _ => {
                    bounded(|| channel.close()).unwrap();
                    assert_eq!((in_flight(), pool.available()), (0, 1));
                    continue;
                }
            }
            let ended = channel.poll(ticket).unwrap().unwrap();
            assert!(ended.result.is_err() && ended.buffer.is_some(), "{way}");
            assert!(channel.is_idle() && !channel.engine_mut().has_deferred());
        }
        assert_eq!((in_flight(), pool.available()), (0, 1), "{way}");
    }
}

#[test]
fn wait_ends_although_destroying_is_deferred() {
    let mut channel = channel();
    let id = channel.id();
    channel.engine_mut().defer_closing();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    let engine = channel.engine_mut();
    engine.destroy(id, DownReason::Abandoned).unwrap();
    let ended = bounded(|| channel.wait(ticket, None)).unwrap().unwrap();
    let aborted = TransportError::Aborted(DownReason::Abandoned);
    assert_eq!(ended.result.unwrap_err(), aborted);
}

/// A transfer that has ended has no operation in flight: in another group its ticket would be that of
/// another channel's operation.
#[test]
fn transfer_that_another_group_carries_out_again_takes_no_outcome_there() {
    let pd = pd();
    let pool = BufferPool::new(&pd, 64, 4).unwrap();
    let mut ours = group(&pd, 1).0;
    ours.engine_mut().defer_closing();
    let mut transfer = Transfer::default();
    let id = ours.channels().next().unwrap();
    transfer.add(id, OwnedRequest::receive(pool.take().unwrap()));
    let ended = bounded(|| ours.transfer(&mut transfer, Some(Instant::now())));
    assert!(matches!(ended, Err(TransferError::Failed { .. })));
    let mut other = group(&pd, 1).0;
    let id = other.channels().next().unwrap();
    let mut channel = other.channel(id).unwrap();
    let ticket = channel.start_receive(pool.take().unwrap()).unwrap();
    succeeds(posted()[0]);
    assert_eq!(other.engine_mut().drive(), 1);
    let again = bounded(|| other.transfer(&mut transfer, Some(Instant::now())));
    assert!(matches!(again, Err(TransferError::Failed { .. })));
    assert!(other.poll(ticket).unwrap().unwrap().result.is_ok());
}
