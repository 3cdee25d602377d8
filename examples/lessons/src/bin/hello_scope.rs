//! Several operations in flight at once, on buffers that are borrowed: a scope.
//!
//! A scope has the shape of `std::thread::scope`. An operation posted in it borrows its buffers
//! until the scope ends, and the scope ends when the device is done with all of them, however the
//! closure ends: by returning, by an error, or by a panic.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::time::Duration;

use verbs_channel::{Channel, verbs_core::Context};

const MESSAGES: [&str; 3] = ["one", "fish", "swims"];
const SLOT: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Context::first_active()?.alloc_pd()?;
    let (mut left, mut right) = Channel::loopback(&pd)?;
    left.set_timeout(Duration::from_secs(5));
    right.set_timeout(Duration::from_secs(5));

    let outbox = pd.reg_mr(MESSAGES.concat().into_bytes())?;
    let mut inbox = pd.reg_mr(vec![0_u8; MESSAGES.len() * SLOT])?;

    let lengths = right.scope(|scope| {
        // Three receives at once, each into a part of `inbox` of its own.
        let mut receives = Vec::new();
        for part in inbox.scatter_element(..)?.chunks_mut(SLOT)? {
            receives.push(scope.post_receive(part)?);
        }

        // Three sends at once. Their handles are dropped: this scope waits for them at its end, and
        // it returns an error if one of them fails.
        left.scope(|scope| {
            let mut rest = outbox.gather_element(..)?;
            for message in MESSAGES {
                let (this, others) = rest.split_at(message.len())?;
                scope.post_send(this)?;
                rest = others;
            }
            Ok::<_, verbs_channel::Error>(())
        })?;

        // A handle gives the result of its operation, here the length of the message.
        let mut lengths = Vec::new();
        for receive in receives {
            lengths.push(receive.spin_poll()?.byte_len() as usize);
        }
        Ok::<_, verbs_channel::Error>(lengths)
    })?;

    // The scopes have ended, so the buffers are this program's again.
    for ((part, len), message) in inbox.chunks(SLOT).zip(lengths).zip(MESSAGES) {
        assert_eq!(&part[..len], message.as_bytes());
    }
    println!("received {} messages in one scope", MESSAGES.len());
    Ok(())
}
