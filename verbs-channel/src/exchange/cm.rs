//! The private data of `rdma_cm`'s messages, and the errors of its steps.
//!
//! The connection manager does most of what an [`Exchange`](super::Exchange) does: its messages
//! carry the endpoints and the limits of both queue pairs, and its last one is `READY`. The rest is
//! in the private data of its messages. On RoCE and InfiniBand, private data arrives with zeros
//! behind it, so it has a length:
//!
//! ```text
//! request and answer:  VRBC, version (2 bytes), length (1), private data
//! rejection:           VRBC, version (2 bytes), length (1), a code (2), text (UTF-8)
//! ```
//!
//! | | request | answer | text of a rejection |
//! |---|---|---|---|
//! | RoCE, InfiniBand | 49 bytes | 189 | 139 |
//! | iWARP | 244 | 244 | 242 |

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use verbs_core::ProtectionDomain;
use verbs_core::path::{AddressHandle, DatagramEndpoint, QKey};
use verbs_core::rdmacm::{
    CmEventType, CmFailure, DatagramRequest, DatagramService, Message, MulticastGroup, Pending,
    PrivateData,
};

use super::error::{ExchangeError, RefusalCode};
use super::frame::{MAGIC, begins, reason, refusal};
use super::limits::VERSION;

/// Bytes before the private data.
const HEADER: usize = 7;

/// The most bytes that any message has room for.
const MAX_IWARP: usize = 251 - HEADER;

/// The private data of a request or an answer that carries these bytes.
///
/// # Errors
///
/// [`ExchangeError::PrivateDataBeyondManager`] for more than 244 bytes. Fewer fit on RoCE: the step that
/// sends them returns an error then, for [`explain`].
pub(crate) fn hello(private_data: &[u8]) -> Result<Vec<u8>, ExchangeError> {
    match private_data.len() {
        ..=MAX_IWARP => Ok(framed(private_data)),
        len => Err(ExchangeError::PrivateDataBeyondManager {
            len,
            max: MAX_IWARP,
        }),
    }
}

/// The data that a peer of this protocol has sent with its request or its answer.
///
/// # Errors
///
/// [`ExchangeError::NotOurs`], [`ExchangeError::Version`] or [`ExchangeError::TooLong`].
pub(crate) fn private_data(come: &PrivateData) -> Result<Vec<u8>, ExchangeError> {
    parsed(come.as_bytes()).map(<[u8]>::to_vec)
}

/// The private data of a rejection that carries the reason: the texts of an error and of its causes, as
/// far as they fit.
#[must_use]
pub(crate) fn refused(why: &(dyn Error + 'static)) -> Vec<u8> {
    framed(&reason(RefusalCode::HANDSHAKE, why, MAX_REASON))
}

/// The same for a stranger's request, at a listener for another peer.
#[must_use]
pub(crate) fn to_stranger() -> Vec<u8> {
    refused(&io::Error::other("this address is for another connection"))
}

/// A datagram endpoint and its port, for services and multicast groups of `rdma_cm`. Needs the feature `rdmacm`.
///
/// It is for a layer that waits in its own way: [`Datagrams`](crate::Datagrams) wait themselves.
#[derive(Clone, Debug)]
pub struct CmDatagrams {
    pd: ProtectionDomain,
    port_num: u8,
    endpoint: DatagramEndpoint,
}

impl CmDatagrams {
    /// For an endpoint of this domain and port.
    #[must_use]
    pub const fn new(pd: ProtectionDomain, port_num: u8, endpoint: DatagramEndpoint) -> Self {
        Self {
            pd,
            port_num,
            endpoint,
        }
    }

    /// The endpoint of a service, and the path to it from this port. Creating the address handle may block.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::OtherDevice`], also for another port; [`ExchangeError::Manager`].
    pub fn found(
        &self,
        service: &DatagramService,
    ) -> Result<(DatagramEndpoint, AddressHandle), ExchangeError> {
        self.check_port((service.device_name(), service.port_num()))?;
        let endpoint = service.endpoint().map_err(ExchangeError::Manager)?;
        let handle = self.pd.create_ah(&service.ah_attr());
        Ok((endpoint, handle.map_err(ExchangeError::Manager)?))
    }

    /// Answers a peer that looks for this endpoint. That may block.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::OtherKey`]; [`ExchangeError::OtherDevice`], also for another port, which the peer is sent;
    /// [as explained](Self::explain). The peer is rejected.
    pub fn answer(
        &self,
        request: DatagramRequest,
        message: Message<'_>,
    ) -> Result<(), ExchangeError> {
        self.check_key()?;
        let wanted = (request.device_name(), request.port_num());
        if let Err(error) = self.check_port(wanted) {
            let why = framed(&reason(RefusalCode::HANDSHAKE, &error, MAX_SERVICE_REASON));
            // Best effort: this side's own error is the one to return.
            drop(request.reject(Message::raw(&why)));
            return Err(error);
        }
        let accepted = request.accept_endpoint(&self.endpoint, message);
        accepted.map_err(|error| Self::explain(error, Duration::ZERO))
    }

    /// Begins to join a multicast group with the port that has the address `local`. It may block for a moment.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::OtherKey`], [`ExchangeError::Manager`].
    pub fn join(
        &self,
        local: IpAddr,
        group: IpAddr,
    ) -> Result<Pending<MulticastGroup>, ExchangeError> {
        self.check_key()?;
        MulticastGroup::join(local, group).map_err(ExchangeError::Manager)
    }

    /// The endpoint that stands for a group that was joined, and the path to it. Creating the address handle may
    /// block.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::OtherDevice`], also for another port; [`ExchangeError::Manager`].
    pub fn joined(
        &self,
        group: &MulticastGroup,
    ) -> Result<(DatagramEndpoint, AddressHandle), ExchangeError> {
        self.check_port((group.device_name(), group.port_num()))?;
        let handle = self.pd.create_ah(&group.ah_attr());
        Ok((group.endpoint(), handle.map_err(ExchangeError::Manager)?))
    }

    /// Explains an error of a step of a search with this timeout.
    #[must_use]
    pub fn explain(error: verbs_core::Error, timeout: Duration) -> ExchangeError {
        match error {
            // These messages have no header of this protocol.
            verbs_core::Error::Limit {
                what: "private_data",
                asked,
                max: Some(max),
            } => ExchangeError::PrivateDataBeyondManager {
                len: usize::try_from(asked).unwrap_or(usize::MAX),
                max: usize::try_from(max).unwrap_or(usize::MAX),
            },
            error => explain(error, timeout),
        }
    }

    fn check_key(&self) -> Result<(), ExchangeError> {
        match self.endpoint.qkey() {
            QKey::RDMA_UDP => Ok(()),
            _ => Err(ExchangeError::OtherKey),
        }
    }

    /// The address decides on the device and the port.
    fn check_port(&self, (device, port): (String, u8)) -> Result<(), ExchangeError> {
        let ours = self.pd.context().device().name().to_owned();
        let (needed, ours) = match (ours == device, port == self.port_num) {
            (true, true) => return Ok(()),
            (true, false) => (
                format!("{device}, port {port}"),
                format!("{ours}, port {}", self.port_num),
            ),
            (false, _) => (device, ours),
        };
        Err(ExchangeError::OtherDevice { needed, ours })
    }
}

/// Explains an error of a step of `rdma_cm`. `timeout` is that of the whole exchange.
#[must_use]
pub(crate) fn explain(error: verbs_core::Error, timeout: Duration) -> ExchangeError {
    let after = Some(timeout);
    match error {
        verbs_core::Error::TimedOut { .. } => {
            let what = "answer";
            ExchangeError::TimedOut { what, after }
        }
        error if has_not_answered(&error) => {
            let (what, after) = ("answer", None);
            ExchangeError::TimedOut { what, after }
        }
        verbs_core::Error::Limit {
            what: "private_data",
            asked,
            max: Some(max),
        } => ExchangeError::PrivateDataBeyondManager {
            len: beyond_header(asked),
            max: beyond_header(max),
        },
        verbs_core::Error::ConnectionManager { ref failure, .. } if is_rejection(failure) => {
            match parsed(failure.private_data().as_bytes()) {
                Ok(reason) => refusal(reason),
                Err(_) if is_not_listening(failure) => ExchangeError::NotListening {
                    after: None,
                    source: io::Error::new(
                        io::ErrorKind::ConnectionRefused,
                        "rdma_cm found no listener: does the server listen by rdma_cm, too?",
                    ),
                },
                Err(_) => ExchangeError::Manager(error),
            }
        }
        error => ExchangeError::Manager(error),
    }
}

/// Whether a step has failed because no answer had arrived when the kernel looked again for the address: it may
/// have been lost, and another try finds it.
#[must_use]
pub(crate) fn is_unresolved(error: &verbs_core::Error) -> bool {
    let verbs_core::Error::ConnectionManager { failure, .. } = error else {
        return false;
    };
    let timed_out = -rustix::io::Errno::TIMEDOUT.raw_os_error();
    failure.event() == CmEventType::ADDR_ERROR && failure.status() == timed_out
}

/// Whether a request has failed because its local port is taken.
pub(crate) fn is_port_taken(error: &ExchangeError) -> bool {
    let in_use = rustix::io::Errno::ADDRINUSE.raw_os_error();
    let ExchangeError::Manager(error) = error else {
        return false;
    };
    matches!(
        error,
        verbs_core::Error::Verb {
            verb: "rdma_connect",
            ..
        }
    ) && error.errno() == Some(in_use)
}

/// Whether the kernel has tried to reach the peer for as long as it does. On iWARP that is a call of its TCP,
/// or an event after it.
fn has_not_answered(error: &verbs_core::Error) -> bool {
    let timed_out = rustix::io::Errno::TIMEDOUT.raw_os_error();
    match error {
        verbs_core::Error::ConnectionManager { failure, .. } => {
            failure.event() == CmEventType::UNREACHABLE && failure.status() == -timed_out
        }
        verbs_core::Error::Verb { verb, .. } => {
            *verb == "rdma_connect" && error.errno() == Some(timed_out)
        }
        _ => false,
    }
}

fn is_rejection(failure: &CmFailure) -> bool {
    let is_of_a_service = matches!(
        (failure.event(), failure.status()),
        (CmEventType::UNREACHABLE, 1 | 2)
    );
    failure.event() == CmEventType::REJECTED || is_of_a_service
}

/// Compares the number of the InfiniBand specification, or the errno of iWARP.
fn is_not_listening(failure: &CmFailure) -> bool {
    match failure.event() {
        CmEventType::UNREACHABLE => failure.status() == 1,
        _ => matches!(failure.status().unsigned_abs(), 8 | 111),
    }
}

fn beyond_header(len: u64) -> usize {
    usize::try_from(len)
        .unwrap_or(usize::MAX)
        .saturating_sub(HEADER)
}

/// The longest reason that a rejection on RoCE has room for.
const MAX_REASON: usize = 148 - HEADER;

/// The same of a datagram service.
const MAX_SERVICE_REASON: usize = 136 - HEADER;

fn framed(payload: &[u8]) -> Vec<u8> {
    let len = u8::try_from(payload.len()).unwrap_or(u8::MAX);
    [&MAGIC[..], &VERSION.to_be_bytes(), &[len], payload].concat()
}

fn parsed(bytes: &[u8]) -> Result<&[u8], ExchangeError> {
    begins(bytes)?;
    let Some(([m0, m1, m2, m3, v0, v1, len], rest)) = bytes.split_first_chunk::<HEADER>() else {
        let mut first = [0; 4];
        first
            .iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        return Err(ExchangeError::NotOurs(first));
    };
    if [*m0, *m1, *m2, *m3] != MAGIC {
        return Err(ExchangeError::NotOurs([*m0, *m1, *m2, *m3]));
    }
    let version = u16::from_be_bytes([*v0, *v1]);
    if version != VERSION {
        return Err(ExchangeError::Version(version));
    }
    let len = usize::from(*len);
    let max = rest.len();
    rest.get(..len).ok_or(ExchangeError::TooLong { len, max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_survives_the_zeros_behind_it() {
        for data in [&b""[..], b"x", b"zeros\0\0", &[7; 49]] {
            let mut sent = hello(data).unwrap();
            assert_eq!(sent.len(), data.len() + HEADER);
            sent.resize(196, 0);
            assert_eq!(parsed(&sent).unwrap(), data);
        }
        assert!(hello(&[0; 244]).is_ok());
        let error = hello(&[0; 245]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "245 bytes of private data; at most 244 fit into a message of rdma_cm to the peer"
        );
    }

    #[test]
    fn bytes_of_other_programs_and_versions_are_errors() {
        let ours = hello(b"data").unwrap();
        for len in 0..ours.len() {
            assert!(parsed(&ours[..len]).is_err(), "{len}");
        }
        let parsed = |bytes: &[u8]| parsed(bytes).unwrap_err();
        assert!(matches!(
            parsed(&[0; 56]),
            ExchangeError::NotOurs([0, 0, 0, 0])
        ));
        let mut newer = ours;
        newer[5] = 9;
        assert!(matches!(parsed(&newer), ExchangeError::Version(9)));
    }

    #[test]
    fn longest_reason_fits_a_rejection_on_roce() {
        let sent = refused(&io::Error::other("x".repeat(1000)));
        assert_eq!(sent.len(), 148);
        let refusal = refusal(parsed(&sent).unwrap());
        let text = format!("the peer refused the connection: {:?}", "x".repeat(139));
        assert_eq!(refusal.to_string(), text);
    }

    #[test]
    fn limit_of_a_message_is_that_of_the_private_data() {
        let limit = verbs_core::Error::Limit {
            what: "private_data",
            asked: 57,
            max: Some(56),
        };
        let error = explain(limit, Duration::ZERO);
        assert!(
            matches!(
                error,
                ExchangeError::PrivateDataBeyondManager { len: 50, max: 49 }
            ),
            "{error:?}"
        );
    }
}
