//! Device events by every notifier, without a device: those included that no software device sends.
//!
//! This program brings its own libibverbs, [`library`], as verbs-core's offline tests do.
#![cfg(test)]
#![expect(unsafe_code, reason = "shares a library that is C's")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the library's objects live as long as the test, which alone has them"
)]

#[path = "../../../verbs-core/tests/offline/library/mod.rs"]
#[expect(dead_code, unused_imports, reason = "verbs-core's tests use all of it")]
mod library;

use std::pin::pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use std::{future::Future, sync::Arc};

use futures_core::Stream as _;
use verbs_async::{DeviceEvents, Error, Result, verbs_channel};
use verbs_core::verbs_sys::{
    IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, ibv_async_event,
};
use verbs_core::{AsyncEvent, EventType};

use crate::library::{ladder, report, with};

struct Bell(Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // The test may be over.
        self.0.send(()).ok();
    }
}

fn bell() -> (Waker, Receiver<()>) {
    let (rings, heard) = mpsc::channel();
    (Waker::from(Arc::new(Bell(rings))), heard)
}

/// Sleeps until it is ready; the library knows this thread only. Fails if it is never woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let (waker, heard) = bell();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        heard
            .recv_timeout(Duration::from_secs(30))
            .expect("a wake-up");
    }
}

fn port_event() -> ibv_async_event {
    let mut event = ibv_async_event::default();
    event.element.port_num = 1;
    event
}

fn event_type(event: Option<Result<AsyncEvent>>) -> EventType {
    event.unwrap().unwrap().event_type()
}

fn events_come_in_order_and_end_with_the_device(
    create: fn(&verbs_core::Context) -> Result<DeviceEvents>,
) {
    let (context, ..) = ladder();
    let mut events = create(&context).unwrap();
    let (waker, heard) = bell();
    let mut cx = Context::from_waker(&waker);
    assert!(events.poll_next(&mut cx).is_pending());

    report(&context, IBV_EVENT_PORT_ERR, port_event());
    heard
        .recv_timeout(Duration::from_secs(30))
        .expect("a wake-up");
    report(&context, IBV_EVENT_PORT_ACTIVE, port_event());
    assert_eq!(event_type(block_on(events.next())), EventType::PORT_ERR);
    assert_eq!(event_type(block_on(events.next())), EventType::PORT_ACTIVE);

    // A future that is dropped takes nothing along.
    {
        let mut dropped = pin!(events.next());
        assert!(dropped.as_mut().poll(&mut cx).is_pending());
        report(&context, IBV_EVENT_DEVICE_FATAL, ibv_async_event::default());
    }
    assert_eq!(event_type(block_on(events.next())), EventType::DEVICE_FATAL);
    assert_eq!(with(|library| library.async_acks), 3);

    with(|library| library.refuse.push(("ibv_get_async_event", libc::EIO)));
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
    events_come_in_order_and_end_with_the_device(DeviceEvents::create_thread);
}

#[test]
#[cfg(feature = "async-io")]
fn by_async_io() {
    events_come_in_order_and_end_with_the_device(DeviceEvents::create_async_io);
}

#[test]
#[cfg(feature = "tokio")]
fn by_tokio() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_io()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    events_come_in_order_and_end_with_the_device(DeviceEvents::create_tokio);
}

#[test]
#[cfg(feature = "tokio")]
fn a_runtime_that_ends_ends_the_events() {
    let (context, ..) = ladder();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_io()
        .build()
        .unwrap();
    let mut events = {
        let _entered = runtime.enter();
        DeviceEvents::create_tokio(&context).unwrap()
    };
    drop(runtime);
    block_on(events.next()).unwrap().unwrap_err();
    assert!(block_on(events.next()).is_none());
}
