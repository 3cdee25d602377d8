//! Groups: how operations end when the device, the queue or the notifier fails.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use fake_libibverbs::posted;
use fake_libibverbs::{assert_all_is_well, with};
use rustix::thread::{SecureComputingMode, set_secure_computing_mode};
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::{
    BufferPool, Channel, DownReason, Outgoing, OwnedBuffer, OwnedRequest, RejectReason,
    SharedMemory, TransportError,
};
use verbs_async::{AsyncChannel, AsyncGroup, Operation, verbs_channel};
use verbs_core::verbs_sys::ibv_wc;
use verbs_core::{AccessFlags, ProtectionDomain};
use verbs_harness::child::{end_the_child, fork};

use crate::bench::{Bench, LONG, Task, announce, at_once, done, join, later, now, system_calls};

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

/// The child may only read, write and exit: any other system call kills it.
#[test]
#[cfg_attr(miri, ignore = "Miri has no forks")]
fn no_system_call_is_made_while_completions_keep_coming() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    with(|library| {
        library.calls.reserve(10_000);
        library.rooms.reserve(10_000);
    });
    let mut buffer = peer.buffer();
    let mut rounds = || {
        for _ in 0..100 {
            let mut send = Task::new(peer.channel.send(std::mem::take(&mut buffer)));
            done(posted());
            with(|library| library.posted.clear());
            let (sent, back) = send.ends();
            sent.unwrap();
            buffer = back;
        }
    };
    rounds();
    let (mut reader, mut writer) = io::pipe().unwrap();
    if fork() == 0 {
        end_the_child(|| {
            set_secure_computing_mode(SecureComputingMode::Strict).unwrap();
            rounds();
            writer.write_all(b"done").unwrap();
        });
    }
    drop(writer);
    let mut written = String::new();
    reader.read_to_string(&mut written).unwrap();
    assert_eq!(written, "done", "the child was killed");
}

#[test]
fn busy_polling_sleeps_only_after_its_time() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    peer.group.set_busy_poll(LONG);
    let mut send = peer.send();
    let completion = ibv_wc {
        wr_id: posted()[0],
        ..Default::default()
    };
    // It completes after some more polls.
    with(|library| library.done_later = Some((20, completion)));
    assert!(send.ends().0.is_ok());
    assert_eq!(system_calls(), (0, 0));
    peer.group.set_busy_poll(Duration::from_millis(1));
    let mut send = peer.send().waits();
    assert_eq!(system_calls(), (1, 0));
    done(posted().last().copied());
    announce(&bench);
    assert_eq!(send.was_woken(), 1);
    assert!(send.ends().0.is_ok());
}

#[test]
fn result_of_an_operation_drops_the_buffer_and_can_be_awaited_again() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let pool = BufferPool::new(peer.channel.pd(), 64, 1).unwrap();
    for is_dropped in [false, true] {
        let operation = peer.channel.send(pool.take().unwrap());
        // As after a timeout around `&mut result`.
        let mut result = Task::new(operation.result()).waits().waits();
        assert_eq!(pool.available(), 0);
        if is_dropped {
            drop(result);
            done(posted().last().copied());
            announce(&bench);
        } else {
            done(posted());
            announce(&bench);
            assert_eq!(result.was_woken(), 1);
            assert!(result.ends().is_ok());
        }
        assert_eq!(pool.available(), 1);
    }
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
fn room_that_several_channels_share_goes_to_all_that_waits_for_it() {
    let bench = Bench::new();
    let pd = bench.context.alloc_pd().unwrap();
    // One send and one receive are a channel's own, and they share room for two more.
    let builder = Channel::builder(&pd).max_send_wr(3).max_recv_wr(1);
    let group = AsyncGroup::new(builder.in_flight(6), 2, &bench.events).unwrap();
    let [left, right] = [(); 2].map(|()| join(&group));
    let pool = BufferPool::new(&pd, 8, 6).unwrap();
    let three = |channel: &AsyncChannel| {
        [(); 3].map(|()| Task::new(channel.send(pool.take().unwrap())).waits())
    };
    let _left = three(&left);
    let first = posted();
    let _right = three(&right);
    assert_eq!((first.len(), posted().len()), (3, 4));
    done(first);
    announce(&bench);
    assert_eq!(posted().len(), 6);
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
