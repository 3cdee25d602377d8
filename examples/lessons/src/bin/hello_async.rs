//! One message in async code: an operation is a future of its result and its buffer.
//!
//! The buffer moves into the operation and comes back with the outcome. So a future can be dropped
//! at any point: the channel keeps the buffer until the device is done with it. This lesson runs
//! in tokio; smol and other runtimes differ in one line, the one that makes `CqEvents`.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::time::Duration;

use tokio::time::timeout;
use verbs_async::verbs_channel::{BufferPool, Channel, verbs_core::Context};
use verbs_async::{AsyncGroup, CqEvents};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pd = Context::first_active()?.alloc_pd()?;
    // Completions are announced on a descriptor, which the runtime watches.
    let events = CqEvents::create_tokio(pd.context())?;
    // Channels are made in groups; this one is for two, the ends of a connection within a process.
    let group = AsyncGroup::new(Channel::builder(&pd), 2, &events)?;
    let (left, right) = group.loopback()?;

    // Registered memory in blocks of 4 KiB; a block that is dropped is free again.
    let pool = BufferPool::new(&pd, 4096, 2)?;
    // It waits until a block is free.
    let inbox = pool.take_when_free().await;
    // Only these bytes of the block are sent.
    let outbox = pool.take_when_free().await.filled(b"hello")?;

    // Both operations begin here, in this order, whether or not they are awaited.
    let receive = right.receive(inbox);
    let send = left.send(outbox);
    // An operation has no timer of its own: use the runtime's.
    let (sent, _outbox) = timeout(Duration::from_secs(5), send).await?;
    sent?;
    let (received, inbox) = timeout(Duration::from_secs(5), receive).await?;
    let message = received?.message_in(&inbox).ok_or("it is not a message")?;

    assert_eq!(message, b"hello");
    println!("received {:?}", String::from_utf8_lossy(message));
    // Waits until the device is done with everything; to drop a channel waits for nothing.
    left.close().await?;
    Ok(())
}
