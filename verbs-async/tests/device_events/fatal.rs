//! Fatal events of each kind; and a queue that cannot be polled.

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use fake_libibverbs::{ladder, last_cq, report, share, with};
use futures_util::AsyncReadExt as _;
use verbs_async::verbs_channel::{Channel, Datagrams, DownReason};
use verbs_async::{AsyncCq, AsyncDatagrams, AsyncGroup, ByteStream, CqEvents, DeviceEvents, Error};
use verbs_core::device::EventType;
use verbs_core::verbs_sys::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_FATAL,
    ibv_async_event, ibv_cq, ibv_event_type,
};
use verbs_harness::faults;

use crate::{block_on, port_event, report_overrun, report_qp, waiting};

/// A stream, whose channel is connected to itself, and the number of its queue pair.
fn stream(context: &verbs_core::Context) -> (AsyncGroup, ByteStream, u32) {
    let pd = context.alloc_pd().unwrap();
    let events = CqEvents::create_thread(context).unwrap();
    let builder = Channel::builder(&pd).drain_timeout(faults::NOT_AT_ONCE);
    let group = AsyncGroup::new(builder, 1, &events).unwrap();
    let member = group.prepare().unwrap();
    let endpoint = member.endpoint();
    let channel = group.join(member.handshake(&endpoint).unwrap()).unwrap();
    let stream = channel.into_stream_with(64, 1).unwrap();
    stream.set_linger(Duration::ZERO);
    (group, stream, endpoint.qp_num())
}

/// Faults, and the event of each.
const FATAL: [(&str, ibv_event_type); 3] = [
    (faults::QP_FATAL, IBV_EVENT_QP_FATAL),
    (faults::OVERRUN, IBV_EVENT_CQ_ERR),
    (faults::REMOVED, IBV_EVENT_DEVICE_FATAL),
];

#[test]
fn fatal_events_end_streams() {
    let _shared = share();
    let (context, ..) = ladder();
    for (fault, event_type) in FATAL {
        let (_group, mut stream, qp_num) = stream(&context);
        let start = Instant::now();
        match event_type {
            IBV_EVENT_QP_FATAL => report_qp(&context, event_type, qp_num),
            IBV_EVENT_CQ_ERR => report_overrun(&context, last_cq().unwrap()),
            _ => report(&context, event_type, ibv_async_event::default()),
        }
        let error = block_on(stream.read(&mut [0; 8])).unwrap_err();
        faults::error(fault, "stream", &error, faults::at_once(start));
    }
}

#[test]
fn completion_queue_that_cannot_be_polled_ends_operations_and_streams() {
    let _shared = share();
    let (context, ..) = ladder();
    let (group, channels, [operation, _]) = waiting(&context);
    with(|library| library.poll_answer = Some(-2));
    let start = Instant::now();
    let error = block_on(operation).0.unwrap_err();
    faults::error(faults::UNPOLLED, "async", &error, faults::at_once(start));
    // The next answer is for the stream: nothing else polls.
    drop(channels);
    block_on(group.closed()).unwrap();
    drop(group);
    let (_group, mut stream, _) = stream(&context);
    with(|library| library.poll_answer = Some(-2));
    let start = Instant::now();
    let error = block_on(stream.read(&mut [0; 8])).unwrap_err();
    faults::error(faults::UNPOLLED, "stream", &error, faults::at_once(start));
}

#[test]
fn channel_without_a_queue_pair_is_an_error() {
    let _shared = share();
    let (context, ..) = ladder();
    let (group, [channel, _other], operations) = waiting(&context);
    drop(operations);
    with(|library| library.refuse.push(("ibv_create_qp", libc::ENOMEM)));
    let start = Instant::now();
    let stream = channel.into_stream_with(64, 1).unwrap();
    stream.set_linger(Duration::ZERO);
    drop(stream);
    let what = "not applicable: the stream uses its channel's queue pair";
    faults::seen(faults::QUEUE_PAIRS, "stream", what, faults::at_once(start));
    let error = group.prepare().unwrap_err();
    faults::error(faults::QUEUE_PAIRS, "async", &error, faults::at_once(start));
}

/// The end of a wait for a queue and for a datagram.
fn ends_with(reason: DownReason, (cq, datagrams): (&AsyncCq, &AsyncDatagrams)) {
    let error = block_on(cq.poll_wr_id(1)).unwrap_err();
    assert_eq!(error.down_reason(), Some(reason), "{error}");
    let error = block_on(datagrams.receive_from()).unwrap_err();
    assert_eq!(error.down_reason(), Some(reason), "{error}");
}

fn endpoint(context: &verbs_core::Context, events: &CqEvents) -> AsyncDatagrams {
    let pd = context.alloc_pd().unwrap();
    AsyncDatagrams::create(Datagrams::builder(&pd), events).unwrap()
}

#[test]
fn events_that_end_with_their_device_end_what_they_watch() {
    let _shared = share();
    let (context, ..) = ladder();
    let completions = CqEvents::create_thread(&context).unwrap();
    let mut events = DeviceEvents::create(&completions).unwrap();
    let make = || {
        let cq = AsyncCq::create(&completions, 16).unwrap();
        events.watch_cq(&cq).unwrap();
        (cq, endpoint(&context, &completions))
    };
    let (cq, datagrams) = make();
    let (group, _channels, [operation, _]) = waiting(&context);
    let reason = DownReason::Device(libc::EIO);
    with(|library| library.refuse.push(("ibv_get_async_event", libc::EIO)));
    report(&context, IBV_EVENT_PORT_ERR, port_event());
    ends_with(reason, (&cq, &datagrams));
    let error = block_on(operation).0.unwrap_err();
    assert_eq!(error.down_reason(), Some(reason), "{error}");
    let member = group.prepare().unwrap();
    let endpoint = member.endpoint();
    let rejected = group.join(member.handshake(&endpoint).unwrap());
    let error = rejected.unwrap_err().into_error();
    assert_eq!(
        error.down_reason(),
        Some(reason),
        "no channel joins after it"
    );
    assert_eq!(group.failure(), Some(reason));
    let (cq, datagrams) = make();
    ends_with(reason, (&cq, &datagrams));
    let pd = context.alloc_pd().unwrap();
    let late = AsyncGroup::new(Channel::builder(&pd), 1, &completions).unwrap();
    assert_eq!(late.failure(), Some(reason));
    block_on(events.next()).unwrap().unwrap_err();
    assert!(block_on(events.next()).is_none());
}

#[test]
fn queue_that_failed_before_it_is_watched_ends_its_waits() {
    let _shared = share();
    let (context, ..) = ladder();
    let mut events = DeviceEvents::create(&CqEvents::create_thread(&context).unwrap()).unwrap();
    let completions = CqEvents::create_thread(&context).unwrap();
    let mut is_taken = || assert!(block_on(events.next()).unwrap().is_ok());
    // The queue of a group, a queue, and the queue pairs of an endpoint and of a channel.
    let (_group, _channels, [of_queue, _]) = waiting(&context);
    report_overrun(&context, last_cq().unwrap());
    is_taken();
    let cq = AsyncCq::create(&completions, 16).unwrap();
    report_overrun(&context, cq.cq().as_ptr());
    is_taken();
    let datagrams = endpoint(&context, &completions);
    report_qp(&context, IBV_EVENT_QP_FATAL, datagrams.endpoint().qp_num());
    is_taken();
    let (_other, [left, _right], [of_pair, _sound]) = waiting(&context);
    let qp_num = left.endpoint().unwrap().qp_num();
    report_qp(&context, IBV_EVENT_QP_FATAL, qp_num);
    is_taken();
    events.watch_cq(&cq).unwrap();
    let overrun = DownReason::Event(EventType::CQ_ERR);
    let fatal = DownReason::Event(EventType::QP_FATAL);
    let ends = |error: Error| error.down_reason();
    let of_queue = block_on(of_queue).0.unwrap_err();
    assert_eq!(of_queue.down_reason(), Some(overrun));
    let of_pair = block_on(of_pair).0.unwrap_err();
    assert_eq!(of_pair.down_reason(), Some(fatal));
    assert_eq!(ends(block_on(cq.poll_wr_id(1)).unwrap_err()), Some(overrun));
    let received = block_on(datagrams.receive_from());
    assert_eq!(ends(received.unwrap_err()), Some(fatal));
}

#[test]
fn failure_of_an_earlier_queue_with_the_same_handle_ends_no_other() {
    let _shared = share();
    let (context, ..) = ladder();
    let mut events = DeviceEvents::create(&CqEvents::create_thread(&context).unwrap()).unwrap();
    let completions = CqEvents::create_thread(&context).unwrap();
    let before = AsyncCq::create(&completions, 16).unwrap();
    let mut gone = ibv_cq {
        handle: before.cq().handle() + 1,
        ..ibv_cq::default()
    };
    report_overrun(&context, &raw mut gone);
    block_on(events.next()).unwrap().unwrap();
    let after = AsyncCq::create(&completions, 16).unwrap();
    assert_eq!(after.cq().handle(), gone.handle);
    events.watch_cq(&after).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(after.poll_wr_id(1)).poll(&mut cx).is_pending());
}

#[test]
fn failure_of_an_earlier_queue_pair_with_the_same_number_ends_no_other() {
    let _shared = share();
    let (context, ..) = ladder();
    let mut events = DeviceEvents::create(&CqEvents::create_thread(&context).unwrap()).unwrap();
    let (group, [gone, _other], operations) = waiting(&context);
    let qp_num = gone.endpoint().unwrap().qp_num();
    report_qp(&context, IBV_EVENT_QP_FATAL, qp_num);
    block_on(events.next()).unwrap().unwrap();
    // The group is older than that, and its next channel has the number.
    drop((gone, operations));
    block_on(group.closed()).unwrap();
    with(|library| library.qp_nums.push_back(qp_num));
    let member = group.prepare().unwrap();
    let remote = member.endpoint();
    assert_eq!(remote.qp_num(), qp_num);
    let channel = group.join(member.handshake(&remote).unwrap()).unwrap();
    // So has an endpoint.
    with(|library| library.qp_nums.push_back(qp_num));
    let completions = CqEvents::create_thread(&context).unwrap();
    let datagrams = endpoint(&context, &completions);
    assert_eq!(datagrams.endpoint().qp_num(), qp_num);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(!channel.is_down());
    assert!(pin!(datagrams.receive_from()).poll(&mut cx).is_pending());
    // A failure of its own does.
    report_qp(&context, IBV_EVENT_QP_FATAL, qp_num);
    block_on(events.next()).unwrap().unwrap();
    assert!(channel.is_down());
}
