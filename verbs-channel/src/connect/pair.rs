//! Two channels of this process, connected to each other by `rdma_cm`.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use verbs_core::rdmacm::{Connection, Connector, Listener, Message};

use super::manager::{failure, late};
use super::prepared::{Connected, PreparedChannel};
use super::tcp;
use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::exchange::rdmacm::{explain, hello, private_data};

/// How long the kernel waits for an address before it looks again: an answer on the way may be lost.
const AGAIN: Duration = Duration::from_secs(1);

impl<T: Connected> PreparedChannel<T> {
    /// Connects two channels of this process to each other by `rdma_cm`, within `timeout`: from an address
    /// of this one's device to one of the other's. Needs the feature `rdmacm`.
    ///
    /// The two devices may be the same, as in [`Channel::loopback`]. A
    /// connection ends when it is dropped: a channel keeps it if it [watches its
    /// peer](Channel::watch_connection) by it. The [prepared receives](Self::start_receive) are
    /// as for [`answered_cm`](Self::answered_cm).
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::NoLocalAddr`] if one of the devices has no address, otherwise as
    /// [`connect_cm`](Self::connect_cm).
    pub fn pair_cm<U: Connected>(
        self,
        other: PreparedChannel<U>,
        timeout: Duration,
    ) -> Result<((T, Connection), (U, Connection))> {
        let deadline = tcp::deadline(timeout);
        let left = || deadline.left().unwrap_or_default();
        let from = self.context().local_addr()?;
        let to = other.context().local_addr()?;
        let failed = |error| failure(Some(to), explain(error, timeout));
        let mut listener = Listener::bind(to, 1).map_err(failed)?;
        let to = listener.local_addr().unwrap_or(to);
        let mut connector = Connector::new().map_err(failed)?;
        // The address chooses the device.
        connector.bind(from).map_err(failed)?;
        let route = connector
            .resolve_addr(to, AGAIN.min(left()))
            .and_then(|resolving| resolving.wait(Some(left())))
            .and_then(|resolved| resolved.resolve_route(left()))
            .and_then(|resolving| resolving.wait(Some(left())))
            .map_err(failed)?;
        // So that no other program's request is taken for this one.
        let nonce = RandomState::new().hash_one(0_u8).to_ne_bytes();
        let (mut one, message) = (self, hello(&nonce)?);
        let asked = one.request_cm(route, &message)?;
        let request = loop {
            let request = listener.request(Some(left())).map_err(failed)?;
            let request = request.ok_or_else(|| late(Some(to), deadline, "connect"))?;
            if private_data(request.private_data()).is_ok_and(|theirs| theirs == nonce) {
                break request;
            }
        };
        let (other, accepting) = other.join_request_cm(request)?;
        let confirming = accepting.accept(Message::raw(&message)).map_err(failed)?;
        let answer = asked.wait(Some(left())).map_err(failed)?;
        let (one, establishing) = one.answered_cm(answer)?;
        let connection = establishing.establish().map_err(failed)?;
        let confirmed = confirming.wait(Some(left())).map_err(failed)?;
        Ok(((one, connection), (other, confirmed)))
    }
}

/// Connects two channels to each other, each of which watches the other.
pub(super) fn loopback(one: PreparedChannel, other: PreparedChannel) -> Result<(Channel, Channel)> {
    let (one, other) = one.pair_cm(other, PATIENCE)?;
    let [one, other] = [one, other].map(|(mut channel, connection)| {
        channel.watch_connection(connection)?;
        Ok::<_, Error>(channel)
    });
    Ok((one?, other?))
}

/// How long two channels of one process may take to connect.
const PATIENCE: Duration = Duration::from_secs(10);
