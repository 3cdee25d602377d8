//! A device that is gone: it accepts posts, completes nothing, and fails every query.

use std::time::{Duration, Instant};

use fake_libibverbs::with;
use verbs_channel::error::Queue;
use verbs_channel::verbs_core::verbs_sys::IBV_QPS_ERR;
use verbs_channel::{
    Channel, ChannelGroup, ChannelId, DownReason, Incoming, Outgoing, PollStrategy, RejectReason,
    ScopeError, TransportError,
};
use verbs_harness::faults;

use crate::fake_device::{
    DRAIN, bounded, called, channel, channel_with, connected, count, forget_the_past, join, pd,
    posted, refuse, region, succeeds,
};

/// From now on every query of a queue pair fails.
fn dies() {
    refuse("ibv_query_qp", 100);
}

const DEAD: DownReason = DownReason::Device(libc::EIO);
const ENDED: TransportError = TransportError::Aborted(DEAD);

fn assert_dead(channel: &Channel) {
    assert_eq!(channel.down_reason(), Some(DEAD));
    assert!(called("ibv_destroy_qp"));
    // Nothing but destroying is attempted on a device that is gone.
    assert_eq!(with(|library| library.modified.len()), 0);
}

#[test]
fn every_blocking_call_ends_without_a_deadline() {
    type Call = fn(&mut Channel) -> Result<(), TransportError>;
    let calls: [Call; 4] = [
        |channel| {
            let from = region(channel);
            channel.send(from.gather_element(..).unwrap())
        },
        |channel| {
            let mut into = region(channel);
            channel.receive(into.scatter_element(..).unwrap()).map(drop)
        },
        |channel| {
            let from = region(channel);
            channel.run_batch([Outgoing::send(from.gather_element(..).unwrap()); 3])
        },
        |channel| {
            let from = region(channel);
            let patience = Duration::from_secs(1000);
            channel
                .run(Outgoing::send(from.gather_element(..).unwrap()).timeout(patience))
                .map(drop)
        },
    ];
    for call in calls {
        let mut channel = channel_with(faults::NOT_AT_ONCE);
        dies();
        let start = Instant::now();
        let error = bounded(|| call(&mut channel)).unwrap_err();
        assert!(error == ENDED, "{error:?}");
        faults::error(faults::REMOVED, "channel", &error, faults::at_once(start));
        assert_dead(&channel);
        let refused = call(&mut channel).unwrap_err();
        assert!(
            matches!(refused, TransportError::Rejected(reason) if reason == RejectReason::Down(DEAD))
        );
    }
}

#[test]
fn every_strategy_notices_a_dead_device() {
    for (strategy, refused) in [
        (PollStrategy::Spin, "ibv_query_qp"),
        (PollStrategy::SpinThenYield, "ibv_query_qp"),
        (PollStrategy::Notify { after: 0 }, "ibv_query_qp"),
        (PollStrategy::Notify { after: 1000 }, "ibv_query_qp"),
        (PollStrategy::Notify { after: 0 }, "ibv_req_notify_cq"),
    ] {
        let built = |strategy| {
            let builder = Channel::builder(&pd()).strategy(strategy);
            connected(builder.build().unwrap())
        };
        // It cannot sleep if it was built to spin, and waits all the same.
        let mut changed = built(PollStrategy::Spin);
        changed.set_strategy(strategy);
        let is_query = refused == "ibv_query_qp";
        for mut channel in [Some(built(strategy)), is_query.then_some(changed)]
            .into_iter()
            .flatten()
        {
            let mut into = region(&channel);
            forget_the_past();
            refuse(refused, 100);
            let error = bounded(|| channel.receive(into.scatter_element(..).unwrap())).unwrap_err();
            assert!(error == ENDED, "{strategy:?}");
            assert_dead(&channel);
            with(|library| library.refuse.clear());
        }
    }
}

#[test]
fn dead_device_ends_scopes_and_loans() {
    let mut channel = channel();
    let (from, mut into) = (region(&channel), region(&channel));
    let mut lent = region(&channel);
    dies();
    let ended = bounded(|| {
        channel.scope(|scope| {
            let work = scope.post_send(from.gather_element(..).unwrap()).unwrap();
            drop(
                scope
                    .post_receive(into.scatter_element(..).unwrap())
                    .unwrap(),
            );
            let loan = scope
                .lend(Incoming::receive(lent.scatter_element(..).unwrap()))
                .unwrap();
            let (result, mut element) = loan.spin_poll();
            element.fill(1);
            assert_eq!(result.unwrap_err(), ENDED);
            assert_eq!(work.spin_poll().unwrap_err(), ENDED);
            Ok::<_, ()>(())
        })
    });
    // The handle of the receive was dropped.
    assert!(
        matches!(ended, Err(ScopeError::AutoPollError(error)) if error == ENDED),
        "{ended:?}"
    );
    assert_eq!(lent[..], [1; 64]);
    assert_dead(&channel);
}

#[test]
fn failed_poll_ends_the_wait_at_once() {
    let mut channel = channel_with(faults::NOT_AT_ONCE);
    let mut into = region(&channel);
    let owned = channel.start_send(region(&channel)).unwrap();
    with(|library| library.poll_answer = Some(-2));
    let start = Instant::now();
    let error = bounded(|| channel.receive(into.scatter_element(..).unwrap())).unwrap_err();
    faults::error(faults::UNPOLLED, "channel", &error, faults::at_once(start));
    let TransportError::Aborted(DownReason::Poll(poll)) = error else {
        panic!("{error:?}");
    };
    assert_eq!(channel.down_reason(), Some(DownReason::Poll(poll)));
    // There is no wait for flushes on a queue that cannot be polled: the queue pair is destroyed.
    assert_eq!(count("ibv_destroy_qp"), 1);
    assert_eq!(with(|library| library.modified.len()), 0);
    let ended = channel.poll(owned).unwrap().unwrap();
    assert_eq!(
        ended.result.unwrap_err(),
        TransportError::Aborted(DownReason::Poll(poll))
    );
    assert!(ended.buffer.is_some());
}

#[test]
fn queue_pair_in_error_without_flushes_ends_after_the_drain_timeout() {
    let strategies = [
        PollStrategy::Spin,
        PollStrategy::SpinThenYield,
        PollStrategy::Notify { after: 0 },
    ];
    for strategy in strategies {
        let builder = Channel::builder(&pd()).strategy(strategy);
        let mut channel = connected(builder.drain_timeout(DRAIN).build().unwrap());
        let owned = channel.start_send(region(&channel)).unwrap();
        let mut into = region(&channel);
        with(|library| library.qp_state = Some(IBV_QPS_ERR));
        let start = Instant::now();
        let error = bounded(|| channel.receive(into.scatter_element(..).unwrap())).unwrap_err();
        let ended = TransportError::Aborted(DownReason::Unflushed);
        assert!(error == ended, "{error:?}");
        let within = faults::setting(start, "[`drain_timeout`]", DRAIN);
        faults::error(faults::QP_FATAL, "channel", &error, within);
        assert_eq!(channel.down_reason(), Some(DownReason::Unflushed));
        assert!(called("ibv_destroy_qp"));
        let completed = bounded(|| channel.wait(owned, None)).unwrap().unwrap();
        assert_eq!(completed.result.unwrap_err(), ended);
        assert!(completed.buffer.is_some());
        with(|library| library.qp_state = None);
    }
}

/// The completion queue has an entry for each request that the channel posts.
#[test]
fn request_that_would_overrun_the_completion_queue_is_rejected() {
    let mut channel = channel();
    let in_flight = [(); 4].map(|()| channel.start_send(region(&channel)).unwrap());
    let (from, start) = (region(&channel), Instant::now());
    let error = channel.start_send(from).unwrap_err().into_error();
    faults::error(faults::OVERRUN, "channel", &error, faults::at_once(start));
    assert_eq!(
        (error, posted().len()),
        (RejectReason::Backpressure(Queue::Send), 4)
    );
    for (ticket, wr_id) in in_flight.into_iter().zip(posted()) {
        succeeds(wr_id);
        channel.wait_success(ticket).unwrap();
    }
}

/// A group of this many channels, each with a receive in flight.
fn receiving(count: u32, drain_timeout: Duration) -> (ChannelGroup, Vec<ChannelId>) {
    let pd = pd();
    let builder = Channel::builder(&pd).max_send_wr(1).max_recv_wr(1);
    let builder = builder.drain_timeout(drain_timeout);
    let mut group = builder.group(count).unwrap();
    for _ in 0..count {
        let id = join(&mut group);
        let region = pd.reg_mr(vec![0_u8; 8]).unwrap();
        let _ticket = group.channel(id).unwrap().start_receive(region).unwrap();
    }
    forget_the_past();
    let ids = group.channels().collect();
    (group, ids)
}

/// How often a wait queries queue pairs, and how many of them at a time.
const PROBE: Duration = Duration::from_millis(100);
const PROBES: u32 = 16;

#[test]
fn queue_pairs_of_a_group_are_queried_in_turn_a_few_at_a_time() {
    let (mut group, ids) = receiving(40, DRAIN);
    let start = Instant::now();
    // It is not among the first that are queried, and its flush never comes.
    let last = *ids.last().unwrap();
    group.engine_mut().flush(last, DownReason::Closed).unwrap();
    let ended = group.wait_completed(Some(Duration::from_secs(5)));
    let rounds = start.elapsed().as_millis() / PROBE.as_millis();
    let ended = ended.expect("it was never asked");
    assert_eq!(ended.channel, last);
    assert!(called("ibv_destroy_qp"));
    let asked = count("ibv_query_qp");
    assert!(
        asked as u128 <= u128::from(PROBES) * (rounds + 1),
        "{asked} in {rounds}"
    );
    for id in &ids[..39] {
        assert!(!group.channel(*id).unwrap().is_down());
    }
}

#[test]
fn all_queue_pairs_are_queried_after_one_query_fails() {
    let (mut group, ids) = receiving(40, DRAIN);
    refuse("ibv_query_qp", 40);
    let ended = bounded(|| group.wait_completed(None)).unwrap();
    assert_eq!(ended.result.unwrap_err(), ENDED);
    for id in ids {
        assert_eq!(group.channel(id).unwrap().down_reason(), Some(DEAD));
    }
    assert_eq!(count("ibv_query_qp"), 40);
}

#[test]
fn drain_timeout_starts_anew_each_time_a_queue_pair_is_in_error() {
    let drain_timeout = 4 * PROBE;
    let (mut group, _ids) = receiving(1, drain_timeout);
    // One probe, or none on a machine that is busy.
    let mut probed = |state| {
        with(|library| library.qp_state = state);
        let waited = group.wait_completed(Some(PROBE + PROBE / 2));
        assert!(
            waited.is_none() && !called("ibv_destroy_qp"),
            "it was not waited for"
        );
    };
    probed(Some(IBV_QPS_ERR));
    probed(Some(IBV_QPS_ERR));
    // It works again, for longer than the rest of its drain timeout, and is seen to.
    forget_the_past();
    let start = Instant::now();
    while start.elapsed() < drain_timeout || !called("ibv_query_qp") {
        probed(None);
    }
    probed(Some(IBV_QPS_ERR));
    with(|library| library.qp_state = None);
}

#[test]
fn a_queue_pair_that_has_flushed_has_the_drain_timeout_anew() {
    let drain_timeout = 4 * PROBE;
    let pd = pd();
    let builder = Channel::builder(&pd).max_send_wr(1).max_recv_wr(1);
    let mut group = builder.drain_timeout(drain_timeout).group(1).unwrap();
    let id = join(&mut group);
    let start = |group: &mut ChannelGroup| {
        forget_the_past();
        let region = pd.reg_mr(vec![0_u8; 8]).unwrap();
        let _ticket = group.channel(id).unwrap().start_receive(region).unwrap();
    };
    with(|library| library.qp_state = Some(IBV_QPS_ERR));
    start(&mut group);
    // It is found in error, and then its request is flushed after all.
    assert!(group.wait_completed(Some(2 * PROBE)).is_none());
    succeeds(posted()[0]);
    assert!(group.wait_completed(None).is_some());
    // Nothing is in flight for longer than it would have had.
    assert!(group.wait_completed(Some(drain_timeout)).is_none());
    start(&mut group);
    assert!(group.wait_completed(Some(2 * PROBE)).is_none());
    assert!(!called("ibv_destroy_qp"), "it was not waited for");
    with(|library| library.qp_state = None);
}

#[test]
fn channel_without_a_queue_pair_is_an_error() {
    let pd = pd();
    with(|library| library.refuse.push(("ibv_create_qp", libc::ENOMEM)));
    let start = Instant::now();
    let error = Channel::builder(&pd).build().unwrap_err();
    faults::error(
        faults::QUEUE_PAIRS,
        "channel",
        &error,
        faults::at_once(start),
    );
}
