//! An identifier of the connection manager is for one connection.

use std::time::Duration;

use verbs_core::rdmacm::Connector;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let connector = Connector::new()?;
    let (addr, second) = ("192.0.2.1:7471".parse()?, Duration::from_secs(1));
    let _first = connector.resolve_addr(addr, second)?;
    let _second = connector.resolve_addr(addr, second)?;
    Ok(())
}
