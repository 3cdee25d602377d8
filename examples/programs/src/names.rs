//! C's words for codes and flags of a device.

use std::fmt::Display;

use verbs_core::codes::{Gid, GidType, PhysState};
use verbs_core::verbs_sys as c;

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

/// Capabilities of a device beyond 32 flags.
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

/// Capabilities of raw packet queue pairs.
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

/// The output of C's tools for a code: a text, or that it is invalid.
#[must_use]
pub fn known(text: Option<impl Display>, invalid: &str) -> String {
    text.map_or_else(|| invalid.to_owned(), |text| text.to_string())
}

/// The state of a physical link, with C's spelling.
#[must_use]
pub fn phys_state(state: PhysState) -> String {
    match state {
        PhysState::PORT_CONFIGURATION_TRAINING => "PORT_CONFIGURATION TRAINNING".into(),
        PhysState::PHY_TEST => "PHY TEST".into(),
        _ => known(state.name().map(|_| state), "invalid physical state"),
    }
}

/// How many virtual lanes a port has.
#[must_use]
pub fn vl_num(code: u8) -> &'static str {
    match code {
        1 => "1",
        2 => "2",
        3 => "4",
        4 => "8",
        5 => "15",
        _ => "invalid value",
    }
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

/// Ascending numbers, as the kernel writes a list of CPUs: `0-3,8`.
#[must_use]
pub fn ranges(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let texts = runs.map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    texts.collect::<Vec<_>>().join(",")
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
    fn codes_have_c_s_words() {
        let phys_state = |code| phys_state(PhysState::from_raw(code));
        assert_eq!(phys_state(4), "PORT_CONFIGURATION TRAINNING");
        assert_eq!(phys_state(5), "LINK_UP");
        assert_eq!(phys_state(77), "invalid physical state");
        assert_eq!(known(Some(GidType::ROCE_V2), ""), "RoCE v2");
    }

    #[test]
    fn cpus_are_listed_as_the_kernel_does() {
        assert_eq!(ranges(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!(ranges(&[]), "");
    }
}
