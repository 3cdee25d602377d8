//! Messages between the sides over TCP, from the plan on: data, or why the sender has failed.

use std::time::Duration;

use programs::{Failure, Frames};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Sends a message.
pub(crate) fn send(frames: &Frames, message: &impl Serialize) -> Result<(), Failure> {
    frames.send(&Ok::<_, String>(message))
}

/// Sends the peer why this side has failed.
pub(crate) fn send_failure(frames: &Frames, why: &Failure) {
    // The peer may be gone.
    drop(frames.send(&Err::<(), _>(why.to_string())));
}

/// Receives a message. Fails if the peer has.
pub(crate) fn receive<M: DeserializeOwned>(frames: &Frames) -> Result<M, Failure> {
    receive_within(frames, frames.peer().limit())
}

/// As [`receive`], with another limit.
pub(crate) fn receive_within<M: DeserializeOwned>(
    frames: &Frames,
    limit: Duration,
) -> Result<M, Failure> {
    let message = frames.receive_within::<Result<M, String>>(limit)?;
    message.map_err(|why| Failure::new(format!("at the peer: {why}")))
}
