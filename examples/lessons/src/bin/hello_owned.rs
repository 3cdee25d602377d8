//! Buffers that are given away and come back with the outcome: owned buffers and tickets.
//!
//! A borrowed buffer ties an operation to a function. An owned buffer moves into the channel, and a
//! ticket names the operation, so it can outlive the function that started it. Outcomes are taken
//! in any order: by ticket, or as they come.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::time::Duration;

use verbs_channel::{BufferPool, Channel, verbs_core::Context};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));
const WORDS: [&str; 3] = ["apple", "fig", "pear"];

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Context::first_active()?.alloc_pd()?;
    let (mut left, mut right) = Channel::loopback(&pd)?;
    // One registration for all buffers. A block that is dropped, on any thread, is free again.
    let pool = BufferPool::new(&pd, 64, 2 * WORDS.len())?;

    let mut receives = Vec::new();
    for _ in WORDS {
        let block = pool.take().ok_or("the pool is empty")?;
        receives.push(right.start_receive(block)?);
    }
    for word in WORDS {
        // Only these bytes of the block are sent.
        let buffer = pool.take_with(word.as_bytes())?;
        let buffer = buffer.ok_or("the pool is empty")?;
        // The ticket is not needed: `wait_completed` finds what has completed.
        left.start_send(buffer)?;
    }

    // As they come. A completed operation returns its buffer, whether or not it succeeded.
    for _ in WORDS {
        let completed = left.wait_completed(TIMEOUT).ok_or("no send completed")?;
        completed.result?;
    }
    // Wait by ticket, here in the reverse order.
    for (ticket, word) in receives.into_iter().zip(WORDS).rev() {
        let completed = right.wait(ticket, TIMEOUT)?.ok_or("no message came")?;
        completed.result?;
        assert_eq!(completed.message(), Some(word.as_bytes()));
        println!("received {word:?}");
    }
    assert_eq!(pool.available(), pool.capacity());
    println!("all {} buffers are back in the pool", pool.capacity());
    Ok(())
}
