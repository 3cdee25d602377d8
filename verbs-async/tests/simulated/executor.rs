//! The calls of the driver that the executor's thread makes, as a driver may be slow in any of them.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Instant;
use std::{mem, thread};

use soft_verbs::Host;
use verbs_async::AsyncGroup;
use verbs_async::verbs_channel::verbs_core::AccessFlags;
use verbs_async::verbs_channel::{
    BufferPool, Channel, DownReason, Outgoing, OwnedBuffer, OwnedRequest, SharedMemory,
};

use super::{alone, device, watch_calls};

/// The verbs that this thread calls, but for those of the data path: posts, polls, and arming.
struct Calls(Arc<Mutex<BTreeSet<&'static str>>>);

impl Calls {
    fn new() -> Self {
        let (here, calls) = (thread::current().id(), Arc::default());
        let seen: Arc<Mutex<BTreeSet<_>>> = Arc::clone(&calls);
        watch_calls(move |verb| {
            let is_data_path = matches!(verb, "ibv_poll_cq" | "ibv_req_notify_cq");
            if thread::current().id() == here && !is_data_path {
                seen.lock().unwrap().insert(verb);
            }
        });
        Self(calls)
    }

    /// Those since the last call, without queries of the device.
    fn take(&self) -> Vec<&'static str> {
        let mut calls = mem::take(&mut *self.0.lock().unwrap());
        calls.retain(|verb| !verb.starts_with("ibv_query_"));
        calls.into_iter().collect()
    }
}

/// The table in the documentation of the crate.
#[test]
fn executor_calls_the_driver_where_the_documentation_says_so_and_nowhere_else() {
    alone(async || {
        let (pd, events) = device();
        let pool = BufferPool::new(&pd, 64, 16).unwrap();
        let calls = Calls::new();
        let group = AsyncGroup::new(Channel::builder(&pd), 2, &events).unwrap();
        assert_eq!(calls.take(), ["ibv_create_cq", "ibv_get_async_event"]);
        let prepared = group.prepare().unwrap();
        assert_eq!(calls.take(), ["ibv_create_qp", "ibv_modify_qp"]);
        drop(prepared);
        assert_eq!(calls.take(), ["ibv_destroy_qp"]);
        let (left, right) = group.loopback().unwrap();
        assert_eq!(calls.take(), ["ibv_create_qp", "ibv_modify_qp"]);

        let block = || pool.take().unwrap();
        let receives = [right.receive(block()), right.receive(block())];
        let batch = vec![Outgoing::send(block()).into()];
        left.batch(batch).await.0.unwrap();
        drop(left.send(block()));
        for receive in receives {
            receive.await.0.unwrap();
        }
        let waits = right.receive(block());
        right.abort();
        right.close().await.unwrap();
        waits.await.0.unwrap_err();
        left.close().await.ok();
        drop((left, right));
        assert_eq!(calls.take(), [""; 0]);

        let (left, right) = group.loopback().unwrap();
        let others = group.loopback().unwrap();
        assert_eq!(
            calls.take(),
            ["ibv_create_qp", "ibv_modify_qp", "ibv_resize_cq"]
        );
        drop(others);
        left.abort();
        assert_eq!(calls.take(), [""; 0]);
        let stream = right.into_stream().unwrap();
        assert_eq!(calls.take(), ["ibv_reg_mr"]);
        // The last owner of the pool and of the queue may be a helper thread.
        drop((stream, left, group));
        let last = calls.take().into_iter();
        last.for_each(|verb| assert!(["ibv_dereg_mr", "ibv_destroy_cq"].contains(&verb), "{verb}"));
    });
}

/// The driver may have forgotten that it was armed.
#[test]
fn queue_that_has_grown_is_armed_again() {
    alone(async || {
        let (pd, events) = device();
        let group = AsyncGroup::new(Channel::builder(&pd), 2, &events).unwrap();
        let (left, right) = group.loopback().unwrap();
        let block = || OwnedBuffer::from(pd.reg_mr(vec![0_u8; 8]).unwrap());
        let mut receive = pin!(right.receive(block()));
        let is_pending = poll_fn(|cx| Poll::Ready(receive.as_mut().poll(cx).is_pending()));
        assert!(is_pending.await, "it has armed the queue");
        let armed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&armed);
        watch_calls(move |verb| {
            count.fetch_add(usize::from(verb == "ibv_req_notify_cq"), Ordering::Relaxed);
        });
        let _others = group.loopback().unwrap();
        assert_eq!(armed.load(Ordering::Relaxed), 1);
        left.send(block()).await.0.unwrap();
        receive.await.0.unwrap();
    });
}

/// The table for leases, by windows and by registrations.
#[test]
fn leases_call_the_driver_where_the_documentation_says_so_and_nowhere_else() {
    alone(async || {
        let (pd, events) = device();
        let access = AccessFlags::MW_BIND | AccessFlags::LOCAL_WRITE;
        let memory = SharedMemory::register([&pd], vec![0_u8; 64], access).unwrap();
        let calls = Calls::new();
        for (windows, granted, ended) in [
            (8, None, "ibv_dealloc_mw"),
            (0, Some("ibv_reg_mr"), "ibv_dereg_mr"),
        ] {
            let builder = Channel::builder(&pd).lease_windows(windows);
            let group = AsyncGroup::new(builder, 8, &events).unwrap();
            assert_eq!(calls.take().contains(&"ibv_alloc_mw"), windows > 0);
            let (left, right) = group.loopback().unwrap();
            calls.take();
            let lease = async || {
                let slice = memory.slice(..).unwrap();
                let lease = left.lease(slice, AccessFlags::REMOTE_READ).await.unwrap();
                assert_eq!(calls.take(), Vec::from_iter(granted));
                lease
            };
            let revoked = lease().await;
            left.revoke(revoked).await.unwrap();
            // A window is kept.
            assert_eq!(calls.take(), Vec::from_iter(granted.map(|_| ended)));
            drop(lease().await);
            assert_eq!(calls.take(), [ended]);
            let mut transfer = right.transfer(1);
            transfer.lend(lease().await);
            transfer.add(right.id(), OwnedRequest::receive(OwnedBuffer::empty()));
            let late = transfer.finish_by(Instant::now(), tokio::time::sleep);
            late.await.unwrap_err();
            assert_eq!(calls.take(), [ended]);
            let kept = lease().await;
            left.abort();
            assert_eq!(calls.take(), [ended]);
            left.close().await.ok();
            drop((kept, transfer, right));
            assert_eq!(calls.take(), [""; 0]);
        }
    });
}

#[test]
fn lease_that_cannot_be_ended_takes_its_channel_down() {
    alone(async || {
        let (pd, events) = device();
        let access = AccessFlags::MW_BIND;
        let memory = SharedMemory::register([&pd], vec![0_u8; 64], access).unwrap();
        let builder = Channel::builder(&pd).lease_windows(8);
        let group = AsyncGroup::new(builder, 8, &events).unwrap();
        // The transfer is another group's.
        let others = AsyncGroup::new(Channel::builder(&pd), 2, &events).unwrap();
        let (other, _silent) = others.loopback().unwrap();
        for end in ["dropped", "revoked", "lent to a transfer"] {
            let (left, right) = group.loopback().unwrap();
            let slice = memory.slice(..).unwrap();
            let lease = left.lease(slice, AccessFlags::REMOTE_READ).await.unwrap();
            Host::current().refuse("ibv_dealloc_mw", libc::EBUSY);
            match end {
                "dropped" => drop(lease),
                // It rejects the request.
                "revoked" => drop(right.revoke(lease).await.unwrap_err()),
                _ => {
                    let mut transfer = other.transfer(1);
                    transfer.lend(lease);
                    transfer.add(other.id(), OwnedRequest::receive(OwnedBuffer::empty()));
                    let late = transfer.finish_by(Instant::now(), tokio::time::sleep);
                    assert!(late.await.unwrap_err().is_stuck());
                }
            }
            let reason = DownReason::Device(libc::EBUSY);
            assert_eq!(left.down_reason(), Some(reason), "{end}");
            assert_ne!(right.down_reason(), Some(reason), "{end}");
        }
    });
}
