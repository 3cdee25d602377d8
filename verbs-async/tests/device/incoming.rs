//! Incoming messages: none is lost, also when a task stops waiting.

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use futures_util::StreamExt;
use verbs_async::verbs_channel::error::Queue;
use verbs_async::verbs_channel::{BufferPool, Outgoing, OwnedBuffer, TransportError};
use verbs_async::{AsyncChannel, AsyncGroup, IncomingMessage, IncomingMessages, Operation};
use verbs_harness::begin;

use super::ends::{WAYS, Way, buffer, once_it_waits, pair, run};

struct Met {
    group: AsyncGroup,
    sender: AsyncChannel,
    receiver: Arc<AsyncChannel>,
    incoming: IncomingMessages,
}

/// A window of two blocks of 16 bytes.
fn met(way: Way) -> Met {
    let (group, sender, receiver) = pair(way);
    let pool = BufferPool::new(group.pd(), 16, 2).unwrap();
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
    fn send(&self, number: u32) -> Operation {
        let bytes = buffer(self.group.pd(), &number.to_le_bytes());
        self.sender.run(Outgoing::send(bytes).immediate(number))
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
fn messages_arrive_in_order_and_their_buffers_are_posted_again() {
    let _test = begin!(iwarp lacks "immediates");
    for way in WAYS {
        run(way, async move {
            let mut met = met(way);
            for number in (0..60).step_by(2) {
                // A future that is dropped while it waits loses none.
                let polled =
                    pin!(met.incoming.next()).poll(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_pending());
                // No task waits for them yet.
                met.send(number).await.0.unwrap();
                met.send(number + 1).await.0.unwrap();
                drop(met.receives(number).await);
                drop(met.receives(number + 1).await);
            }
            met.send(1).await.0.unwrap();
            met.send(2).await.0.unwrap();
            let (first, second) = (met.receives(1).await, met.receives(2).await);
            assert_eq!(met.receiver.credits(Queue::Receive), 64);
            drop(first);
            assert_eq!(met.receiver.credits(Queue::Receive), 63);
            met.send(3).await.0.unwrap();
            let third = met.receives(3).await;
            // No buffer is posted: it waits until a message is dropped, and then for the next.
            let sending = met.send(4);
            let next = once_it_waits(met.receives(4), || drop((second, third))).await;
            sending.await.0.unwrap();
            let mut other = buffer(met.group.pd(), &[0; 32]);
            other.set_range(30..).unwrap();
            let kept: OwnedBuffer = next.replace(other);
            assert_eq!(&kept[..], 4_u32.to_le_bytes());
            for number in [5, 6] {
                met.send(number).await.0.unwrap();
            }
            let lengths = [met.receives(5).await, met.receives(6).await]
                .map(|message| message.replace(OwnedBuffer::empty()).capacity());
            assert_eq!(lengths, [16, 32], "all of it was posted");
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn incoming_messages_end_after_a_failure_and_messages_outlive_them() {
    let _test = begin!(iwarp lacks "immediates");
    for way in WAYS {
        run(way, async move {
            let mut met = met(way);
            met.send(1).await.0.unwrap();
            let kept = met.receives(1).await;
            met.receiver.abort();
            let failed = met.incoming.next().await.unwrap().unwrap_err();
            assert!(!matches!(failed, TransportError::Rejected(_)), "{failed}");
            assert!(met.incoming.next().await.is_none());
            assert!(StreamExt::next(&mut met.incoming).await.is_none());
            drop(met.incoming);
            assert_eq!(&kept[..], 1_u32.to_le_bytes());
            drop(kept);
            let mut none = met.receiver.incoming(std::iter::empty::<OwnedBuffer>());
            assert!(none.next().await.is_none());
        });
    }
}
