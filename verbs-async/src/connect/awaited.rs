//! The pending step of an exchange's peer, for the error at a deadline.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::task::sync::Mutex;

/// The pending step of a peer, and its address.
#[derive(Clone)]
#[cfg_attr(
    not(any(feature = "tokio", feature = "async-io", feature = "rdmacm")),
    expect(dead_code, reason = "without timers there are no deadlines")
)]
pub(super) struct Awaited {
    #[cfg(feature = "rdmacm")]
    peer: SocketAddr,
    now: Arc<Mutex<(SocketAddr, &'static str)>>,
}

#[cfg(any(feature = "tokio", feature = "async-io", feature = "rdmacm"))]
impl Awaited {
    pub(super) fn new(peer: SocketAddr, what: &'static str) -> Self {
        let now = Arc::new(Mutex::new((peer, what)));
        Self {
            #[cfg(feature = "rdmacm")]
            peer,
            now,
        }
    }

    /// From now on the peer is to do this; at this address if it is not its own.
    #[cfg(feature = "rdmacm")]
    pub(super) fn set(&self, what: &'static str, at: Option<SocketAddr>) {
        *self.now.lock() = (at.unwrap_or(self.peer), what);
    }

    pub(super) fn get(&self) -> (SocketAddr, &'static str) {
        *self.now.lock()
    }
}
