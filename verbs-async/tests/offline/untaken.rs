//! Outcomes that are not taken: they delay no operation on any queue.

use std::pin::Pin;
use std::task::{Context, Waker};

use fake_libibverbs::with;
use verbs_async::verbs_channel::request::OwnedChain;
use verbs_async::verbs_channel::{OwnedBuffer, OwnedRequest, TransportError};
use verbs_async::{AsyncChannel, Operation};
use verbs_harness::allocations::allocations;

use crate::bench::{Bench, Task, announce, done};
use crate::groups::{Peer, posted};

/// A kind of operation.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    Receive,
    Batch,
    Chain,
}

const KINDS: [Kind; 4] = [Kind::Send, Kind::Receive, Kind::Batch, Kind::Chain];

/// An operation that was begun.
enum Begun {
    One(Task<Operation>),
    Many(Task<Operation<Vec<OwnedRequest>>>),
    Chain(Task<Operation<OwnedChain>>),
}

impl Kind {
    /// Begins it; a batch or a chain fills its queue.
    fn start(self, peer: &Peer, channel: &AsyncChannel) -> Begun {
        match self {
            Self::Send => Begun::One(Task::new(channel.send(peer.buffer()))),
            Self::Receive => Begun::One(Task::new(channel.receive(peer.buffer()))),
            Self::Batch => Begun::Many(Task::new(channel.batch(peer.sends()))),
            Self::Chain => {
                let chain = OwnedChain::new(peer.sends()).unwrap();
                Begun::Chain(Task::new(channel.chain(chain)))
            }
        }
    }

    /// How many of them its queue has room for.
    const fn places(self) -> usize {
        match self {
            Self::Send | Self::Receive => 2,
            Self::Batch | Self::Chain => 1,
        }
    }
}

impl Begun {
    /// Asserts that it has succeeded and returned everything.
    fn ends(&mut self) {
        match self {
            Self::One(task) => {
                let (result, buffer) = task.ends();
                assert!(result.is_ok());
                assert_eq!(buffer.capacity(), 64);
            }
            Self::Many(task) => {
                let (result, works) = task.ends();
                assert!(result.is_ok());
                assert_eq!(works.len(), 2);
            }
            Self::Chain(task) => {
                let (result, chain) = task.ends();
                assert!(result.is_ok());
                assert_eq!((chain.len(), chain.done()), (2, 2));
            }
        }
    }
}

/// The number of doorbells.
fn posts() -> usize {
    with(|library| library.posted.len())
}

/// Completes the last post. Its task is not woken, as it does not wait.
fn ends_unasked(bench: &Bench) {
    done(posted().last().copied());
    announce(bench);
}

/// More than there is room for in all queues.
const UNTAKEN: usize = if cfg!(miri) { 8 } else { 39 };

#[test]
fn untaken_outcomes_delay_no_other_queue() {
    let others = [Kind::Send, Kind::Receive];
    for (untaken, begins) in KINDS
        .iter()
        .flat_map(|kind| KINDS.map(|other| (kind, other)))
    {
        for elsewhere in [false, true] {
            let bench = Bench::new();
            let peer = Peer::new(&bench);
            let channels = [peer.join(), peer.join()];
            // Events arrive while one task sleeps; here the queue has no room.
            let _sleeps = [(); 2].map(|()| peer.send().waits());
            let _here = [(); 2].map(|()| Kind::Receive.start(&peer, &peer.channel));
            let mut results = Vec::new();
            let before = posts();
            for count in 1..=UNTAKEN {
                results.push(untaken.start(&peer, &channels[0]));
                assert_eq!(posts(), before + count, "{untaken:?} after its like");
                ends_unasked(&bench);
            }
            let channel = &channels[usize::from(elsewhere)];
            // Its other queue has no room either.
            let other = others[usize::from(!matches!(begins, Kind::Receive))];
            let _there = [(); 2].map(|()| other.start(&peer, channel));
            let before = posts();
            for place in 1..=begins.places() {
                results.push(begins.start(&peer, channel));
                assert_eq!(posts(), before + place, "{begins:?} after {untaken:?}");
            }
            // One more is in the backlog, and is posted when there is room.
            let waits = begins.start(&peer, channel);
            assert_eq!(posts(), before + begins.places());
            let flying = posted();
            ends_unasked(&bench);
            assert_eq!(
                posts(),
                before + begins.places() + 1,
                "{begins:?} in the backlog"
            );
            results.push(waits);
            done(flying.get(flying.len() - begins.places()).copied());
            ends_unasked(&bench);
            results.iter_mut().for_each(Begun::ends);
        }
    }
}

#[test]
fn request_can_be_rejected_after_slots_were_reserved() {
    for begins in KINDS {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        let other = peer.join();
        let _sleeps = peer.send().waits();
        let _untaken: Vec<_> = std::iter::repeat_with(|| {
            let untaken = Kind::Send.start(&peer, &peer.channel);
            ends_unasked(&bench);
            untaken
        })
        .take(7)
        .collect();
        with(|library| library.refuse_post = Some((0, libc::EINVAL, true)));
        match begins.start(&peer, &other) {
            Begun::One(mut task) => {
                assert!(matches!(task.ends().0, Err(TransportError::Rejected(_))));
            }
            Begun::Many(mut task) => {
                let (result, works) = task.ends();
                assert!(matches!(result, Err(TransportError::Rejected(_))));
                assert_eq!(works.len(), 2);
            }
            Begun::Chain(mut task) => {
                let (result, chain) = task.ends();
                assert!(matches!(result, Err(TransportError::Rejected(_))));
                assert_eq!((chain.len(), chain.done()), (2, 0));
            }
        }
    }
}

#[test]
fn retrying_a_full_queue_reserves_no_slots() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let _sleeps = peer.send().waits();
    // In the backlog: one of the two places in the queue is taken forever.
    let _waits = Task::new(peer.channel.batch(peer.sends()));
    let mut buffer = peer.buffer();
    let mut rounds = |count: usize| {
        let before = allocations();
        for _ in 0..count {
            // A completion on its channel makes it try to post again.
            let mut receive = Task::new(peer.channel.receive(std::mem::take(&mut buffer)));
            done(posted().last().copied());
            announce(&bench);
            let (result, back): (_, OwnedBuffer) = receive.ends();
            assert!(result.is_ok());
            buffer = back;
            with(|library| {
                library.posted.clear();
                library.rooms.clear();
                library.armed.clear();
                library.calls.clear();
            });
        }
        allocations() - before
    };
    rounds(10);
    let few = if cfg!(miri) { 2 } else { 100 };
    assert_eq!(rounds(20 * few), 20 * rounds(few), "something grows");
}

#[test]
fn outcomes_polled_by_another_op_delay_no_other_queue() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let mut first = peer.send();
    let mut receives = [(); 2].map(|()| Task::new(peer.channel.receive(peer.buffer())));
    let ids = posted();
    // One poll dispatches them, which is not the first; there is no poll after the send.
    with(|library| library.poll_answer = Some(0));
    done(ids);
    assert!(first.ends().0.is_ok());
    let _more = [(); 2].map(|()| Task::new(peer.channel.receive(peer.buffer())));
    let mut second = peer.send();
    done(posted().get(5).copied());
    assert!(second.ends().0.is_ok(), "it was not posted");
    assert!(receives.iter_mut().all(|receive| receive.ends().0.is_ok()));
}

#[test]
fn waiting_in_slots_that_were_never_used_allocates_nothing() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let channels = [(); 3].map(|()| peer.join());
    let start = |channel: &AsyncChannel| [(); 2].map(|()| Box::pin(channel.send(peer.buffer())));
    let mut sends: Vec<Pin<Box<Operation>>> = channels.iter().flat_map(start).collect();
    with(|library| {
        library.calls.reserve(100);
        library.rooms.reserve(100);
        library.armed.reserve(100);
    });
    let mut cx = Context::from_waker(Waker::noop());
    let before = allocations();
    for send in &mut sends {
        assert!(send.as_mut().poll(&mut cx).is_pending());
    }
    assert_eq!(allocations() - before, 0);
}
