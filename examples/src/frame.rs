//! Messages over TCP: a length, then JSON, of a protocol with a name and a version.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Context as _, Failure, Peer};

/// The longest message; what claims to be longer is not of this protocol.
const MAX_LEN: usize = 1 << 20;

/// What each side says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    program: String,
    version: u32,
}

impl Hello {
    /// This program, and the version of its messages.
    #[must_use]
    pub fn new(program: &str, version: u32) -> Self {
        Self {
            program: program.to_owned(),
            version,
        }
    }
}

/// A peer that speaks in messages.
#[derive(Debug)]
pub struct Frames {
    peer: Peer,
}

impl Frames {
    /// Says hello, and hears one that must be the same.
    ///
    /// # Errors
    ///
    /// The peer is another program, or of another version, or silent.
    pub fn greet(peer: Peer, hello: &Hello) -> Result<Self, Failure> {
        let this = Self { peer };
        this.send(hello)?;
        let Hello { program, version } = hello;
        let theirs: Hello = this
            .receive()
            .context(|| format!("the peer does not say hello as {program} does"))?;
        if theirs != *hello {
            return Err(Failure::new(format!(
                "the peer is {} version {}, this is {program} version {version}",
                theirs.program, theirs.version
            )));
        }
        Ok(this)
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// The peer is gone, or takes nothing; or the message is too long.
    pub fn send(&self, message: &impl Serialize) -> Result<(), Failure> {
        let body = serde_json::to_vec(message)?;
        if body.len() > MAX_LEN {
            let len = body.len();
            return Err(Failure::new(format!(
                "a message of {len} bytes is too long"
            )));
        }
        let len = u32::try_from(body.len())?;
        self.peer.send(&[&len.to_be_bytes()[..], &body].concat())
    }

    /// Receives a message.
    ///
    /// # Errors
    ///
    /// The peer is gone, too slow, or sends something else.
    pub fn receive<M: DeserializeOwned>(&self) -> Result<M, Failure> {
        self.receive_within(self.peer.limit())
    }

    /// As [`receive`](Self::receive), with another limit.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive).
    pub fn receive_within<M: DeserializeOwned>(&self, limit: Duration) -> Result<M, Failure> {
        let mut len = [0; 4];
        self.peer.receive_within(&mut len, limit)?;
        let len = usize::try_from(u32::from_be_bytes(len))?;
        if len > MAX_LEN {
            return Err(Failure::new(
                "what came over TCP is no message of this program",
            ));
        }
        let mut body = vec![0; len];
        self.peer.receive(&mut body)?;
        serde_json::from_slice(&body).context(|| "what came over TCP is no message of this program")
    }

    /// The connection below.
    #[must_use]
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }
}
