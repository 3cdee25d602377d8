//! Options of connecting.

use std::time::Duration;

use crate::exchange::{ExchangeError, Side, check_private_data};

/// How to connect: the timeout, and the data for the peer.
///
/// A [`Duration`] alone is the timeout, with defaults for the rest:
///
/// ```
/// use std::time::Duration;
/// use verbs_channel::Connect;
///
/// let plain: Connect = Duration::from_secs(5).into();
/// let greeting = Connect::within(Duration::from_secs(5)).private_data(b"hello");
/// ```
#[derive(Clone, Debug)]
pub struct Connect {
    timeout: Duration,
    pub(super) private_data: Vec<u8>,
    pub(super) is_raw: bool,
    watches: bool,
    side: Side,
}

impl Connect {
    /// To connect within this time, from the call to a channel that can be used. In async code the time begins when
    /// the future is first polled.
    #[must_use]
    pub const fn within(timeout: Duration) -> Self {
        Self {
            timeout,
            private_data: Vec::new(),
            is_raw: false,
            watches: true,
            side: Side::Either,
        }
    }

    /// Sets the bytes that the peer is sent: the default is none.
    ///
    /// | | most bytes |
    /// |---|---|
    /// | over TCP | [`MAX_PRIVATE_DATA`](crate::exchange::MAX_PRIVATE_DATA) |
    /// | over datagrams | 185 with an MTU of 256, 441 with 512, 953 with 1024, and 1024 with a longer one |
    /// | by `rdma_cm` | 49 to the side that accepts, 189 to the one that connects; on iWARP 244 each |
    #[must_use]
    pub fn private_data(mut self, bytes: &[u8]) -> Self {
        self.private_data = bytes.to_vec();
        self.is_raw = false;
        self
    }

    /// Sets the bytes that a peer is sent which does not use this crate, in the messages of `rdma_cm`: up to 56
    /// to the side that accepts, 196 to the one that connects, and on iWARP 251 each.
    ///
    /// The peer's bytes are returned as they come, possibly followed by zeros. Over TCP and datagrams,
    /// where each peer uses this crate's protocol, it is the same as [`private_data`](Self::private_data).
    #[must_use]
    pub fn raw_private_data(mut self, bytes: &[u8]) -> Self {
        self.private_data = bytes.to_vec();
        self.is_raw = true;
        self
    }

    /// Sets whether the channel [watches its peer](crate::Channel::watch_peer) by the TCP connection of the
    /// exchange. The default is `true`.
    ///
    /// Without it, the TCP connection is the caller's alone, and the channel notices a peer's end only by
    /// requests that fail. A channel that was connected by `rdma_cm` watches its peer always, by that connection; over datagrams it never does.
    #[must_use]
    pub const fn watch_peer(mut self, watches: bool) -> Self {
        self.watches = watches;
        self
    }

    /// Sets whether this side connected or accepted the stream of an
    /// [`exchange`](crate::PreparedChannel::exchange). The default is [`Side::Either`]. It has no effect on
    /// [`connect`](crate::PreparedChannel::connect) and [`accept`](crate::PreparedChannel::accept).
    ///
    /// It matters on iWARP only, where one side listens and the other connects by `rdma_cm`. With
    /// [`Side::Accepts`], this side listens: it never connects to an address that the peer chose. At most
    /// one side may use it.
    #[must_use]
    pub const fn side(mut self, side: Side) -> Self {
        self.side = side;
        self
    }

    /// Checks the length of the private data, for TCP and datagrams: to be called before there is a peer.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::PrivateData`].
    #[doc(hidden)]
    pub const fn check(&self) -> Result<(), ExchangeError> {
        check_private_data(self.private_data.as_slice())
    }

    /// The bytes that the peer is sent.
    #[doc(hidden)]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.private_data
    }

    /// Whether the channel [watches its peer](Self::watch_peer).
    #[doc(hidden)]
    #[must_use]
    pub const fn watches_peer(&self) -> bool {
        self.watches
    }

    /// How this side came to the stream of an exchange: see [`side`](Self::side).
    #[doc(hidden)]
    #[must_use]
    pub const fn stream_side(&self) -> Side {
        self.side
    }

    /// The time within which the peers connect.
    #[doc(hidden)]
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }
}

/// Within ten seconds.
impl Default for Connect {
    fn default() -> Self {
        Self::within(Duration::from_secs(10))
    }
}

impl From<Duration> for Connect {
    fn from(timeout: Duration) -> Self {
        Self::within(timeout)
    }
}

impl From<&Self> for Connect {
    fn from(options: &Self) -> Self {
        options.clone()
    }
}
