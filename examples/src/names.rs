//! C's words for codes and flags that a device tells.

use verbs_core::verbs_sys as c;
use verbs_core::{AtomicCap, Gid, GidType, MaximumTransferUnit, PortState, TransportType};

macro_rules! flags {
    ($($doc:literal $name:ident: $prefix:literal $($flag:ident)*;)*) => {$(
        #[doc = $doc]
        pub const $name: &[(u64, &str)] =
            &[$((c::$flag.0 as u64, after($prefix, stringify!($flag)))),*];
    )*};
}

flags! {
    "What a device can do."
    DEVICE_CAPS: "IBV_DEVICE_"
        IBV_DEVICE_RESIZE_MAX_WR IBV_DEVICE_BAD_PKEY_CNTR IBV_DEVICE_BAD_QKEY_CNTR
        IBV_DEVICE_RAW_MULTI IBV_DEVICE_AUTO_PATH_MIG IBV_DEVICE_CHANGE_PHY_PORT
        IBV_DEVICE_UD_AV_PORT_ENFORCE IBV_DEVICE_CURR_QP_STATE_MOD IBV_DEVICE_SHUTDOWN_PORT
        IBV_DEVICE_INIT_TYPE IBV_DEVICE_PORT_ACTIVE_EVENT IBV_DEVICE_SYS_IMAGE_GUID
        IBV_DEVICE_RC_RNR_NAK_GEN IBV_DEVICE_SRQ_RESIZE IBV_DEVICE_N_NOTIFY_CQ
        IBV_DEVICE_MEM_WINDOW IBV_DEVICE_UD_IP_CSUM IBV_DEVICE_XRC
        IBV_DEVICE_MEM_MGT_EXTENSIONS IBV_DEVICE_MEM_WINDOW_TYPE_2A
        IBV_DEVICE_MEM_WINDOW_TYPE_2B IBV_DEVICE_RC_IP_CSUM IBV_DEVICE_RAW_IP_CSUM
        IBV_DEVICE_MANAGED_FLOW_STEERING;
    "On-demand paging in general."
    ODP_CAPS: "IBV_" IBV_ODP_SUPPORT IBV_ODP_SUPPORT_IMPLICIT;
    "On-demand paging on a transport."
    ODP_TRANSPORT_CAPS: "IBV_ODP_"
        IBV_ODP_SUPPORT_SEND IBV_ODP_SUPPORT_RECV IBV_ODP_SUPPORT_WRITE IBV_ODP_SUPPORT_READ
        IBV_ODP_SUPPORT_ATOMIC IBV_ODP_SUPPORT_SRQ_RECV;
    "Tag matching."
    TM_CAPS: "" IBV_TM_CAP_RC;
}

/// What a device can do beyond 32 flags.
pub const DEVICE_CAPS_EX: &[(u64, &str)] = &[
    (c::IBV_DEVICE_RAW_SCATTER_FCS, "RAW_SCATTER_FCS"),
    (c::IBV_DEVICE_PCI_WRITE_END_PADDING, "PCI_WRITE_END_PADDING"),
];

/// Kinds of queue pairs, as bits.
pub const QP_TYPES: &[(u64, &str)] = &[
    (1 << c::IBV_QPT_RAW_PACKET.0, "SUPPORT_RAW_PACKET"),
    (1 << c::IBV_QPT_UD.0, "SUPPORT_UD"),
    (1 << c::IBV_QPT_RC.0, "SUPPORT_RC"),
];

/// What raw packet queue pairs can do.
pub const RAW_PACKET_CAPS: &[(u64, &str)] = &[
    (1, "C-VLAN stripping offload"),
    (2, "Scatter FCS offload"),
    (4, "IP csum offload"),
    (8, "Delay drop"),
];

/// A name without the prefix that all of its kind have.
const fn after(prefix: &str, name: &'static str) -> &'static str {
    name.split_at(prefix.len()).1
}

/// The name of a code in a table.
fn name_of<C: PartialEq>(
    code: C,
    names: &[(C, &'static str)],
    other: &'static str,
) -> &'static str {
    let found = names.iter().find(|(this, _)| *this == code);
    found.map_or(other, |(_, name)| name)
}

/// What a device speaks.
#[must_use]
pub fn transport(transport: TransportType) -> &'static str {
    let names = [
        (TransportType::IB, "InfiniBand"),
        (TransportType::IWARP, "iWARP"),
        (TransportType::USNIC, "usNIC"),
        (TransportType::USNIC_UDP, "usNIC UDP"),
        (TransportType::UNSPECIFIED, "unspecified"),
    ];
    name_of(transport, &names, "invalid transport")
}

/// The state of a port.
#[must_use]
pub fn port_state(state: PortState) -> &'static str {
    let names = [
        (PortState::DOWN, "PORT_DOWN"),
        (PortState::INIT, "PORT_INIT"),
        (PortState::ARMED, "PORT_ARMED"),
        (PortState::ACTIVE, "PORT_ACTIVE"),
    ];
    name_of(state, &names, "invalid state")
}

/// The state of a physical link.
#[must_use]
pub fn phys_state(code: u8) -> &'static str {
    let names = [
        (1, "SLEEP"),
        (2, "POLLING"),
        (3, "DISABLED"),
        (4, "PORT_CONFIGURATION TRAINNING"),
        (5, "LINK_UP"),
        (6, "LINK_ERROR_RECOVERY"),
        (7, "PHY TEST"),
    ];
    name_of(code, &names, "invalid physical state")
}

/// Towards whom atomics are atomic.
#[must_use]
pub fn atomic_cap(cap: AtomicCap) -> &'static str {
    let names = [
        (AtomicCap::NONE, "ATOMIC_NONE"),
        (AtomicCap::HCA, "ATOMIC_HCA"),
        (AtomicCap::GLOB, "ATOMIC_GLOB"),
    ];
    name_of(cap, &names, "invalid atomic capability")
}

/// An MTU, by its code.
#[must_use]
pub fn mtu(code: u32) -> String {
    let mtu = MaximumTransferUnit::from_raw(code);
    mtu.map_or_else(|| "invalid MTU".into(), |mtu| mtu.to_string())
}

/// How many lanes a link has.
#[must_use]
pub fn width(code: u8) -> &'static str {
    let names = [(1, "1"), (2, "4"), (4, "8"), (8, "12"), (16, "2")];
    name_of(code, &names, "invalid width")
}

/// The speed of a lane.
#[must_use]
pub fn speed(code: u8) -> &'static str {
    let names = [
        (1, "2.5 Gbps"),
        (2, "5.0 Gbps"),
        (4, "10.0 Gbps"),
        (8, "10.0 Gbps"),
        (16, "14.0 Gbps"),
        (32, "25.0 Gbps"),
        (64, "50.0 Gbps"),
        (128, "100.0 Gbps"),
    ];
    name_of(code, &names, "invalid speed")
}

/// How many virtual lanes a port has.
#[must_use]
pub fn vl_num(code: u8) -> &'static str {
    let names = [(1, "1"), (2, "2"), (3, "4"), (4, "8"), (5, "15")];
    name_of(code, &names, "invalid value")
}

/// How packets with a GID look, where there is a choice.
#[must_use]
pub fn gid_type(gid_type: GidType) -> &'static str {
    let names = [
        (GidType::IB, "IB"),
        (GidType::ROCE_V1, "RoCE v1"),
        (GidType::ROCE_V2, "RoCE v2"),
    ];
    name_of(gid_type, &names, "Invalid gid type")
}

/// A GID: as an IPv6 address where it is one, else in full.
#[must_use]
pub fn gid(gid: Gid, gid_type: GidType) -> String {
    if gid_type == GidType::ROCE_V2 {
        return gid.to_string();
    }
    let raw = gid.raw();
    let groups = raw
        .chunks(2)
        .map(|group| group.iter().map(|byte| format!("{byte:02x}")));
    groups
        .map(Iterator::collect)
        .collect::<Vec<String>>()
        .join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_c_s_names_without_their_prefix() {
        assert_eq!(DEVICE_CAPS.first(), Some(&(1, "RESIZE_MAX_WR")));
        assert_eq!(ODP_CAPS, [(1, "ODP_SUPPORT"), (2, "ODP_SUPPORT_IMPLICIT")]);
        assert_eq!(ODP_TRANSPORT_CAPS.first(), Some(&(1, "SUPPORT_SEND")));
        assert_eq!(TM_CAPS, [(1, "IBV_TM_CAP_RC")]);
    }

    #[test]
    fn gids_are_short_only_where_they_are_addresses() {
        let link_local = Gid::new([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1]);
        assert_eq!(gid(link_local, GidType::ROCE_V2), "fe80::ff:fe00:1");
        assert_eq!(
            gid(link_local, GidType::IB),
            "fe80:0000:0000:0000:0000:00ff:fe00:0001"
        );
    }

    #[test]
    fn unknown_codes_have_a_word_too() {
        assert_eq!(speed(3), "invalid speed");
        assert_eq!(mtu(9), "invalid MTU");
        assert_eq!(port_state(PortState::from_raw(77)), "invalid state");
    }
}
