//! Connecting by `rdma_cm`, each time with one deadline.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use verbs_core::rdmacm::{
    Accepting, Answer, ConnectRequest, Connection, Connector, Establishing, Listener, Message,
    Pending, PrivateData, RouteResolved,
};

use super::deadline::Deadline;
use super::prepared::{Connected, PreparedChannel};
use super::tcp;
use crate::error::{Error, Result};
use crate::exchange::rdmacm::{
    checked, explain, hello, is_port_taken, is_unresolved, private_data as of_hello, refused,
};
use crate::exchange::{ExchangeError, ExchangeFailure};

/// Connecting by `rdma_cm`. Needs the feature `rdmacm`.
///
/// These take the address of an RDMA device, such as its IP address on RoCE, instead of an address for TCP. The
/// peer is a program that uses this crate; with the methods that end in `_raw`, it is any other program. On
/// iWARP there is no other way to connect: [`connect`](Self::connect) and [`accept`](Self::accept) use it
/// there, too.
///
/// The address determines the device, and the channel must be of that device. `rdma_cm` chooses the GID, the
/// path and the packet sequence numbers, and the service level and the traffic class unless the builder has one
/// other than 0. The other settings are those of the builder, and the peer gets no access beyond
/// [`qp_access_flags`](crate::ChannelConfig::qp_access_flags).
///
/// On iWARP the side that connects must send first: a device may end the connection if the other does.
///
/// A channel watches its peer by the connection of `rdma_cm`: it goes down when the peer disconnects or its
/// process ends. `rdma_cm` does not notice that the peer's host has died: then only requests in flight
/// fail, after their retries. Ending the connection, when a channel goes down or is dropped, takes about
/// 10 ms on soft-RoCE, and up to 7 s on soft-iWARP.
impl<T: Connected> PreparedChannel<T> {
    /// Connects by `rdma_cm` to a peer that calls [`accept_cm`](Self::accept_cm), within `timeout`.
    ///
    /// While the peer does not listen yet, this tries again. A name is resolved first by the system's
    /// resolver, which has timeouts of its own.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::{Channel, verbs_core::Context};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let prepared = Channel::builder(&pd).build()?;
    /// let mut channel = prepared.connect_cm("192.0.2.1:7471", Duration::from_secs(10))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Exchange`]: the peer refused the connection (with its reason), did not answer in time, or
    /// uses another protocol; its address is that of [another
    /// device](ExchangeError::OtherDevice); or [a step of `rdma_cm`](ExchangeError::Manager) failed.
    #[doc(alias = "rdma_connect")]
    pub fn connect_cm(self, peer: impl ToSocketAddrs + fmt::Debug, timeout: Duration) -> Result<T> {
        let (connected, _) = self.connect_cm_with(peer, timeout, &[])?;
        Ok(connected)
    }

    /// [`connect_cm`](Self::connect_cm) with private data: up to 49 bytes to the peer, and up to 189 from
    /// it; on iWARP 244 each.
    ///
    /// Returns the channel and the peer's private data.
    ///
    /// # Errors
    ///
    /// As [`connect_cm`](Self::connect_cm), and [`ExchangeError::PrivateDataBeyondManager`].
    pub fn connect_cm_with(
        self,
        peer: impl ToSocketAddrs + fmt::Debug,
        timeout: Duration,
        private_data: &[u8],
    ) -> Result<(T, Vec<u8>)> {
        let deadline = Deadline::after(timeout);
        let met = self.reach(peer, deadline, &hello(private_data)?, of_hello);
        met.map(|(connected, _, private_data)| (connected, private_data))
    }

    /// [`connect_cm`](Self::connect_cm) to a program that does not use this crate, with the bytes of its
    /// own protocol: up to 56, or on iWARP 251.
    ///
    /// Returns the channel and the bytes of the peer, possibly followed by zeros.
    ///
    /// # Errors
    ///
    /// As [`connect_cm`](Self::connect_cm).
    pub fn connect_cm_raw(
        self,
        peer: impl ToSocketAddrs + fmt::Debug,
        timeout: Duration,
        private_data: &[u8],
    ) -> Result<(T, PrivateData)> {
        let deadline = Deadline::after(timeout);
        let met = self.reach(peer, deadline, private_data, |_| Ok(()));
        met.map(|(connected, private_data, ())| (connected, private_data))
    }

    /// Accepts the next peer that calls [`connect_cm`](Self::connect_cm), within `timeout`.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::Channel;
    /// use verbs_channel::verbs_core::{Context, rdmacm::Listener};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let mut listener = Listener::bind("0.0.0.0:7471".parse()?, 16)?;
    /// let prepared = Channel::builder(&pd).build()?;
    /// let mut channel = prepared.accept_cm(&mut listener, Duration::from_secs(60))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`connect_cm`](Self::connect_cm). A peer that uses another protocol is rejected.
    #[doc(alias = "rdma_accept")]
    pub fn accept_cm(self, listener: &mut Listener, timeout: Duration) -> Result<T> {
        let (connected, _) = self.accept_cm_with(listener, timeout, &[])?;
        Ok(connected)
    }

    /// [`accept_cm`](Self::accept_cm) with private data: up to 189 bytes to the peer, and up to 49 from
    /// it; on iWARP 244 each.
    ///
    /// Returns the channel and the peer's private data.
    ///
    /// # Errors
    ///
    /// As [`accept_cm`](Self::accept_cm), and [`ExchangeError::PrivateDataBeyondManager`].
    pub fn accept_cm_with(
        self,
        listener: &mut Listener,
        timeout: Duration,
        private_data: &[u8],
    ) -> Result<(T, Vec<u8>)> {
        let deadline = Deadline::after(timeout);
        let answer = hello(private_data)?;
        let request = next_request(listener, deadline)?;
        let peer = request.peer_addr();
        let (request, theirs) = checked(request).map_err(|error| failure(peer, error))?;
        Ok((self.accept_within(request, deadline, &answer)?, theirs))
    }

    /// Accepts a peer that does not use this crate, with the bytes of its own protocol: up to 196, or on
    /// iWARP 251.
    ///
    /// The request has [the peer's bytes](ConnectRequest::private_data) and its depths. Dropping it, or
    /// [`reject`](ConnectRequest::reject), rejects the peer.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use verbs_channel::{BufferPool, Channel};
    /// use verbs_channel::verbs_core::{Context, rdmacm::Listener};
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let pool = BufferPool::new(&pd, 4096, 16)?;
    /// let mut listener = Listener::bind("0.0.0.0:5640".parse()?, 16)?;
    /// while let Some(request) = listener.request(None)? {
    ///     println!("{:?} sends {:?}", request.peer_addr(), request.private_data().as_bytes());
    ///     let mut prepared = Channel::builder(&pd).build()?;
    ///     while let Some(block) = pool.take() {
    ///         prepared.start_receive(block)?;
    ///     }
    ///     let mut channel = prepared.accept_cm_raw(request, Duration::from_secs(5), b"")?;
    ///     // …
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`accept_cm`](Self::accept_cm).
    pub fn accept_cm_raw(
        self,
        request: ConnectRequest,
        timeout: Duration,
        private_data: &[u8],
    ) -> Result<T> {
        self.accept_within(request, Deadline::after(timeout), private_data)
    }

    /// Connects to the first of the peer's addresses that accepts. While one of them has no listener yet,
    /// all are tried again until the deadline.
    fn reach<P>(
        mut self,
        peer: impl ToSocketAddrs + fmt::Debug,
        deadline: Deadline,
        request: &[u8],
        parse: impl FnOnce(&PrivateData) -> Result<P, ExchangeError>,
    ) -> Result<(T, PrivateData, P)> {
        let ask = |address, share| {
            let until = deadline.sooner(share);
            let new = || match Connector::new() {
                Ok(connector) => Ok((connector, address)),
                Err(error) => Err(explain(error, Duration::ZERO)),
            };
            let asked = self.ask(new, (until, share), request)?;
            answered(asked, until)
        };
        let (answer, address) = first_of(peer, deadline, ask)?;
        let theirs = *answer.private_data();
        // Before the peer can send: dropping the answer ends the connection.
        let parsed = parse(&theirs).map_err(|error| failure(Some(address), error))?;
        let (mut connected, connection) = self.establish(answer, address, deadline)?;
        connected.watch_connection(connection)?;
        Ok((connected, theirs, parsed))
    }

    /// Asks at one address for a connection, from new connectors. The steps before take until `until` at
    /// most, and look for the address again and again after `again`.
    pub(super) fn ask(
        &mut self,
        connector: impl Fn() -> Result<(Connector, SocketAddr), ExchangeError>,
        (until, again): (Deadline, Duration),
        request: &[u8],
    ) -> Result<Pending<Answer>, ExchangeError> {
        let timeout = until.timeout();
        let left = || until.left().unwrap_or_default();
        let resolved = loop {
            let (connector, address) = connector()?;
            let resolved = connector
                .resolve_addr(address, again.min(left()))
                .and_then(|resolving| resolving.wait(Some(left())));
            match resolved {
                Err(error) if is_unresolved(&error) && until.left().is_some() => {}
                resolved => break resolved,
            }
        };
        let route = resolved
            .and_then(|resolved| resolved.resolve_route(left()))
            .and_then(|resolving| resolving.wait(Some(left())));
        let route = route.map_err(|error| explain(error, timeout))?;
        let asked = self.request_cm_from_any_port(route, request, left());
        asked.map_err(|error| until.explain(error))
    }

    /// Connects to a peer that has accepted.
    pub(super) fn establish(
        self,
        answer: Answer,
        peer: SocketAddr,
        deadline: Deadline,
    ) -> Result<(T, Connection)> {
        let (connected, establishing) = self.answered_cm(answer)?;
        let established = establishing.establish();
        let failed = |error| failure(Some(peer), explain(error, deadline.timeout()));
        Ok((connected, established.map_err(failed)?))
    }

    fn accept_within(
        self,
        request: ConnectRequest,
        deadline: Deadline,
        answer: &[u8],
    ) -> Result<T> {
        let (mut connected, connection) = self.admit(request, deadline, answer)?;
        connected.watch_connection(connection)?;
        Ok(connected)
    }

    /// Connects to a peer that asks.
    pub(super) fn admit(
        self,
        request: ConnectRequest,
        deadline: Deadline,
        answer: &[u8],
    ) -> Result<(T, Connection)> {
        let peer = request.peer_addr();
        let (connected, accepting) = self.join_request_cm(request)?;
        let left = deadline.left().unwrap_or_default();
        let accepted = accepting.accept(Message::raw(answer));
        let connection = accepted.and_then(|confirming| confirming.wait(Some(left)));
        let failed = |error| failure(peer, explain(error, deadline.timeout()));
        Ok((connected, connection.map_err(failed)?))
    }
}

/// Waits until the peer has accepted.
pub(super) fn answered(asked: Pending<Answer>, until: Deadline) -> Result<Answer, ExchangeError> {
    let answer = asked.wait(Some(until.left().unwrap_or_default()));
    answer.map_err(|error| until.explain(explain(error, until.timeout())))
}

/// Connecting by `rdma_cm` in steps, for a layer that waits in its own way. Needs the feature `rdmacm`.
///
/// Every step that has an identifier of `rdma_cm` may block when it is dropped, or fails.
impl<T: Connected> PreparedChannel<T> {
    /// Asks the peer at the end of a route for a connection, with these private data. For a peer that uses
    /// this crate they are a [hello](crate::exchange::rdmacm::hello).
    ///
    /// # Errors
    ///
    /// [`ExchangeError::OtherDevice`] if the route is of another device, and
    /// [as explained](explain).
    pub fn request_cm(
        &mut self,
        route: RouteResolved,
        private_data: &[u8],
    ) -> Result<Pending<Answer>, ExchangeError> {
        self.check_device(&route.device_name())?;
        let asked = route.request(self.qp_mut(), Message::raw(private_data));
        asked.map_err(|error| explain(error, Duration::ZERO))
    }

    /// [`request_cm`](Self::request_cm) for a route from a port that the kernel has chosen. If that port is
    /// taken, it asks from others. It may block, for `timeout` at most beside the request itself.
    ///
    /// On iWARP the connection uses a port of TCP, but `rdma_cm` chooses one without regard to those in use: on
    /// soft-iWARP the request fails then. The other routes have none of the options that were set on the
    /// [`Connector`] of this one, such as [`set_tos`](Connector::set_tos).
    ///
    /// # Errors
    ///
    /// As [`request_cm`](Self::request_cm). If no other port is found in time, the last error, with `EADDRINUSE`.
    pub fn request_cm_from_any_port(
        &mut self,
        mut route: RouteResolved,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<Pending<Answer>, ExchangeError> {
        let deadline = Deadline::after(timeout);
        let (local, peer) = (route.local_addr(), route.peer_addr());
        for _ in 1..TRIES {
            match (self.request_cm(route, private_data), local, peer) {
                (Err(error), Some(local), Some(peer)) if is_port_taken(&error) => {
                    let left = deadline.left().unwrap_or_default();
                    let Ok(another) = route_from_any_port(local, peer, left) else {
                        return Err(error);
                    };
                    route = another;
                }
                (asked, ..) => return asked,
            }
        }
        self.request_cm(route, private_data)
    }

    /// Connects to a peer that has accepted. It may send once the connection is
    /// [established](Establishing::establish).
    ///
    /// The [prepared receives](Self::start_receive) of a channel that is in no group have been posted.
    /// Those of a group's channel are when it [joins](crate::ChannelGroup::join).
    ///
    /// # Errors
    ///
    /// Those of [`Answer::connect`]; [`Error::Rejected`] if the driver rejects a prepared receive. The
    /// connection ends.
    pub fn answered_cm(self, answer: Answer) -> Result<(T, Establishing)> {
        let (qp, rest, receives) = self.into_parts();
        let (qp, establishing) = answer.connect(qp)?;
        Ok((T::assemble(qp, rest, receives)?, establishing))
    }

    /// Connects to a peer that asks for a connection. It may send once it is
    /// [accepted](Accepting::accept). The receives are as for [`answered_cm`](Self::answered_cm).
    ///
    /// # Errors
    ///
    /// [`ExchangeError::OtherDevice`], which the peer is sent; those of [`ConnectRequest::connect`];
    /// [`Error::Rejected`] if the driver rejects a prepared receive. The peer is rejected.
    pub fn join_request_cm(self, request: ConnectRequest) -> Result<(T, Accepting)> {
        let peer = request.peer_addr();
        if let Err(error) = self.check_device(&request.device_name()) {
            // Best effort: this side's own error is the one to return.
            drop(request.reject(Message::raw(&refused(&error))));
            return Err(failure(peer, error));
        }
        let (qp, rest, receives) = self.into_parts();
        let joined = request.connect(qp);
        let explain = |error| failure(peer, explain(error, Duration::ZERO));
        let (qp, accepting) = joined.map_err(explain)?;
        match T::assemble(qp, rest, receives) {
            Ok(connected) => Ok((connected, accepting)),
            Err(error) => {
                // Best effort, as above.
                drop(accepting.reject(Message::raw(&refused(&error))));
                Err(error)
            }
        }
    }

    /// The address decides on the device.
    fn check_device(&self, needed: &str) -> Result<(), ExchangeError> {
        let ours = self.context().device().name();
        if ours == needed {
            return Ok(());
        }
        Err(ExchangeError::OtherDevice {
            needed: needed.to_owned(),
            ours: ours.to_owned(),
        })
    }
}

/// How many ports a request is tried from.
const TRIES: u32 = 8;

/// A route between the same addresses from another port.
fn route_from_any_port(
    mut local: SocketAddr,
    peer: SocketAddr,
    timeout: Duration,
) -> verbs_core::Result<RouteResolved> {
    let deadline = Deadline::after(timeout);
    let left = || deadline.left().unwrap_or_default();
    local.set_port(0);
    let mut connector = Connector::new()?;
    connector.bind(local)?;
    let resolved = connector.resolve_addr(peer, left())?.wait(Some(left()))?;
    resolved.resolve_route(left())?.wait(Some(left()))
}

/// The answer of the first of the peer's addresses that answers. While one of them has no listener
/// yet, all are tried again until the deadline. `ask` gets an address and its share of the time.
pub(super) fn first_of<T>(
    peer: impl ToSocketAddrs + fmt::Debug,
    deadline: Deadline,
    mut ask: impl FnMut(SocketAddr, Duration) -> Result<T, ExchangeError>,
) -> Result<(T, SocketAddr)> {
    let addresses = peer.to_socket_addrs();
    let addresses = addresses.map_err(|source| ExchangeError::Lookup {
        address: format!("{peer:?}"),
        source,
    })?;
    let addresses: Vec<_> = addresses.collect();
    let mut last = None;
    let mut was_refused = false;
    loop {
        let mut has_none = false;
        for (address, untried) in addresses.iter().zip((1..=addresses.len()).rev()) {
            let Some(left) = deadline.left() else {
                return Err(last.unwrap_or_else(|| late(Some(*address), deadline, "answer")));
            };
            // An address that does not answer leaves time for the others.
            let share = left / u32::try_from(untried).unwrap_or(u32::MAX);
            match ask(*address, share) {
                Ok(answer) => return Ok((answer, *address)),
                Err(ExchangeError::NotListening { source, .. }) => {
                    (has_none, was_refused) = (true, true);
                    let after = Some(deadline.timeout());
                    let error = ExchangeError::NotListening { after, source };
                    last = Some(failure(Some(*address), error));
                }
                // The refusal is more specific than the timeout of a retry.
                Err(ExchangeError::TimedOut { .. }) if was_refused => has_none = true,
                Err(error) => last = Some(failure(Some(*address), error)),
            }
        }
        match last.take() {
            None => return Err(ExchangeError::NoAddress.into()),
            Some(error) if !has_none => return Err(error),
            error => last = error,
        }
        thread::sleep(tcp::RETRY.min(deadline.left().unwrap_or_default()));
    }
}

fn next_request(listener: &mut Listener, deadline: Deadline) -> Result<ConnectRequest> {
    let request = listener.request(Some(deadline.left().unwrap_or_default()));
    let request = request.map_err(|error| explain(error, deadline.timeout()))?;
    request.ok_or_else(|| late(None, deadline, "connect"))
}

pub(super) fn late(peer: Option<SocketAddr>, deadline: Deadline, what: &'static str) -> Error {
    let after = Some(deadline.timeout());
    failure(peer, ExchangeError::TimedOut { what, after })
}

pub(super) fn failure(peer: Option<SocketAddr>, error: ExchangeError) -> Error {
    ExchangeFailure::new(peer, error).into()
}
