//! Ports: their state, limits and P_Keys.
#![expect(unsafe_code, reason = "lets C fill in `ibv_port_attr`")]

use std::fmt;
use std::ops::RangeInclusive;

use verbs_sys::{
    __be16, IBV_QPF_GRH_REQUIRED, ibv_get_pkey_index, ibv_port_attr, ibv_query_pkey, ibv_query_port,
};

use crate::macros::{getters, man, open_enum};
use crate::queue_pair::MaximumTransferUnit;
use crate::{Context, Error, Result, ret};

/// What a port is and can do.
#[doc = man!("ibv_query_port")]
#[derive(Clone, Copy)]
#[doc(alias = "ibv_port_attr")]
pub struct PortAttr {
    attr: ibv_port_attr,
}

impl Context {
    /// The numbers of the device's ports; they count from 1.
    ///
    /// # Errors
    ///
    /// As [`query_device`](Self::query_device).
    pub fn ports(&self) -> Result<RangeInclusive<u8>> {
        Ok(1..=self.query_device()?.phys_port_cnt())
    }

    /// Asks for a port's attributes.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] if there is no such port, else the errno.
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open, and `attr` is a local of the size the call assumes.
        let ret = unsafe { ibv_query_port(self.as_ptr(), port_num, &raw mut attr) };
        match ret::errno("ibv_query_port", ret) {
            Ok(()) => Ok(PortAttr { attr }),
            Err(error) => Err(self.unknown_port(port_num).unwrap_or(error)),
        }
    }

    /// The error for a port that does not exist; `None` if it does.
    pub(crate) fn unknown_port(&self, port: u8) -> Option<Error> {
        let ports = self.query_device().ok()?.phys_port_cnt();
        (port == 0 || port > ports).then(|| Error::UnknownPort {
            port,
            device: self.device().name().into(),
            ports,
        })
    }

    /// The P_Key at an index of a port's table, in this machine's byte order.
    ///
    /// # Errors
    ///
    /// The errno, for a port or an index that does not exist.
    #[doc = man!("ibv_query_pkey")]
    #[doc(alias = "ibv_query_pkey")]
    pub fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16> {
        let mut pkey = __be16(0);
        let at = index.into();
        // SAFETY: the context is open, and `pkey` is a local that the call fills in.
        let ret = unsafe { ibv_query_pkey(self.as_ptr(), port_num, at, &raw mut pkey) };
        ret::minus_one("ibv_query_pkey", ret)?;
        Ok(u16::from_be(pkey.0))
    }

    /// The index of a P_Key in a port's table; `None` if it is not there.
    #[must_use]
    #[doc = man!("ibv_get_pkey_index")]
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn pkey_index(&self, port_num: u8, pkey: u16) -> Option<u16> {
        let pkey = __be16(pkey.to_be());
        // SAFETY: the context is open.
        u16::try_from(unsafe { ibv_get_pkey_index(self.as_ptr(), port_num, pkey) }).ok()
    }
}

impl PortAttr {
    /// The state of the logical link.
    #[must_use]
    pub const fn state(&self) -> PortState {
        PortState::from_raw(self.attr.state.0)
    }

    /// The largest path MTU that the port supports.
    #[must_use]
    pub const fn max_mtu(&self) -> Option<MaximumTransferUnit> {
        MaximumTransferUnit::from_raw(self.attr.max_mtu.0)
    }

    /// The path MTU that its link has now.
    #[must_use]
    pub const fn active_mtu(&self) -> Option<MaximumTransferUnit> {
        MaximumTransferUnit::from_raw(self.attr.active_mtu.0)
    }

    /// What its link is made of.
    #[must_use]
    pub const fn link_layer(&self) -> LinkLayer {
        LinkLayer::from_raw(self.attr.link_layer)
    }

    /// Whether packets are addressed by GID, through a global routing header (GRH): always on
    /// Ethernet, and on InfiniBand where the port demands it.
    #[must_use]
    #[doc(alias = "IBV_QPF_GRH_REQUIRED")]
    pub const fn needs_grh(&self) -> bool {
        const GRH: u32 = IBV_QPF_GRH_REQUIRED;
        let flags = self.attr.flags as u32;
        self.attr.link_layer == LinkLayer::ETHERNET.as_raw() || flags & GRH != 0
    }

    getters! {
        /// Entries in the GID table, holes included.
        gid_tbl_len: count u32,
        /// Capabilities, `IBV_PORT_*_SUP`.
        port_cap_flags: plain u32,
        /// More capabilities, `IBV_PORT_*_SUP` of the second word.
        port_cap_flags2: plain u16,
        /// The longest message, in bytes.
        max_msg_sz: plain u32,
        /// Packets dropped for their P_Key.
        bad_pkey_cntr: plain u32,
        /// Packets dropped for their Q_Key.
        qkey_viol_cntr: plain u32,
        /// Entries in the P_Key table.
        pkey_tbl_len: plain u16,
        /// The local identifier (LID); 0 on Ethernet.
        lid: plain u16,
        /// The subnet manager's LID.
        sm_lid: plain u16,
        /// How many low bits of the LID select a path.
        lmc: plain u8,
        /// Virtual lanes, as a code: 1 for one, then 2, 4, 8, and 5 for 15.
        max_vl_num: plain u8,
        /// The subnet manager's service level.
        sm_sl: plain u8,
        /// How long a packet may be under way, as a code t: 4.096 µs × 2ᵗ.
        subnet_timeout: plain u8,
        /// What the subnet manager initialised.
        init_type_reply: plain u8,
        /// Lanes, as a code: 1 for one, 2 for 4, 4 for 8, 8 for 12, 16 for two.
        active_width: plain u8,
        /// Speed of a lane, as a code: 1 for 2.5 Gbit/s, 2 for 5, 4 and 8 for 10, 16 for 14, 32 for
        /// 25, 64 for 50, 128 for 100.
        active_speed: plain u8,
        /// The state of the physical link, as a code: 2 while it looks for the other side, 3 if it
        /// is disabled, 5 when it is up.
        phys_state: plain u8,
        /// Flags of the port, `IBV_QPF_*`.
        flags: plain u8,
    }

    /// C's struct.
    #[must_use]
    pub const fn as_raw(&self) -> &ibv_port_attr {
        &self.attr
    }
}

impl fmt::Debug for PortAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortAttr")
            .field("state", &self.state())
            .field("link_layer", &self.link_layer())
            .field("active_mtu", &self.active_mtu())
            .field("lid", &self.lid())
            .field("gid_tbl_len", &self.gid_tbl_len())
            .finish_non_exhaustive()
    }
}

open_enum! {
    /// The state of a port's logical link.
    #[doc(alias = "ibv_port_state_str")]
    PortState(u32), "ibv_port_state";
    /// Nothing has changed (only in requests).
    NOP = IBV_PORT_NOP "IBV_PORT_NOP",
    /// No link: check the cable and the other side.
    DOWN = IBV_PORT_DOWN "IBV_PORT_DOWN",
    /// A link, and no subnet manager yet: start one.
    INIT = IBV_PORT_INIT "IBV_PORT_INIT",
    /// Configured, not yet allowed to send.
    ARMED = IBV_PORT_ARMED "IBV_PORT_ARMED",
    /// Usable.
    ACTIVE = IBV_PORT_ACTIVE "IBV_PORT_ACTIVE",
    /// The link is being restored.
    ACTIVE_DEFER = IBV_PORT_ACTIVE_DEFER "IBV_PORT_ACTIVE_DEFER",
}

/// What a port's link is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[doc(alias = "link_layer")]
pub struct LinkLayer(u8);

impl LinkLayer {
    /// The driver does not tell; treat it as InfiniBand.
    #[doc(alias = "IBV_LINK_LAYER_UNSPECIFIED")]
    pub const UNSPECIFIED: Self = Self(0);
    /// InfiniBand: addressed by LID, within a subnet.
    #[doc(alias = "IBV_LINK_LAYER_INFINIBAND")]
    pub const INFINIBAND: Self = Self(1);
    /// Ethernet: RoCE, addressed by GID.
    #[doc(alias = "IBV_LINK_LAYER_ETHERNET")]
    pub const ETHERNET: Self = Self(2);

    /// The value for C's number.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        Self(raw)
    }

    /// C's number.
    #[must_use]
    pub const fn as_raw(self) -> u8 {
        self.0
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNSPECIFIED => f.write_str("Unspecified"),
            Self::INFINIBAND => f.write_str("InfiniBand"),
            Self::ETHERNET => f.write_str("Ethernet"),
            Self(other) => write!(f, "Unknown ({other})"),
        }
    }
}

impl fmt::Debug for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_layers_are_c_s() {
        let c = [
            verbs_sys::IBV_LINK_LAYER_UNSPECIFIED,
            verbs_sys::IBV_LINK_LAYER_INFINIBAND,
            verbs_sys::IBV_LINK_LAYER_ETHERNET,
        ];
        assert_eq!(c, [0, 1, 2]);
    }

    #[test]
    fn ethernet_needs_a_grh() {
        let mut attr = ibv_port_attr::default();
        assert!(!PortAttr { attr }.needs_grh());
        attr.link_layer = 2;
        assert!(PortAttr { attr }.needs_grh());
        attr.link_layer = 1;
        attr.flags = 1;
        assert!(PortAttr { attr }.needs_grh());
    }
}
