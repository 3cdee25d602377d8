//! Groups: how operations end when the device, the queue or the notifier fails.

use std::sync::Arc;

pub(crate) use fake_libibverbs::posted;
use fake_libibverbs::{assert_all_is_well, with};
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::{
    Channel, DownReason, Outgoing, OwnedBuffer, OwnedRequest, RejectReason, SharedMemory,
    TransportError,
};
use verbs_async::{AsyncChannel, AsyncGroup, Operation, verbs_channel};
use verbs_core::{AccessFlags, ProtectionDomain};

use crate::bench::{Bench, Task, announce, at_once, done, join, later, now, system_calls};

/// A channel with room for two requests in each queue, in a group of its own.
pub(crate) struct Peer {
    group: AsyncGroup,
    pub(crate) channel: AsyncChannel,
    pd: ProtectionDomain,
}

impl Peer {
    pub(crate) fn new(bench: &Bench) -> Self {
        let pd = bench.context.alloc_pd().unwrap();
        let builder = Channel::builder(&pd).max_send_wr(2).max_recv_wr(2);
        let group = AsyncGroup::new(builder, 4, &bench.events).unwrap();
        let channel = join(&group);
        Self { group, channel, pd }
    }

    /// One more channel of its group.
    pub(crate) fn join(&self) -> AsyncChannel {
        join(&self.group)
    }

    pub(crate) const fn group(&self) -> &AsyncGroup {
        &self.group
    }

    pub(crate) fn buffer(&self) -> OwnedBuffer {
        self.pd.reg_mr(vec![0_u8; 64]).unwrap().into()
    }

    pub(crate) fn send(&self) -> Task<Operation> {
        Task::new(self.channel.send(self.buffer()))
    }

    /// A batch that fills its queue.
    pub(crate) fn sends(&self) -> Vec<OwnedRequest> {
        let work = || Outgoing::send(self.buffer()).into();
        std::iter::repeat_with(work).take(2).collect()
    }
}

#[test]
fn failed_notifier_aborts_all_ops_and_returns_their_buffers() {
    {
        let bench = Bench::new();
        let peers = [Peer::new(&bench), Peer::new(&bench)];
        // In flight, in the backlog, and not polled yet.
        let mut tasks: Vec<_> = peers
            .iter()
            .flat_map(|peer| [peer.send().waits(), peer.send(), peer.send().waits()])
            .collect();
        bench.hand.over();
        for task in &mut tasks {
            let (result, buffer) = task.ends_when_woken();
            assert!(result.is_err());
            assert_eq!(buffer.capacity(), 64);
        }
        for peer in &peers {
            assert_eq!(peer.channel.down_reason(), Some(DownReason::NotifierFailed));
            let (result, buffer) = now(peer.channel.send(peer.buffer()));
            assert!(matches!(result, Err(TransportError::Rejected(_))));
            assert_eq!(buffer.capacity(), 64);
            let (result, works) = now(peer.channel.batch(peer.sends()));
            assert!(matches!(result, Err(TransportError::Rejected(_))));
            assert_eq!(works.len(), 2);
        }
    }
    assert_all_is_well();
}

/// Whether no channel can join, and why.
fn takes_no_channel(group: &AsyncGroup) {
    let member = group.prepare().unwrap();
    let endpoint = member.endpoint();
    let rejected = group.join(member.handshake(&endpoint).unwrap());
    let error = rejected.unwrap_err().into_error();
    assert!(
        matches!(
            error,
            verbs_channel::Error::GroupFailed(DownReason::NotifierFailed)
        ),
        "{error}"
    );
    assert_eq!(group.failure(), Some(DownReason::NotifierFailed));
}

#[test]
fn group_whose_notifier_has_failed_takes_no_channel() {
    {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        assert_eq!(peer.group.failure(), None);
        bench.hand.over();
        takes_no_channel(&peer.group);
        // No task had waited there, and no channel had joined.
        let pd = bench.context.alloc_pd().unwrap();
        let later = AsyncGroup::new(Channel::builder(&pd), 4, &bench.events).unwrap();
        takes_no_channel(&later);
    }
    assert_all_is_well();
}

#[test]
fn failed_arming_takes_all_channels_down() {
    {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        with(|library| library.refuse.push(("ibv_req_notify_cq", libc::EIO)));
        let mut tasks = [peer.send(), peer.send(), peer.send()];
        for task in &mut tasks {
            assert_eq!(task.ends_when_woken().1.capacity(), 64);
        }
        assert_eq!(peer.channel.down_reason(), Some(DownReason::NotifierFailed));
    }
    assert_all_is_well();
}

#[test]
fn channel_that_joins_after_a_failed_arming_gets_events() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    with(|library| library.refuse.push(("ibv_req_notify_cq", libc::EIO)));
    assert!(peer.send().ends_when_woken().0.is_err());
    later(peer.group.closed()).unwrap();
    let (late, before) = (peer.join(), system_calls().0);
    let mut sleeps = Task::new(late.send(peer.buffer())).waits();
    assert_eq!(system_calls().0, before + 1);
    done(posted().last().copied());
    announce(&bench);
    assert_eq!(sleeps.was_woken(), 1);
    assert!(sleeps.ends().0.is_ok());
}

#[test]
fn failed_poll_takes_all_channels_down() {
    {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        let mut tasks = [peer.send(), peer.send(), peer.send()].map(Task::waits);
        with(|library| library.poll_answer = Some(-2));
        announce(&bench);
        later(peer.group.closed()).unwrap();
        for task in &mut tasks {
            assert_eq!(task.was_woken(), 1);
            let (result, buffer) = task.ends();
            assert!(result.is_err());
            assert_eq!(buffer.capacity(), 64);
        }
        assert!(matches!(
            peer.channel.down_reason(),
            Some(DownReason::Poll(_))
        ));
    }
    assert_all_is_well();
}

#[test]
fn sleep_costs_one_arming_and_one_event_and_polling_costs_none() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    for sleeps in 1..=3 {
        let mut task = peer.send().waits().waits();
        done(posted().last().copied());
        announce(&bench);
        assert!(task.ends().0.is_ok());
        assert_eq!(system_calls(), (sleeps, sleeps));
    }
    for _ in 0..if cfg!(miri) { 10 } else { 100 } {
        let mut task = peer.send();
        done(posted().last().copied());
        assert!(task.ends().0.is_ok());
    }
    assert_eq!(system_calls(), (3, 3));
}

#[test]
fn abandoned_ops_and_dropped_channels_release_everything() {
    {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        drop(peer.send().waits());
        drop(peer.send());
        drop(peer.send());
        let kept = peer.send();
        let Peer { channel, group, .. } = peer;
        drop(channel);
        let (mut kept, group) = (kept, group);
        let (result, buffer) = kept.ends_when_woken();
        assert!(result.is_err());
        assert_eq!(buffer.capacity(), 64);
        drop(group);
    }
    assert_all_is_well();
}

#[test]
fn channel_that_is_down_keeps_its_id_until_it_is_dropped() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    peer.group.abort_all(DownReason::NotifierFailed);
    let next = peer.join();
    // An operation of the channel that is down is not posted on its successor.
    let (result, _) = now(peer.channel.send(peer.buffer()));
    assert!(matches!(result, Err(TransportError::Rejected(_))));
    assert!(posted().is_empty());
    drop(peer.channel);
    assert!(!next.is_down());
}

#[test]
fn partly_posted_batch_leaves_no_task_asleep() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let mut receive = Task::new(peer.channel.receive(peer.buffer())).waits();
    // The first of its two requests is in flight, and will not complete.
    with(|library| library.refuse_post = Some((1, libc::ENOMEM, true)));
    let mut batch = Task::new(peer.channel.batch(peer.sends()));
    assert_eq!(receive.was_woken(), 1);
    assert!(receive.ends().0.is_err());
    assert!(batch.ends().0.is_err());
}

#[test]
fn op_posted_after_an_abandoned_head_leaves_no_task_asleep() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let mut receive = Task::new(peer.channel.receive(peer.buffer())).waits();
    let mut first = peer.send();
    let longer = peer.channel.batch(peer.sends());
    let mut last = peer.send();
    // The driver does not report whether it was posted.
    with(|library| library.refuse_post = Some((0, libc::ENOMEM, false)));
    drop(longer);
    assert_eq!(receive.was_woken(), 1);
    for ended in [receive.ends(), first.ends(), last.ends()] {
        assert!(ended.0.is_err());
    }
}

#[test]
fn channel_rejected_by_a_full_group_can_join_later() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let others = [(); 3].map(|()| peer.join());
    let member = peer.group.prepare().unwrap();
    let endpoint = member.endpoint();
    let full = peer.group.join(member.handshake(&endpoint).unwrap());
    let full = full.unwrap_err();
    assert!(matches!(full.error(), verbs_channel::Error::GroupFull(4)));
    drop(others);
    later(peer.group.closed()).unwrap();
    let channel = peer.group.join(full.into_given()).unwrap();
    assert!(channel.down_reason().is_none());
}

#[test]
fn op_beyond_the_backlog_is_rejected_until_there_is_room() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    peer.group.set_backlog(2);
    let channel = peer.join();
    let send = || Task::new(channel.send(peer.buffer()));
    now(channel.ready(Queue::Send)).unwrap();
    // The queue has room for two, and so has the backlog.
    let mut sends = [send(), send(), send(), send()];
    let (rejected, buffer) = send().ends();
    assert!(rejected.is_err_and(|error| error.is_backpressure()));
    assert_eq!(buffer.capacity(), 64);
    let (rejected, works) = now(channel.batch(peer.sends()));
    assert!(rejected.is_err_and(|error| error.is_backpressure()));
    assert_eq!(works.len(), 2);
    now(channel.ready(Queue::Receive)).unwrap();
    {
        let mut ready = Task::new(channel.ready(Queue::Send)).waits();
        drop(Task::new(channel.ready(Queue::Send)).waits());
        done(posted().first().copied());
        announce(&bench);
        assert_eq!(ready.was_woken(), 1);
        ready.ends().unwrap();
    }
    let mut last = send();
    // The first has completed above.
    for is_done in [1, 0, 0, 0] {
        done(posted().into_iter().skip(is_done));
        with(|library| library.posted.clear());
        announce(&bench);
    }
    for send in sends.iter_mut().chain([&mut last]) {
        assert!(send.ends().0.is_ok());
    }
    // A channel that is down is not ready.
    channel.abort();
    let down = now(channel.ready(Queue::Send));
    assert!(matches!(
        down,
        Err(TransportError::Rejected(RejectReason::Down(
            DownReason::Closed
        )))
    ));
}

#[test]
fn more_buffers_than_the_backlog_are_all_posted_for_incoming_messages() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    peer.group.set_backlog(1);
    let channel = Arc::new(peer.join());
    let mut incoming = channel.incoming([(); 5].map(|()| peer.buffer()));
    for round in 0..5 {
        done(posted().get(round).copied());
        drop(now(incoming.next()).unwrap().unwrap());
    }
}

/// Memory of this domain that can be leased.
fn lendable(pd: &ProtectionDomain) -> SharedMemory {
    SharedMemory::register([pd], vec![0_u8; 64], AccessFlags::LOCAL_WRITE).unwrap()
}

#[test]
fn lease_of_a_channel_that_ends_while_it_is_registered_is_not_granted() {
    {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        let channel = Arc::new(peer.join());
        let memory = lendable(&peer.pd);
        let ending = Arc::clone(&channel);
        let before = move |verb: &str, _state| {
            if verb == "ibv_reg_mr" {
                later(at_once(&ending)).unwrap();
            }
        };
        with(|library| library.before = Some(Arc::new(before)));
        let granted = now(channel.lease(memory.slice(..).unwrap(), AccessFlags::REMOTE_READ));
        with(|library| library.before = None);
        let rejected = granted.expect_err("the peer has access after the end");
        let error = rejected.error().down_reason();
        assert_eq!(error, Some(DownReason::Closed));
        assert_eq!(rejected.into_given().len(), 64);
        let count =
            |verb| with(|library| library.calls.iter().filter(|call| **call == verb).count());
        assert_eq!((count("ibv_reg_mr"), count("ibv_dereg_mr")), (2, 1));
    }
    assert_all_is_well();
}

#[test]
fn lease_that_cannot_be_revoked_closes_its_own_channel_and_not_another() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let other = peer.join();
    let memory = lendable(&peer.pd);
    let slice = memory.slice(..).unwrap();
    let lease = now(peer.channel.lease(slice, AccessFlags::REMOTE_READ)).unwrap();
    with(|library| library.refuse.push(("ibv_dereg_mr", libc::EIO)));
    let revoked = now(other.revoke(lease));
    assert_eq!(revoked.map(|slice| slice.len()), Err(TransportError::Stuck));
    assert_eq!(other.down_reason(), None);
    assert!(peer.channel.is_down());
}
