//! How the two sides meet: over TCP, as C's do.

use crate::{Address, AddressError, Common, Context as _, Failure, Listener, Peer, say};

/// Exchanges addresses, and calls `connect` with the peer's. The server connects first, so that it is
/// ready when the client has its address.
pub(super) fn meet<T>(
    common: &Common,
    ours: Address,
    connect: impl FnOnce(Address) -> Result<T, Failure>,
) -> Result<T, Failure> {
    say(format_args!("  local address:  {ours}"))?;
    let connected = |theirs: Address| {
        say(format_args!("  remote address: {theirs}"))?;
        connect(theirs).context(|| "cannot connect the queue pair")
    };
    if let Some(host) = &common.host {
        let peer = Peer::connect(host, common.port, common.limit())?;
        peer.send(&ours.to_wire())?;
        let link = connected(address(&peer)?)?;
        peer.send(&Address::DONE)?;
        Ok(link)
    } else {
        let peer = Listener::bind(common.port)?.accept(common.wait(), common.limit())?;
        let link = connected(address(&peer)?)?;
        peer.send(&ours.to_wire())?;
        let mut done = [0; Address::DONE.len()];
        peer.receive(&mut done)
            .context(|| "the client did not connect")?;
        if done == Address::DONE {
            Ok(link)
        } else {
            Err(AddressError::Format.into())
        }
    }
}

fn address(peer: &Peer) -> Result<Address, Failure> {
    let mut wire = [0; Address::WIRE_LEN];
    peer.receive(&mut wire)?;
    Ok(Address::from_wire(&wire)?)
}
