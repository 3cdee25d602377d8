//! Shared receives that a queue pair has taken: they come back, or are replaced, and one peer cannot have all.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use fake_libibverbs::{Library, assert_all_is_well, is_in_flight, with};
use verbs_channel::verbs_core::device::EventType;
use verbs_channel::verbs_core::verbs_sys::{IBV_QPS_ERR, IBV_WC_WR_FLUSH_ERR, ibv_wc};
use verbs_channel::{DownReason, Error};

use crate::fake_device::{LONG, bounded, count, posted, refuse};
use crate::shared_receives::{Shared, connected, receives};

/// The receives that are posted, in the order of their posts.
fn left() -> Vec<u64> {
    let mut left = Vec::new();
    // A place that is posted again has its number again.
    for wr_id in posted().into_iter().rev() {
        if is_in_flight(wr_id) && !left.contains(&wr_id) {
            left.insert(0, wr_id);
        }
    }
    left
}

/// Messages arrive on the first channel and are taken, until the whole queue was used.
fn turn_over(shared: &mut Shared, held: &[u64]) {
    let (id, qp_num) = shared.channels[0];
    for _ in 0..2 * shared.pool.capacity() {
        let free = left().into_iter().find(|wr_id| !held.contains(wr_id));
        receives(free.expect("a receive is left"), qp_num, b"x");
        assert_eq!(shared.next().channel, id);
        shared.group.engine_mut().refill();
    }
}

/// From now on a queue pair that is moved to `ERR` completes this receive as flushed, after that number of polls.
fn flushes_in_error(library: &mut Library, wr_id: u64, qp_num: u32, polls: usize) {
    library.before = Some(Arc::new(move |_, state| {
        if state == Some(IBV_QPS_ERR) {
            let done = ibv_wc {
                wr_id,
                qp_num,
                status: IBV_WC_WR_FLUSH_ERR,
                ..Default::default()
            };
            with(|library| library.done_later = Some((polls, done)));
        }
    }));
}

#[test]
fn channel_that_is_dropped_before_it_joins_leaves_its_receive_to_the_others() {
    let mut shared = Shared::new(8, 4, 1);
    with(|library| library.cleans_queues = true);
    for _ in 0..40 {
        let (member, qp_num) = connected(&shared.group);
        let count = posted().len();
        receives(left()[0], qp_num, b"x");
        drop(member);
        assert!(shared.group.next_message().is_none());
        shared.group.engine_mut().refill();
        assert!(posted().len() > count, "it is posted again");
        assert!(left().len() >= 4);
    }
    receives(left()[0], shared.channels[0].1, b"x");
    assert_eq!(shared.next().channel, shared.channels[0].0);
}

#[test]
fn block_that_came_back_is_posted_although_the_pool_has_none_for_a_spare_place() {
    let mut shared = Shared::new(4, 4, 3);
    let taken = left()[0];
    with(|library| {
        library.cleans_queues = true;
        flushes_in_error(library, taken, shared.channels[0].1, 0);
    });
    shared
        .group
        .engine_mut()
        .remove(shared.channels[0].0)
        .unwrap();
    assert!(!is_in_flight(taken), "it was flushed");
    // Their receives may be lost: that is half of all, so spare places are used, which have no block.
    with(|library| library.before = None);
    for at in [1, 2] {
        shared
            .group
            .engine_mut()
            .remove(shared.channels[at].0)
            .unwrap();
    }
    assert_eq!(shared.pool.available(), 0);
    shared.group.engine_mut().refill();
    assert_eq!(left().len(), 4);
}

#[test]
fn message_that_is_cut_as_its_channel_is_removed_gives_its_receive_back() {
    let mut shared = Shared::new(8, 4, 1);
    for _ in 0..40 {
        let (member, qp_num) = connected(&shared.group);
        let id = shared.group.join(member).unwrap();
        let taken = left()[0];
        with(|library| {
            library.cleans_queues = true;
            flushes_in_error(library, taken, qp_num, 20);
        });
        shared.group.remove(id).unwrap();
        with(|library| library.before = None);
        assert!(!is_in_flight(taken), "it was flushed");
        assert!(shared.group.next_message().is_none());
        shared.group.engine_mut().refill();
        assert_eq!(left().len(), 4);
    }
}

#[test]
fn message_that_is_cut_as_the_group_fails_is_waited_for_once() {
    let mut shared = Shared::new(8, 4, 6);
    let (_, qp_num) = shared.channels[5];
    let taken = left()[0];
    with(|library| {
        flushes_in_error(library, taken, qp_num, 20);
        library.rooms.clear();
    });
    shared.group.engine_mut().destroy_all(DownReason::Closed);
    with(|library| library.before = None);
    assert!(!is_in_flight(taken), "it was flushed");
    let polls = with(|library| library.rooms.len());
    assert!(polls < 400, "{polls}: each channel waits for itself");
}

#[test]
fn receive_that_is_lost_with_its_queue_pair_is_replaced_and_counted() {
    let mut shared = Shared::new(16, 4, 1);
    // Its queue pair has taken it, and the driver does not complete it.
    let lost = left()[0];
    let (member, _) = connected(&shared.group);
    let id = shared.group.join(member).unwrap();
    shared.group.remove(id).unwrap();
    assert_eq!(shared.group.stalled_receives(), 0, "nothing shows it yet");
    turn_over(&mut shared, &[lost]);
    shared.group.engine_mut().probe(Instant::now());
    assert_eq!(shared.group.stalled_receives(), 1);
    assert!(shared.group.next_message().is_none());
    shared.group.engine_mut().refill();
    assert_eq!(left().len(), 5, "four others");
    assert!(shared.group.group_failure().is_none());
}

#[test]
fn group_that_loses_more_receives_than_it_can_replace_fails_with_a_reason() {
    let mut shared = Shared::new(64, 8, 1);
    let mut lost = Vec::new();
    while shared.group.group_failure().is_none() {
        assert!(lost.len() < 16, "nothing is reported");
        let taken = left().into_iter().find(|wr_id| !lost.contains(wr_id));
        lost.push(taken.expect("the group has receives until it fails"));
        let (member, _) = connected(&shared.group);
        let id = shared.group.join(member).unwrap();
        shared.group.remove(id).unwrap();
        turn_over(&mut shared, &lost);
        shared.group.engine_mut().probe(Instant::now());
    }
    // Eight were replaced, and the one that is left may have another.
    assert_eq!(lost.len(), 10);
    let reason = Some(DownReason::ReceivesLost);
    let channel = shared.group.channel(shared.channels[0].0).unwrap();
    assert_eq!(channel.down_reason(), reason);
    let (member, _) = connected(&shared.group);
    let rejected = shared.group.join(member).unwrap_err();
    assert!(matches!(rejected.error(), Error::GroupFailed(_)));
    assert_eq!(rejected.error().down_reason(), reason);
}

#[test]
fn peer_that_stalls_in_the_middle_of_a_message_leaves_the_others_their_receives() {
    let mut shared = Shared::new(16, 4, 8);
    // Seven peers, each with one receive; the fourth would have been the last of four.
    let mut held = Vec::new();
    for _ in 1..8 {
        held.push(*left().iter().find(|wr_id| !held.contains(*wr_id)).unwrap());
        turn_over(&mut shared, &held);
        shared.group.engine_mut().probe(Instant::now());
        shared.group.engine_mut().refill();
    }
    assert_eq!(shared.group.group_failure(), None, "they may go on");
    for (wr_id, (id, qp_num)) in held.into_iter().zip(shared.channels[1..].to_vec()) {
        receives(wr_id, qp_num, b"at last");
        assert_eq!(shared.next().channel, id);
    }
    assert_eq!(shared.group.stalled_receives(), 0);
}

#[test]
fn peer_that_sends_before_its_channel_joins_leaves_receives_to_the_others() {
    let mut shared = Shared::new(16, 8, 1);
    let (mut greedy, greedy_qp) = connected(&shared.group);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    greedy.watch_peer(ours).unwrap();
    let (modest, modest_qp) = connected(&shared.group);
    receives(left()[0], modest_qp, b"modest");
    assert!(shared.group.next_message().is_none());
    for _ in 0..20 {
        receives(left()[0], greedy_qp, b"more");
        assert!(shared.group.next_message().is_none());
        shared.group.engine_mut().refill();
        assert!(left().len() >= 2, "it has them all");
    }
    let id = shared.group.join(greedy).unwrap();
    let channel = shared.group.channel(id).unwrap();
    assert_eq!(channel.down_reason(), Some(DownReason::TooManyEarly));
    let end = shared.next();
    assert_eq!(
        (end.channel, end.end()),
        (id, Some(DownReason::TooManyEarly))
    );
    theirs.set_nonblocking(true).unwrap();
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "its peer does not know");
    let id = shared.group.join(modest).unwrap();
    let message = shared.next();
    assert_eq!(
        (message.channel, message.bytes()),
        (id, Some(&b"modest"[..]))
    );
}

#[test]
fn channels_that_are_dropped_while_nobody_polls_are_bounded() {
    let mut shared = Shared::new(8, 4, 1);
    // Those that were never connected are forgotten at once.
    (0..3000).for_each(|_| drop(shared.group.prepare().unwrap()));
    let alive = || {
        with(|library| library.calls.clone())
            .iter()
            .fold(0_usize, |alive, verb| match *verb {
                "ibv_create_qp" => alive + 1,
                "ibv_destroy_qp" => alive - 1,
                _ => alive,
            })
    };
    let mut dropped = 0;
    let error = loop {
        assert!(dropped < 2000, "there is no bound");
        match shared.group.prepare() {
            Ok(prepared) => {
                let endpoint = prepared.endpoint();
                drop(prepared.handshake(&endpoint).unwrap());
                dropped += 1;
            }
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, Error::Unpolled(count) if count == dropped),
        "{error}"
    );
    assert!(alive() < 100, "{} queue pairs are kept", alive());
    assert!(shared.group.next_message().is_none());
    assert_eq!(alive(), 1, "the one that has joined");
    drop(shared.group.prepare().unwrap());
}

#[test]
fn wait_for_a_message_ends_at_once_if_the_only_channel_has_ended_and_was_reported() {
    let mut shared = Shared::new(8, 4, 2);
    let [(first, _), (second, _)] = [shared.channels[0], shared.channels[1]];
    let engine = shared.group.engine_mut();
    engine.flush(first, DownReason::PeerClosed).unwrap();
    assert_eq!(shared.next().channel, first);
    assert!(!shared.group.is_empty(), "it was not removed");
    let engine = shared.group.engine_mut();
    engine.destroy(second, DownReason::PeerClosed).unwrap();
    let last = bounded(|| shared.group.wait_message(None));
    assert_eq!(last.unwrap().channel, second);
    assert!(bounded(|| shared.group.wait_message(None)).is_none());
    assert!(bounded(|| shared.group.wait_completed(None)).is_none());
    // One that may still join is not waited for.
    let (member, qp_num) = connected(&shared.group);
    receives(left()[0], qp_num, b"early");
    assert!(bounded(|| shared.group.wait_message(None)).is_none());
    let id = shared.group.join(member).unwrap();
    let message = bounded(|| shared.group.wait_message(None)).unwrap();
    assert_eq!(message.channel, id);
}

#[test]
fn wait_for_a_message_ends_if_the_shared_receive_queue_does_not_answer() {
    let mut shared = Shared::new(8, 4, 1);
    refuse("ibv_query_srq", 1);
    let end = bounded(|| shared.group.wait_message(None)).unwrap();
    let reason = Some(DownReason::Device(libc::EIO));
    assert_eq!((end.channel, end.end()), (shared.channels[0].0, reason));
    assert_eq!(shared.group.group_failure(), reason);
    assert!(bounded(|| shared.group.wait_message(None)).is_none());
}

#[test]
fn failed_group_takes_no_channel_and_says_why() {
    for event in [
        EventType::CQ_ERR,
        EventType::SRQ_ERR,
        EventType::DEVICE_FATAL,
    ] {
        let mut shared = Shared::new(8, 4, 1);
        let reason = DownReason::Event(event);
        let (member, _) = connected(&shared.group);
        shared.group.engine_mut().destroy_all(reason);
        // A later reason is a consequence.
        let other = DownReason::Event(EventType::DEVICE_FATAL);
        shared.group.engine_mut().destroy_all(other);
        assert_eq!(shared.group.group_failure(), Some(reason));
        let rejected = shared.group.join(member).unwrap_err();
        assert!(matches!(rejected.error(), Error::GroupFailed(of) if *of == reason));
        // No call waits for what cannot come.
        let end = bounded(|| shared.group.wait_message(Some(2 * LONG))).unwrap();
        assert_eq!(end.end(), Some(reason));
        assert!(bounded(|| shared.group.wait_message(Some(2 * LONG))).is_none());
        assert!(bounded(|| shared.group.wait_completed(Some(2 * LONG))).is_none());
    }
}

#[test]
fn group_whose_channels_were_all_closed_takes_others() {
    let mut shared = Shared::new(8, 4, 2);
    shared.group.engine_mut().destroy_all(DownReason::Closed);
    shared
        .group
        .engine_mut()
        .destroy_all(DownReason::Event(EventType::QP_FATAL));
    let (member, _) = connected(&shared.group);
    let id = shared.group.join(member).unwrap();
    assert_eq!(shared.group.channel(id).unwrap().down_reason(), None);
}

#[test]
fn queue_is_rebuilt_when_no_channel_is_left_if_receives_may_be_lost() {
    // With blocks for no others, and nothing that shows a loss.
    let mut shared = Shared::new(4, 4, 0);
    for round in 0..40_usize {
        let (member, _) = connected(&shared.group);
        match round % 4 {
            0 => drop(member),
            _ => {
                let id = shared.group.join(member).unwrap();
                shared.group.remove(id).unwrap();
            }
        }
        assert!(shared.group.next_message().is_none());
        let rebuilt = count("ibv_create_srq");
        assert_eq!(rebuilt, 1 + round.div_ceil(2), "when half may be lost");
        assert_eq!(left().len(), 4);
    }
    let (member, qp_num) = connected(&shared.group);
    let id = shared.group.join(member).unwrap();
    for wr_id in left() {
        receives(wr_id, qp_num, b"x");
        assert_eq!(shared.next().channel, id);
    }
    let Shared {
        group, pool, pd, ..
    } = shared;
    drop((group, pd));
    assert_eq!(pool.available(), 4);
    drop(pool);
    assert_all_is_well();
}

#[test]
fn blocks_are_leaked_if_the_queue_cannot_be_rebuilt() {
    let mut shared = Shared::new(8, 4, 2);
    refuse("ibv_destroy_srq", 1);
    let old = left();
    shared.group.remove(shared.channels[0].0).unwrap();
    assert!(left() == old);
    shared.group.remove(shared.channels[1].0).unwrap();
    assert_eq!(
        shared.pool.available(),
        0,
        "four are leaked, and four others posted"
    );
    let Shared { group, pool, .. } = shared;
    drop(group);
    assert_eq!(pool.available(), 4);
}

#[test]
fn receives_that_may_be_lost_beside_an_idle_channel_are_replaced() {
    let mut shared = Shared::new(16, 4, 1);
    with(|library| library.cleans_queues = true);
    for _ in 0..4 {
        let (member, _) = connected(&shared.group);
        let id = shared.group.join(member).unwrap();
        shared.group.remove(id).unwrap();
    }
    let posts = posted().len();
    shared.group.engine_mut().probe(Instant::now());
    shared.group.engine_mut().refill();
    assert!(
        posted().len() >= posts + 2,
        "{} after {posts}",
        posted().len()
    );
}

#[test]
fn queue_is_not_rebuilt_while_a_completion_of_it_is_left() {
    let mut shared = Shared::new(16, 4, 0);
    // It keeps the queue until its handshake fails.
    let prepared = shared.group.prepare().unwrap();
    let endpoint = prepared.endpoint();
    let mut removed = None;
    for _ in 0..2 {
        let (member, _) = connected(&shared.group);
        let id = shared.group.join(member).unwrap();
        shared.group.remove(id).unwrap();
        removed.get_or_insert(id);
    }
    receives(left()[0], endpoint.qp_num(), b"early");
    refuse("ibv_modify_qp", 1);
    assert!(prepared.handshake(&endpoint).is_err());
    // This polls nothing.
    assert!(shared.group.remove(removed.unwrap()).is_err());
    assert!(shared.group.next_message().is_none());
    shared.group.engine_mut().refill();
    assert_eq!(
        count("ibv_create_srq"),
        2,
        "it is rebuilt once they are polled"
    );
    let posted = posted();
    let mut on_the_new = posted[posted.len() - 6..].to_vec();
    on_the_new.sort_unstable();
    on_the_new.dedup();
    assert_eq!(on_the_new.len(), 6, "each place is posted once: {posted:?}");
}
