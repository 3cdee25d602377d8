//! How the two sides meet: over TCP, as C's do.

use crate::{Address, AddressError, Common, Context as _, Failure, Listener, Peer, say};

/// Exchanges addresses, and calls `connect` with the peer's. The server connects first, so that it is
/// ready when the client has its addresses.
///
/// There are `N` on the wire, however many are `ours`: the rest is zeros.
///
/// # Errors
///
/// The peer is not there, does not answer in time, or sends something else; or `connect` fails.
pub fn meet<const N: usize, T>(
    common: &Common,
    ours: &[Address],
    connect: impl FnOnce([Address; N]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    for ours in ours {
        say(format_args!("  local address:  {ours}"))?;
    }
    let send = |peer: &Peer| {
        let mut wire = [Address::NONE.to_wire(); N];
        for (wire, ours) in wire.iter_mut().zip(ours) {
            *wire = ours.to_wire();
        }
        peer.send(wire.as_flattened())
    };
    let connected = |peer: &Peer| {
        let mut wire = [[0; Address::WIRE_LEN]; N];
        peer.receive(wire.as_flattened_mut())?;
        let mut theirs = [Address::NONE; N];
        for (theirs, wire) in theirs.iter_mut().zip(&wire) {
            *theirs = Address::from_wire(wire)?;
        }
        for (_, theirs) in ours.iter().zip(&theirs) {
            say(format_args!("  remote address: {theirs}"))?;
        }
        connect(theirs).context(|| "cannot connect")
    };
    if let Some(host) = &common.host {
        let peer = Peer::connect(host, common.port, common.limit())?;
        send(&peer)?;
        let connected = connected(&peer)?;
        peer.send(&Address::DONE)?;
        Ok(connected)
    } else {
        let peer = Listener::bind(common.port)?.accept(common.wait(), common.limit())?;
        let connected = connected(&peer)?;
        send(&peer)?;
        let mut done = [0; Address::DONE.len()];
        peer.receive(&mut done)
            .context(|| "the client did not connect")?;
        if done == Address::DONE {
            Ok(connected)
        } else {
            Err(AddressError::Format.into())
        }
    }
}
