//! Devices of iWARP, which connect by the connection manager only.

use std::fs;
use std::net::IpAddr;

use verbs_core::Context;

use super::device_name;

/// Whether the device under test is one of iWARP.
pub fn is_iwarp() -> bool {
    let name = device_name();
    let kind = fs::read_to_string(format!("/sys/class/infiniband/{name}/node_type"));
    // "4: RNIC"
    kind.is_ok_and(|kind| kind.starts_with("4:"))
}

/// The address to connect to a device by.
#[cfg(feature = "rdmacm")]
pub(super) fn ip(context: &Context) -> Option<IpAddr> {
    context.local_addr().ok().map(|addr| addr.ip())
}

#[cfg(not(feature = "rdmacm"))]
pub(super) fn ip(_: &Context) -> Option<IpAddr> {
    panic!("tests on iWARP need the feature verbs-harness/rdmacm");
}
