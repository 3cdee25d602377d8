//! Ports: their state, limits and P_Keys.
#![expect(unsafe_code, reason = "lets C fill in `ibv_port_attr`")]

use std::fmt;
use std::ops::RangeInclusive;

use verbs_sys::{
    __be16, IBV_QPF_GRH_REQUIRED, ibv_get_pkey_index, ibv_port_attr, ibv_query_pkey, ibv_query_port,
};
#[cfg(feature = "serde")]
use verbs_sys::{ibv_mtu, ibv_port_state};

use super::context::Context;
use crate::codes::macros::{man, serde_getters};
use crate::codes::{
    LinkLayer, LinkSpeed, LinkWidth, MaximumTransferUnit, PhysState, PortCapFlags, PortCapFlags2,
    PortState,
};
use crate::error::{Error, Result};
use crate::ffi::ret;

/// The state, the limits and the link of a port.
#[doc = man!("ibv_query_port")]
#[derive(Clone, Copy)]
#[doc(alias = "ibv_port_attr")]
pub struct PortAttr {
    attr: ibv_port_attr,
}

impl Context {
    /// The numbers of the device's ports, which start at 1.
    ///
    /// # Errors
    ///
    /// As [`query_device`](Self::query_device).
    pub fn ports(&self) -> Result<RangeInclusive<u8>> {
        Ok(1..=self.query_device()?.phys_port_cnt())
    }

    /// Queries a port's attributes.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] if there is no such port, otherwise the errno.
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
    /// The errno, also if there is no such port or index.
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

    /// The index of a P_Key in a port's table; `None` if the table does not have it.
    ///
    /// `pkey` is in this machine's byte order.
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

    /// The link layer: InfiniBand or Ethernet.
    #[must_use]
    pub const fn link_layer(&self) -> LinkLayer {
        LinkLayer::from_raw(self.attr.link_layer)
    }

    /// Whether packets are addressed by GID, and so have a global routing header (GRH).
    ///
    /// This is always so on Ethernet, and on InfiniBand if the port demands it.
    #[must_use]
    #[doc(alias = "IBV_QPF_GRH_REQUIRED")]
    pub const fn needs_grh(&self) -> bool {
        const GRH: u32 = IBV_QPF_GRH_REQUIRED;
        let flags = self.attr.flags as u32;
        self.attr.link_layer == LinkLayer::ETHERNET.as_raw() || flags & GRH != 0
    }

    /// How many lanes the link has.
    #[must_use]
    pub const fn active_width(&self) -> LinkWidth {
        LinkWidth::from_raw(self.attr.active_width)
    }

    /// The speed of each lane.
    #[must_use]
    pub const fn active_speed(&self) -> LinkSpeed {
        LinkSpeed::from_raw(self.attr.active_speed)
    }

    /// The speed of the link, all lanes together, in Mbit/s; `None` for an unknown code.
    #[must_use]
    pub fn active_rate(&self) -> Option<u32> {
        let (lanes, speed) = (
            self.active_width().lanes()?,
            self.active_speed().mbit_per_s()?,
        );
        Some(lanes * speed)
    }

    /// The state of the physical link.
    #[must_use]
    pub const fn phys_state(&self) -> PhysState {
        PhysState::from_raw(self.attr.phys_state)
    }

    /// Capabilities of the port.
    #[must_use]
    pub const fn port_cap_flags(&self) -> PortCapFlags {
        PortCapFlags::from_bits_retain(self.attr.port_cap_flags)
    }

    /// Further capabilities of the port: the second word of its capabilities, if it has
    /// [`CAP_MASK2_SUP`](PortCapFlags::CAP_MASK2_SUP).
    #[must_use]
    pub const fn port_cap_flags2(&self) -> PortCapFlags2 {
        PortCapFlags2::from_bits_retain(self.attr.port_cap_flags2)
    }

    /// C's struct.
    #[must_use]
    pub const fn as_raw(&self) -> &ibv_port_attr {
        &self.attr
    }
}

serde_getters! {
    PortAttr, ibv_port_attr;
    {
        state: PortState, |attr, state| attr.state = ibv_port_state(state.as_raw());
        max_mtu: Option<MaximumTransferUnit>, |attr, mtu| attr.max_mtu = raw_mtu(mtu);
        active_mtu: Option<MaximumTransferUnit>, |attr, mtu| attr.active_mtu = raw_mtu(mtu);
        link_layer: LinkLayer, |attr, layer| attr.link_layer = layer.as_raw();
        active_width: LinkWidth, |attr, width| attr.active_width = width.as_raw();
        active_speed: LinkSpeed, |attr, speed| attr.active_speed = speed.as_raw();
        phys_state: PhysState, |attr, state| attr.phys_state = state.as_raw();
        port_cap_flags: PortCapFlags, |attr, flags| attr.port_cap_flags = flags.bits();
        port_cap_flags2: PortCapFlags2, |attr, flags| attr.port_cap_flags2 = flags.bits();
    }
    /// How many entries the GID table has, empty ones included.
    gid_tbl_len: count u32,
    /// The longest message, in bytes.
    max_msg_sz: plain u32,
    /// How many packets were dropped for a bad P_Key.
    bad_pkey_cntr: plain u32,
    /// How many packets were dropped for a bad Q_Key.
    qkey_viol_cntr: plain u32,
    /// How many entries the P_Key table has.
    pkey_tbl_len: plain u16,
    /// The local identifier (LID); 0 on Ethernet.
    lid: plain u16,
    /// The subnet manager's LID.
    sm_lid: plain u16,
    /// The LID mask control (LMC): how many low bits of the LID select a path.
    lmc: plain u8,
    /// How many virtual lanes the port has, as a code: 1 for one, 2 for two, 3 for four, 4 for eight,
    /// 5 for fifteen.
    max_vl_num: plain u8,
    /// The subnet manager's service level.
    sm_sl: plain u8,
    /// How long a packet may be in transit, as a code t: 4.096 µs × 2ᵗ.
    subnet_timeout: plain u8,
    /// State that the subnet manager has initialised, as a code of InfiniBand.
    init_type_reply: plain u8,
    /// Flags of the port, `IBV_QPF_*`.
    flags: plain u8,
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

/// C's code of an MTU; 0 for none.
#[cfg(feature = "serde")]
fn raw_mtu(mtu: Option<MaximumTransferUnit>) -> ibv_mtu {
    ibv_mtu(mtu.map_or(0, MaximumTransferUnit::as_raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_as_fast_as_its_lanes_together() {
        let attr = ibv_port_attr {
            active_width: 2,
            active_speed: 32,
            ..Default::default()
        };
        assert_eq!(PortAttr { attr }.active_rate(), Some(100_000));
        let attr = ibv_port_attr::default();
        assert_eq!(PortAttr { attr }.active_rate(), None);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn attributes_are_serde_data() {
        let attr = ibv_port_attr {
            state: verbs_sys::IBV_PORT_ACTIVE,
            max_mtu: ibv_mtu(5),
            active_mtu: ibv_mtu(9),
            link_layer: 2,
            active_width: 2,
            active_speed: 3,
            phys_state: 5,
            gid_tbl_len: 8,
            port_cap_flags: 1 << 16,
            port_cap_flags2: 1 << 2,
            lid: 4,
            ..Default::default()
        };
        let attr = PortAttr { attr };
        let json = serde_json::to_string(&attr).unwrap();
        let start = r#"{"state":"ACTIVE","max_mtu":4096,"active_mtu":null,"link_layer":"Ethernet","active_width":"4X","active_speed":3,"phys_state":"LINK_UP","port_cap_flags":"CM_SUP","port_cap_flags2":"VIRT_SUP","gid_tbl_len":8,"#;
        assert!(json.starts_with(start), "{json}");
        let back: PortAttr = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), json);
        assert_eq!((back.gid_tbl_len(), back.lid()), (8, 4));
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
