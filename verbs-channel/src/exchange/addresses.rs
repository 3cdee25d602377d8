//! The addresses at which two sides that have met over a stream connect by `rdma_cm`.

use std::net::SocketAddr;
use std::time::Duration;

use verbs_core::Context;
use verbs_core::rdmacm::{Connector, Listener};

use super::cm::explain;
use super::error::ExchangeError;

/// A listener for the peer at the other end of a stream: at the stream's own address if that is one of this
/// device, otherwise at the device's first. The port is any free one.
///
/// # Errors
///
/// [`ExchangeError::Manager`], with [`NoLocalAddr`](verbs_core::Error::NoLocalAddr) if the device has no
/// address.
pub(crate) fn listener(
    context: &Context,
    stream: Option<SocketAddr>,
) -> Result<Listener, ExchangeError> {
    let explain = |error| explain(error, Duration::ZERO);
    let at = listens_at(&context.local_addrs().map_err(explain)?, stream);
    let at = match at {
        Some(at) => at,
        // Its error has the reason.
        None => context.local_addr().map_err(explain)?,
    };
    Listener::bind(at, BACKLOG).map_err(explain)
}

/// A connector to the peer's listener, from an address of this device, and the address to connect to.
///
/// That is the listener's, on the link of this side's address if it is link-local.
///
/// # Errors
///
/// [`ExchangeError::Manager`].
pub(crate) fn connector(
    context: &Context,
    stream: Option<SocketAddr>,
    mut listener: SocketAddr,
) -> Result<(Connector, SocketAddr), ExchangeError> {
    let explain = |error| explain(error, Duration::ZERO);
    let from = context.local_addrs().map_err(explain)?;
    let mut connector = Connector::new().map_err(explain)?;
    // Without an address of the same family the route decides, and whether it is of this device is checked.
    if let Some(from) = connects_from(&from, stream, &listener) {
        connector.bind(from).map_err(explain)?;
        if let (SocketAddr::V6(to), SocketAddr::V6(from)) = (&mut listener, from) {
            to.set_scope_id(from.scope_id());
        }
    }
    Ok((connector, listener))
}

/// Requests that may wait: strangers may ask before the peer does.
const BACKLOG: u16 = 16;

/// The one of the device's addresses to listen at.
fn listens_at(device: &[SocketAddr], stream: Option<SocketAddr>) -> Option<SocketAddr> {
    of_stream(device, stream).or_else(|| device.first().copied())
}

/// The one of the device's addresses to connect from.
fn connects_from(
    device: &[SocketAddr],
    stream: Option<SocketAddr>,
    to: &SocketAddr,
) -> Option<SocketAddr> {
    let same: Vec<_> = device
        .iter()
        .filter(|from| from.is_ipv4() == to.is_ipv4())
        .copied()
        .collect();
    let is_local = |addr: &SocketAddr| matches!(addr, SocketAddr::V6(addr) if addr.ip().is_unicast_link_local());
    of_stream(&same, stream)
        .filter(|from| is_local(from) == is_local(to))
        .or_else(|| {
            same.iter()
                .find(|from| is_local(from) == is_local(to))
                .copied()
        })
        .or_else(|| same.first().copied())
}

/// The stream's address, if it is one of these.
fn of_stream(device: &[SocketAddr], stream: Option<SocketAddr>) -> Option<SocketAddr> {
    let ip = stream?.ip().to_canonical();
    device.iter().find(|addr| addr.ip() == ip).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Those of a device, in the order of `Context::local_addrs`.
    fn device() -> [SocketAddr; 4] {
        [
            "10.0.0.1:0",
            "10.1.0.1:0",
            "[2001:db8::1]:0",
            "[fe80::1%3]:0",
        ]
        .map(addr)
    }

    #[test]
    fn listens_at_the_address_of_the_stream_or_at_the_first() {
        for (stream, expected) in [
            ("10.1.0.1:7471", "10.1.0.1:0"),
            ("[::ffff:10.1.0.1]:7471", "10.1.0.1:0"),
            ("[2001:db8::1]:7471", "[2001:db8::1]:0"),
            ("[fe80::1%3]:7471", "[fe80::1%3]:0"),
            // The loopback interface, and one without an RDMA device.
            ("127.0.0.1:7471", "10.0.0.1:0"),
            ("192.0.2.1:7471", "10.0.0.1:0"),
        ] {
            let at = listens_at(&device(), Some(addr(stream)));
            assert_eq!(at, Some(addr(expected)), "{stream}");
        }
        assert_eq!(listens_at(&device(), None), Some(addr("10.0.0.1:0")));
        assert_eq!(listens_at(&[], Some(addr("10.0.0.1:1"))), None);
    }

    #[test]
    fn connects_from_an_address_of_the_same_kind_as_the_listener_s() {
        for (stream, to, expected) in [
            ("10.1.0.1:5", "10.1.0.2:9", "10.1.0.1:0"),
            ("127.0.0.1:5", "10.1.0.2:9", "10.0.0.1:0"),
            // The peer's stream came over another interface.
            ("10.1.0.1:5", "[2001:db8::2]:9", "[2001:db8::1]:0"),
            ("10.1.0.1:5", "[fe80::2]:9", "[fe80::1%3]:0"),
            ("[fe80::1%3]:5", "[2001:db8::2]:9", "[2001:db8::1]:0"),
            ("[2001:db8::1]:5", "10.0.0.2:9", "10.0.0.1:0"),
        ] {
            let from = connects_from(&device(), Some(addr(stream)), &addr(to));
            assert_eq!(from, Some(addr(expected)), "{stream} {to}");
        }
        let four = &device()[..2];
        assert_eq!(connects_from(four, None, &addr("[2001:db8::2]:9")), None);
    }
}
