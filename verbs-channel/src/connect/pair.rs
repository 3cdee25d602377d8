//! Two channels of this process, connected to each other by `rdma_cm`.

use std::os::fd::AsFd as _;
use std::time::Duration;

use verbs_core::rdmacm::{Connection, Connector, Listener, Message, PrivateData};

use super::deadline::Deadline;
use super::manager::{answered, failure};
use super::meeting::{AGAIN, next_of, wait_readable};
use super::prepared::{Connected, PreparedChannel};
use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::exchange::rdmacm::{explain, hello, private_data};

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
        let deadline = Deadline::after(timeout);
        let from = self.context().local_addr()?;
        let to = other.context().local_addr()?;
        let failed = |error| failure(Some(to), explain(error, timeout));
        let mut listener = Listener::bind(to, 1).map_err(failed)?;
        let to = listener.local_addr().unwrap_or(to);
        let failed = |error| failure(Some(to), error);
        let explained = |error| failed(explain(error, timeout));
        // The address chooses the device.
        let connector = || {
            let mut connector = Connector::new()?;
            connector.bind(from)?;
            Ok::<_, verbs_core::Error>((connector, to))
        };
        let connector = || connector().map_err(|error| explain(error, timeout));
        // So that no other program's request is taken for this one.
        let nonce = verbs_core::random().to_ne_bytes();
        let (mut one, message) = (self, hello(&nonce)?);
        let asked = one.ask(connector, (deadline, AGAIN), &message);
        let asked = asked.map_err(failed)?;
        let is_ours = |come: &PrivateData| private_data(come).is_ok_and(|theirs| theirs == nonce);
        let request = loop {
            if let Some(request) = next_of(&mut listener, is_ours).map_err(explained)? {
                break request;
            }
            wait_readable([Some(listener.as_fd()), None], deadline).map_err(failed)?;
        };
        let (other, accepting) = other.join_request_cm(request)?;
        let confirming = accepting
            .accept(Message::raw(&message))
            .map_err(explained)?;
        let answer = answered(asked, deadline).map_err(failed)?;
        let (one, connection) = one.establish(answer, to, deadline)?;
        let left = deadline.left().unwrap_or_default();
        let confirmed = confirming.wait(Some(left)).map_err(explained)?;
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
