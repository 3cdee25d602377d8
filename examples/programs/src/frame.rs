//! Messages over TCP: a length, then JSON, of a protocol with a name and a version.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Context as _, Failure, Peer};

/// The longest message: a longer one is not of this protocol.
const MAX_LEN: usize = 1 << 20;

/// The first message of each side.
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

    /// Compares it to the peer's.
    ///
    /// # Errors
    ///
    /// The peer is another program, or of another version.
    pub fn meet(&self, theirs: &Self) -> Result<(), Failure> {
        if theirs == self {
            return Ok(());
        }
        let Self { program, version } = self;
        Err(Failure::new(format!(
            "the peer is {:?} version {}, this is {program} version {version}",
            theirs.program, theirs.version
        )))
    }
}

/// A connection that carries messages.
#[derive(Debug)]
pub struct Frames {
    peer: Peer,
}

impl Frames {
    /// Sends a hello, and receives one that must be the same.
    ///
    /// # Errors
    ///
    /// The peer is another program, or of another version, or silent.
    pub fn greet(peer: Peer, hello: &Hello) -> Result<Self, Failure> {
        let this = Self { peer };
        this.send(hello)?;
        let program = &hello.program;
        let theirs: Hello = this
            .receive()
            .context(|| format!("the peer does not say hello as {program} does"))?;
        hello.meet(&theirs)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Listener;
    use std::io::Write as _;
    use std::net::TcpStream;

    const SHORT: Duration = Duration::from_millis(200);

    fn hello(version: u32) -> Hello {
        Hello::new("try", version)
    }

    /// The result of a greeting when the peer sends these bytes first.
    fn greeted(bytes: &[u8]) -> Result<Frames, Failure> {
        let listener = Listener::bind(0).unwrap();
        let mut other = TcpStream::connect(("127.0.0.1", listener.port())).unwrap();
        other.write_all(bytes).unwrap();
        Frames::greet(listener.accept(SHORT, SHORT).unwrap(), &hello(1))
    }

    fn framed(message: &impl Serialize) -> Vec<u8> {
        let body = serde_json::to_vec(message).unwrap();
        let len = u32::try_from(body.len()).unwrap();
        [&len.to_be_bytes()[..], &body].concat()
    }

    #[test]
    fn messages_arrive_after_the_same_hello() {
        let bytes = [framed(&hello(1)), framed(&vec![1_u64, 2])].concat();
        let frames = greeted(&bytes).unwrap();
        assert_eq!(frames.receive::<Vec<u64>>().unwrap(), [1, 2]);
    }

    #[test]
    fn another_program_or_version_is_named() {
        let error = greeted(&framed(&hello(2))).unwrap_err().to_string();
        assert_eq!(
            error,
            "the peer is \"try\" version 2, this is try version 1"
        );
        let other = greeted(&framed(&Hello::new("other", 1))).unwrap_err();
        assert!(
            other
                .to_string()
                .starts_with("the peer is \"other\" version 1")
        );
    }

    #[test]
    fn garbage_silence_and_wrong_lengths_are_errors() {
        let refused = |bytes: &[u8]| greeted(bytes).unwrap_err().to_string();
        let http = refused(b"GET / HTTP/1.1\r\n\r\n");
        assert!(http.contains("no message of this program"), "{http}");
        let no_json = refused(b"\0\0\0\x04{]}[");
        assert!(no_json.contains("no message of this program"), "{no_json}");
        let other_json = refused(&framed(&"hello"));
        assert!(other_json.contains("does not say hello"), "{other_json}");
        // Nothing more comes than a length.
        assert!(refused(b"\0\0\0\x40").contains("0 of 64 bytes"));
        assert!(refused(b"").contains("0 of 4 bytes"));
    }

    #[test]
    fn a_message_that_is_too_long_is_not_sent() {
        let frames = greeted(&framed(&hello(1))).unwrap();
        let long = "x".repeat(MAX_LEN);
        let error = frames.send(&long).unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
    }
}
