//! Device events by every notifier, on [`fake_libibverbs`]: those included that no software device
//! sends.
#![cfg(test)]

mod fatal;

use std::pin::pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use std::{future::Future, sync::Arc};

use fake_libibverbs::{Port, ladder, report, share, with};
use futures_core::Stream as _;
use verbs_async::verbs_channel::{
    self, BufferPool, Channel, Datagrams, DownReason, TransportError,
};
use verbs_async::{
    AsyncChannel, AsyncCq, AsyncDatagrams, AsyncGroup, CqEvents, DeviceEvents, Error, Operation,
    Result,
};
use verbs_core::codes::Gid;
use verbs_core::device::{AsyncEvent, EventType};
use verbs_core::path::{DatagramEndpoint, QKey};
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::verbs_sys::{
    IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_GID_CHANGE, IBV_EVENT_PORT_ACTIVE,
    IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
    IBV_EVENT_SRQ_ERR, ibv_async_event, ibv_cq, ibv_event_type, ibv_qp, ibv_srq,
};
use verbs_harness::faults;

struct WakeSender(Sender<()>);

impl Wake for WakeSender {
    fn wake(self: Arc<Self>) {
        // The test may be over.
        self.0.send(()).ok();
    }
}

fn channel_waker() -> (Waker, Receiver<()>) {
    let (sender, woken) = mpsc::channel();
    (Waker::from(Arc::new(WakeSender(sender))), woken)
}

/// Sleeps until it is ready; the library is lent to this thread only. Fails if it is never woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let (waker, woken) = channel_waker();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        woken
            .recv_timeout(Duration::from_secs(30))
            .expect("a wake-up");
    }
}

fn port_event() -> ibv_async_event {
    let mut event = ibv_async_event::default();
    event.element.port_num = 1;
    event
}

/// Reports an event of the queue pair with this number.
fn report_qp(context: &verbs_core::Context, event_type: ibv_event_type, qp_num: u32) {
    let qp = ibv_qp {
        qp_num,
        ..ibv_qp::default()
    };
    let mut event = ibv_async_event::default();
    // Another thread takes the event.
    event.element.qp = Box::leak(Box::new(qp));
    report(context, event_type, event);
}

/// Reports that a completion queue has overrun.
fn report_overrun(context: &verbs_core::Context, cq: *mut ibv_cq) {
    let mut event = ibv_async_event::default();
    event.element.cq = cq;
    report(context, IBV_EVENT_CQ_ERR, event);
}

fn event_type(event: Option<Result<AsyncEvent>>) -> EventType {
    event.unwrap().unwrap().event_type()
}

fn events_come_in_order_and_end_with_the_device(
    create: fn(&verbs_core::Context) -> Result<CqEvents>,
) {
    let _shared = share();
    let (context, ..) = ladder();
    let mut events = DeviceEvents::create(&create(&context).unwrap()).unwrap();
    let (waker, woken) = channel_waker();
    let mut cx = Context::from_waker(&waker);
    assert!(events.poll_next(&mut cx).is_pending());

    report(&context, IBV_EVENT_PORT_ERR, port_event());
    woken
        .recv_timeout(Duration::from_secs(30))
        .expect("a wake-up");
    report(&context, IBV_EVENT_PORT_ACTIVE, port_event());
    assert_eq!(event_type(block_on(events.next())), EventType::PORT_ERR);
    assert_eq!(event_type(block_on(events.next())), EventType::PORT_ACTIVE);

    // Dropping a future loses no event.
    {
        let mut dropped = pin!(events.next());
        assert!(dropped.as_mut().poll(&mut cx).is_pending());
        report(&context, IBV_EVENT_DEVICE_FATAL, ibv_async_event::default());
    }
    assert_eq!(event_type(block_on(events.next())), EventType::DEVICE_FATAL);
    assert_eq!(with(|library| library.async_acks), 3);

    with(|library| library.refuse.push(("ibv_get_async_event", libc::EIO)));
    report(&context, IBV_EVENT_PORT_ERR, port_event());
    let gone = block_on(events.next()).unwrap().unwrap_err();
    let Error::Channel(verbs_channel::Error::Core(gone)) = gone else {
        panic!("not the device's: {gone}");
    };
    assert_eq!(gone.errno(), Some(libc::EIO));
    // As a stream, too.
    for _ in 0..2 {
        let next = pin!(&mut events).poll_next(&mut cx);
        assert!(matches!(next, Poll::Ready(None)));
    }
}

#[test]
fn by_thread() {
    events_come_in_order_and_end_with_the_device(CqEvents::create_thread);
}

#[test]
#[cfg(feature = "async-io")]
fn by_async_io() {
    events_come_in_order_and_end_with_the_device(CqEvents::create_async_io);
}

#[cfg(feature = "tokio")]
fn tokio_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_io()
        .build()
        .unwrap()
}

#[test]
#[cfg(feature = "tokio")]
fn by_tokio() {
    let runtime = tokio_runtime();
    let _entered = runtime.enter();
    events_come_in_order_and_end_with_the_device(CqEvents::create_tokio);
}

#[test]
#[cfg(feature = "tokio")]
fn runtime_shutdown_ends_the_events() {
    let _shared = share();
    let (context, ..) = ladder();
    let runtime = tokio_runtime();
    let mut events = {
        let _entered = runtime.enter();
        DeviceEvents::create(&CqEvents::create_tokio(&context).unwrap()).unwrap()
    };
    drop(runtime);
    block_on(events.next()).unwrap().unwrap_err();
    assert!(block_on(events.next()).is_none());
}

/// A group on the device, and two operations that wait on the first of two channels.
fn waiting(context: &verbs_core::Context) -> (AsyncGroup, [AsyncChannel; 2], [Operation; 2]) {
    let pd = context.alloc_pd().unwrap();
    let events = CqEvents::create_thread(context).unwrap();
    let builder = Channel::builder(&pd).drain_timeout(faults::NOT_AT_ONCE);
    let group = AsyncGroup::new(builder, 2, &events).unwrap();
    // Each is connected to itself: the end of one does not affect the other.
    let channels = [(); 2].map(|()| {
        let member = group.prepare().unwrap();
        let endpoint = member.endpoint();
        group.join(member.handshake(&endpoint).unwrap()).unwrap()
    });
    let receive = |channel: &AsyncChannel| {
        let mut operation = channel.receive(pd.reg_mr(vec![0; 8]).unwrap());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pin!(&mut operation).poll(&mut cx).is_pending());
        operation
    };
    let operations = channels.each_ref().map(receive);
    (group, channels, operations)
}

/// Returns the error.
fn ended_by(operation: Operation, event: EventType) -> TransportError {
    let (result, buffer) = block_on(operation);
    let error = result.unwrap_err();
    let TransportError::Aborted(DownReason::Event(reason)) = &error else {
        panic!("{error}");
    };
    assert_eq!(*reason, event);
    assert_eq!(buffer.capacity(), 8);
    error
}

/// No task takes the events here.
#[test]
fn fatal_device_event_ends_pending_operations() {
    let _shared = share();
    let (context, ..) = ladder();
    let (_group, channels, operations) = waiting(&context);
    let start = Instant::now();
    report(&context, IBV_EVENT_PORT_ERR, port_event());
    report(&context, IBV_EVENT_DEVICE_FATAL, ibv_async_event::default());
    for operation in operations {
        let error = ended_by(operation, EventType::DEVICE_FATAL);
        faults::error(faults::REMOVED, "async", &error, faults::at_once(start));
    }
    let reason = Some(DownReason::Event(EventType::DEVICE_FATAL));
    for channel in channels {
        assert_eq!(channel.down_reason(), reason);
    }
    let (pd, completions) = (
        context.alloc_pd().unwrap(),
        CqEvents::create_thread(&context).unwrap(),
    );
    let late = AsyncGroup::new(Channel::builder(&pd), 2, &completions).unwrap();
    assert_eq!(late.failure(), reason);
}

#[test]
fn events_of_queue_pairs_take_down_their_channel_only() {
    let _shared = share();
    let (context, ..) = ladder();
    for (raw, reason) in [
        (IBV_EVENT_QP_FATAL, EventType::QP_FATAL),
        (IBV_EVENT_QP_REQ_ERR, EventType::QP_REQ_ERR),
        (IBV_EVENT_QP_ACCESS_ERR, EventType::QP_ACCESS_ERR),
    ] {
        let (_group, [left, right], [broken, mut sound]) = waiting(&context);
        let start = Instant::now();
        report_qp(&context, raw, left.endpoint().unwrap().qp_num());
        let error = ended_by(broken, reason);
        if reason == EventType::QP_FATAL {
            faults::error(faults::QP_FATAL, "async", &error, faults::at_once(start));
        }
        assert!(!right.is_down());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pin!(&mut sound).poll(&mut cx).is_pending());
    }
}

#[test]
fn failed_shared_receives_end_their_channels() {
    let _shared = share();
    let (context, ..) = ladder();
    let pd = context.alloc_pd().unwrap();
    let completions = CqEvents::create_thread(&context).unwrap();
    let pool = BufferPool::new(&pd, 64, 4).unwrap();
    let builder = Channel::builder(&pd).shared_receives(&pool, 4);
    // The handles are in sequence.
    let before = SharedReceiveQueue::builder(&pd).build().unwrap();
    let shared = AsyncGroup::with_shared_receives(&builder, 1, &completions);
    let (group, mut messages) = shared.unwrap();
    let after = SharedReceiveQueue::builder(&pd).build().unwrap();
    let member = group.prepare().unwrap();
    let endpoint = member.endpoint();
    let channel = group.join(member.handshake(&endpoint).unwrap()).unwrap();
    let mut events = DeviceEvents::create(&CqEvents::create_thread(&context).unwrap()).unwrap();
    let mut reported = |handle| {
        let mut srq = ibv_srq {
            handle,
            ..ibv_srq::default()
        };
        let mut event = ibv_async_event::default();
        event.element.srq = &raw mut srq;
        report(&context, IBV_EVENT_SRQ_ERR, event);
        assert_eq!(event_type(block_on(events.next())), EventType::SRQ_ERR);
        channel.is_down()
    };
    assert!(
        ![before.handle(), after.handle()]
            .into_iter()
            .any(&mut reported)
    );
    assert!((before.handle()..after.handle()).any(&mut reported));
    let end = block_on(messages.next()).unwrap().end();
    assert_eq!(end, Some(DownReason::Event(EventType::SRQ_ERR)));
    assert!(block_on(messages.next()).is_none(), "none can join");
}

#[test]
fn fatal_device_event_ends_datagram_endpoints() {
    let _shared = share();
    let (context, ..) = ladder();
    let pd = context.alloc_pd().unwrap();
    let completions = CqEvents::create_thread(&context).unwrap();
    let create = || AsyncDatagrams::create(Datagrams::builder(&pd), &completions).unwrap();
    let [first, second] = [(); 2].map(|()| create());
    let mut cx = Context::from_waker(Waker::noop());
    let mut waits = [&first, &second].map(|datagrams| Box::pin(datagrams.receive_from()));
    for wait in &mut waits {
        assert!(wait.as_mut().poll(&mut cx).is_pending());
    }
    let [first_wait, second_wait] = waits;
    // Its queue pair, and then the device.
    report_qp(&context, IBV_EVENT_QP_FATAL, first.endpoint().qp_num());
    let reason = DownReason::Event(EventType::QP_FATAL);
    assert_eq!(
        block_on(first_wait).unwrap_err().down_reason(),
        Some(reason)
    );
    assert_eq!(second.down_reason(), None);
    report(&context, IBV_EVENT_DEVICE_FATAL, ibv_async_event::default());
    let reason = Some(DownReason::Event(EventType::DEVICE_FATAL));
    assert_eq!(block_on(second_wait).unwrap_err().down_reason(), reason);
    assert_eq!(create().down_reason(), reason);
}

#[test]
fn address_that_moves_is_looked_up_before_a_datagram_is_lost() {
    let _shared = share();
    let (context, ..) = ladder();
    with(|library| library.completes_sends = true);
    let pd = context.alloc_pd().unwrap();
    let completions = CqEvents::create_thread(&context).unwrap();
    let datagrams = AsyncDatagrams::create(Datagrams::builder(&pd), &completions).unwrap();
    let mut events = DeviceEvents::create(&CqEvents::create_thread(&context).unwrap()).unwrap();
    let peer = DatagramEndpoint::builder(0x77, QKey::MAX).gid(Gid::new([1; 16]));
    let peer = peer.build().unwrap();
    let mut send_from = |index| {
        let gids = [
            &["", "::ffff:10.0.0.1"][..],
            &["::ffff:10.0.0.1", "::ffff:10.0.0.2"],
        ];
        with(|library| library.ports[0].gids = Port::roce(gids[usize::from(index == 0)]).gids);
        report(&context, IBV_EVENT_GID_CHANGE, port_event());
        assert_eq!(event_type(block_on(events.next())), EventType::GID_CHANGE);
        let buffer = pd.reg_mr(vec![1_u8; 8]).unwrap();
        block_on(datagrams.send_to(&peer, buffer)).unwrap();
        block_on(datagrams.flush());
        with(|library| library.paths.last().unwrap().grh.sgid_index) == index
    };
    assert!([1, 0, 1].into_iter().all(&mut send_from));
    assert_eq!(datagrams.take_failed(), None);
}

#[test]
fn queue_overrun_ends_its_waiters() {
    let _shared = share();
    let (context, ..) = ladder();
    let completions = CqEvents::create_thread(&context).unwrap();
    let cqs = [(); 2].map(|()| AsyncCq::create(&completions, 16).unwrap());
    let events = DeviceEvents::create(&CqEvents::create_thread(&context).unwrap()).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let mut waits = cqs.each_ref().map(|cq| Box::pin(cq.poll_wr_id(1)));
    for (cq, wait) in cqs.iter().zip(&mut waits) {
        events.watch_cq(cq).unwrap();
        assert!(wait.as_mut().poll(&mut cx).is_pending());
    }
    let [broken, mut sound] = waits;
    let start = Instant::now();
    report_overrun(&context, cqs[0].cq().as_ptr());
    let error = block_on(broken).unwrap_err();
    let reason = DownReason::Event(EventType::CQ_ERR);
    assert_eq!(error.down_reason(), Some(reason));
    let layer = "async with `DeviceEvents`";
    faults::error(faults::OVERRUN, layer, &error, faults::at_once(start));
    assert!(sound.as_mut().poll(&mut cx).is_pending());
}

#[test]
fn untaken_events_are_kept_up_to_a_bound() {
    let _shared = share();
    let (context, ..) = ladder();
    let mut events = DeviceEvents::create(&CqEvents::create_thread(&context).unwrap()).unwrap();
    for _ in 0..80 {
        report(&context, IBV_EVENT_PORT_ACTIVE, port_event());
    }
    report(&context, IBV_EVENT_PORT_ERR, port_event());
    let start = Instant::now();
    while with(|library| library.async_acks) < 81 {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "no task takes them"
        );
        thread::yield_now();
    }
    let mut taken = 1;
    while event_type(block_on(events.next())) != EventType::PORT_ERR {
        taken += 1;
    }
    assert_eq!(taken, 64);
}

#[test]
fn queue_of_another_context_is_not_watched_and_that_is_an_error() {
    let _share = share();
    let (context, ..) = ladder();
    // The same device, opened again: its events go to the context that has the object.
    let other = context.device().open().unwrap();
    let completions = CqEvents::create_thread(&context).unwrap();
    let cq = AsyncCq::create(&completions, 4).unwrap();
    let watched = |context| {
        let events = CqEvents::create_thread(context).unwrap();
        DeviceEvents::create(&events).unwrap().watch_cq(&cq)
    };
    watched(&context).unwrap();
    let error = watched(&other).unwrap_err().to_string();
    assert!(
        error.starts_with("the completion queue belongs to another device"),
        "{error}"
    );
}

#[test]
fn context_has_one_stream_of_events_at_a_time() {
    let _share = share();
    let (context, ..) = ladder();
    let completions = CqEvents::create_thread(&context).unwrap();
    let (_group, ..) = waiting(&context);
    // Before there is a stream.
    report(&context, IBV_EVENT_PORT_ERR, port_event());
    let mut events = DeviceEvents::create(&completions).unwrap();
    assert_eq!(event_type(block_on(events.next())), EventType::PORT_ERR);
    drop(events);
    let mut events = DeviceEvents::create(&completions).unwrap();
    report(&context, IBV_EVENT_PORT_ACTIVE, port_event());
    assert_eq!(event_type(block_on(events.next())), EventType::PORT_ACTIVE);
}

/// The notifier that watches the device is of a runtime that ends, before or after the next group is made.
#[test]
#[cfg(feature = "tokio")]
fn group_is_watched_after_the_runtime_of_another_has_ended() {
    for ends_first in [false, true] {
        let _shared = share();
        let (context, ..) = ladder();
        let pd = context.alloc_pd().unwrap();
        let runtime = tokio_runtime();
        let entered = runtime.enter();
        let of_runtime = CqEvents::create_tokio(&context).unwrap();
        let ended =
            [(); 2].map(|()| AsyncGroup::new(Channel::builder(&pd), 1, &of_runtime).unwrap());
        drop(entered);
        let mut runtime = Some(runtime);
        if ends_first {
            drop(runtime.take());
        }
        let (group, _channels, operations) = waiting(&context);
        drop(runtime);
        for ended in ended {
            assert_eq!(ended.failure(), Some(DownReason::NotifierFailed));
        }
        assert_eq!(group.failure(), None);
        report(&context, IBV_EVENT_DEVICE_FATAL, ibv_async_event::default());
        for operation in operations {
            ended_by(operation, EventType::DEVICE_FATAL);
        }
    }
}
