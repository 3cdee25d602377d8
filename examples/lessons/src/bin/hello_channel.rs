//! One message over a channel: a connected endpoint that needs no `unsafe`.
//!
//! A channel is a queue pair with its own completion queue. It keeps each buffer borrowed while the
//! device uses it, so a mistake that C's programs make is a compile error here.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::thread;
use std::time::Duration;

use verbs_channel::{Channel, verbs_core::Context};

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Context::first_active()?.alloc_pd()?;
    // Two ends in one process; `hello_two_hosts` connects two processes.
    let (mut left, mut right) = Channel::loopback(&pd)?;
    // Nothing waits for longer than this; without a timeout a channel waits until the peer is gone.
    left.set_timeout(Duration::from_secs(5));
    right.set_timeout(Duration::from_secs(5));

    let receiver = thread::spawn(move || receive(&mut right));
    // The device reads and writes registered memory only.
    let question = pd.reg_mr(b"how are you?".to_vec())?;
    // Waits until the message is in the peer's buffer.
    left.send(question.gather_element(..)?)?;

    let message = receiver
        .join()
        .map_err(|_panic| "the receiver panicked")??;
    assert_eq!(message, b"how are you?");
    println!("received {:?}", String::from_utf8_lossy(&message));
    Ok(())
}

fn receive(channel: &mut Channel) -> verbs_channel::Result<Vec<u8>> {
    let mut inbox = channel.pd().reg_mr(vec![0_u8; 64])?;
    // Posts a receive of up to 64 bytes, and waits for the message.
    let received = channel.receive(inbox.scatter_element(..)?)?;
    Ok(inbox[..received.byte_len() as usize].to_vec())
}
