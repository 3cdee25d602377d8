//! C's codes as types: enums, flags and addresses, with their names.

pub(crate) mod cap_flags;
#[cfg(feature = "rdmacm")]
pub(crate) mod cm_event_type;
mod gid;
mod link;
pub(crate) mod macros;
mod mtu;
pub(crate) mod names;
#[cfg(feature = "rdmacm")]
pub(crate) mod private_data;
pub(crate) mod qp_state;
mod qp_type;
mod wc_opcode;
pub(crate) mod wc_status;

pub use cap_flags::{
    DeviceCapFlags, DeviceCapFlagsEx, OdpCaps, OdpTransportCaps, PortCapFlags, PortCapFlags2,
};
pub use gid::{Gid, GidType};
pub use link::{LinkLayer, LinkSpeed, LinkWidth, PhysState, PortState};
pub use mtu::MaximumTransferUnit;
pub use names::ParseNameError;
pub use qp_state::{QpAttrMask, QpState};
pub use qp_type::QpType;
pub use wc_opcode::WcOpcode;
pub use wc_status::WcStatus;
