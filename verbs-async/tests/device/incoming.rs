//! Incoming messages: none is lost, also when a task stops waiting.

use std::future::Future as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::StreamExt;
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::{BufferPool, Outgoing, OwnedBuffer, TransportError};
use verbs_async::{AsyncChannel, AsyncGroup, IncomingMessage, IncomingMessages};
use verbs_harness::begin;

use super::ends::{WAYS, Way, buffer, once_it_waits, pair, run};

struct Met {
    group: AsyncGroup,
    sender: AsyncChannel,
    receiver: Arc<AsyncChannel>,
    incoming: IncomingMessages,
}

/// A window of this many blocks of 16 bytes.
fn met(way: Way, depth: usize) -> Met {
    let (group, sender, receiver) = pair(way);
    let pool = BufferPool::new(group.pd(), 16, depth).unwrap();
    let incoming = receiver.into_incoming(std::iter::from_fn(|| pool.take()));
    let receiver = Arc::clone(incoming.channel());
    Met {
        group,
        sender,
        receiver,
        incoming,
    }
}

impl Met {
    async fn sends(&self, number: u32) {
        let bytes = buffer(self.group.pd(), &number.to_le_bytes());
        let (sent, _) = self
            .sender
            .run(Outgoing::send(bytes).immediate(number))
            .await;
        sent.unwrap();
    }

    async fn receives(&mut self, number: u32) -> IncomingMessage {
        let message = self.incoming.next().await.unwrap().unwrap();
        assert_eq!(&message[..], number.to_le_bytes());
        assert_eq!(message.success().imm_data(), Some(number));
        message
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_arrive_in_order_and_buffers_are_reused() {
    let _test = begin!(iwarp lacks "immediates");
    for way in WAYS {
        run(way, async move {
            let mut met = met(way, 3);
            for number in (0..60).step_by(3) {
                // No task waits for them yet.
                for number in number..number + 3 {
                    met.sends(number).await;
                }
                for number in number..number + 3 {
                    drop(met.receives(number).await);
                }
            }
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn cancelled_next_loses_no_message() {
    let _test = begin!(iwarp lacks "immediates");
    for way in WAYS {
        run(way, async move {
            let mut met = met(way, 2);
            for number in 0..50 {
                {
                    let mut next = pin!(met.incoming.next());
                    let mut cx = Context::from_waker(Waker::noop());
                    assert!(next.as_mut().poll(&mut cx).is_pending());
                }
                met.sends(number).await;
                drop(met.receives(number).await);
            }
        });
    }
}

/// A message that is dropped in another task makes room for the next at once, whether or not a task waits.
#[test]
#[ignore = "needs an RDMA device"]
fn dropped_message_posts_its_buffer_again() {
    let _test = begin!(iwarp lacks "immediates");
    for way in WAYS {
        run(way, async move {
            let mut met = met(way, 2);
            met.sends(1).await;
            met.sends(2).await;
            let (first, second) = (met.receives(1).await, met.receives(2).await);
            assert_eq!(met.receiver.credits(Queue::Receive), 64);
            drop(first);
            assert_eq!(met.receiver.credits(Queue::Receive), 63);
            met.sends(3).await;
            let first = met.receives(3).await;
            // No buffer is posted: it waits until a message is dropped, and then for the next.
            let pd = met.group.pd().clone();
            let sending = met
                .sender
                .run(Outgoing::send(buffer(&pd, &4_u32.to_le_bytes())).immediate(4));
            drop(once_it_waits(met.receives(4), || drop((first, second))).await);
            sending.await.0.unwrap();
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn message_buffer_can_be_replaced() {
    let _test = begin!(iwarp lacks "immediates");
    run(Way::Thread, async {
        let mut met = met(Way::Thread, 1);
        met.sends(7).await;
        let mut other = buffer(met.group.pd(), &[0; 32]);
        other.set_range(30..).unwrap();
        let kept: OwnedBuffer = met.receives(7).await.replace(other);
        assert_eq!(&kept[..], 7_u32.to_le_bytes());
        assert_eq!(kept.capacity(), 16);
        met.sends(8).await;
        let other = met.receives(8).await.replace(OwnedBuffer::empty());
        assert_eq!(other.capacity(), 32, "all of it was posted");
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn incoming_messages_end_after_a_failure() {
    let _test = begin!(iwarp lacks "immediates");
    for way in WAYS {
        run(way, async move {
            let mut met = met(way, 3);
            met.sends(1).await;
            let kept = met.receives(1).await;
            met.receiver.abort();
            let failed = met.incoming.next().await.unwrap().unwrap_err();
            assert!(!matches!(failed, TransportError::Rejected(_)), "{failed}");
            assert!(met.incoming.next().await.is_none());
            assert!(StreamExt::next(&mut met.incoming).await.is_none());
            drop(kept);
            assert!(met.incoming.next().await.is_none());
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_message_longer_than_its_buffer_is_a_failure() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    run(Way::Thread, async {
        let mut met = met(Way::Thread, 2);
        let long = buffer(met.group.pd(), &[1; 17]);
        let (sent, _) = met.sender.send(long).await;
        assert!(sent.is_err());
        assert!(met.incoming.next().await.unwrap().is_err());
        assert!(met.incoming.next().await.is_none());
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_outlive_the_window() {
    let _test = begin!(iwarp lacks "immediates");
    run(Way::Thread, async {
        let mut met = met(Way::Thread, 2);
        met.sends(1).await;
        let kept = met.receives(1).await;
        let Met {
            receiver, incoming, ..
        } = met;
        drop(incoming);
        // The receive that was abandoned is in flight; this buffer is not posted any more.
        assert_eq!(receiver.credits(Queue::Receive), 63);
        assert_eq!(&kept[..], 1_u32.to_le_bytes());
        drop(kept);
        assert_eq!(receiver.credits(Queue::Receive), 63);
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn without_buffers_there_are_no_messages() {
    let _test = begin!();
    run(Way::Thread, async {
        let mut met = met(Way::Thread, 1);
        let mut none = met.receiver.incoming(std::iter::empty::<OwnedBuffer>());
        assert!(none.next().await.is_none());
        let mut cx = Context::from_waker(Waker::noop());
        let next = Pin::new(&mut met.incoming).poll_next_unpin(&mut cx);
        assert!(matches!(next, Poll::Pending));
    });
}
