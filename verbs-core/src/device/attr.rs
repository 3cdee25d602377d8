//! Device attributes: the identity and the limits of a device.
#![expect(unsafe_code, reason = "lets C fill in `ibv_device_attr`")]

use std::ffi::CStr;
#[cfg(feature = "serde")]
use std::ffi::c_char;
use std::fmt;

#[cfg(feature = "serde")]
use verbs_sys::ibv_atomic_cap;
use verbs_sys::{ibv_device_attr, ibv_device_attr_ex, ibv_query_device, ibv_query_device_ex};

use super::Guid;
use super::context::Context;
use crate::codes::macros::{getters, man, open_enum, serde_getters};
use crate::codes::{DeviceCapFlags, DeviceCapFlagsEx, OdpCaps, OdpTransportCaps};
use crate::error::{Error, Result};
use crate::ffi::ret;

/// The identity and the limits of a device.
///
/// The `max_*` functions return the limits of the hardware, each on its own: a queue pair that uses
/// several limits in full may still be rejected.
#[doc = man!("ibv_query_device")]
#[derive(Clone, Copy)]
#[doc(alias = "ibv_device_attr")]
pub struct DeviceAttr {
    attr: ibv_device_attr,
}

/// Further capabilities of a device, as far as its driver reports them.
#[doc = man!("ibv_query_device_ex")]
#[derive(Clone, Copy)]
#[doc(alias = "ibv_device_attr_ex")]
pub struct DeviceAttrEx {
    attr: ibv_device_attr_ex,
}

impl Context {
    /// Queries the device's attributes.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "ibv_query_device")]
    pub fn query_device(&self) -> Result<DeviceAttr> {
        let mut attr = ibv_device_attr::default();
        // SAFETY: the context is open, and `attr` is a local that the call fills in.
        let ret = unsafe { ibv_query_device(self.as_ptr(), &raw mut attr) };
        ret::errno("ibv_query_device", ret)?;
        Ok(DeviceAttr { attr })
    }

    /// Queries the device's extended attributes. Those that the driver does not report are zero.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc(alias = "ibv_query_device_ex")]
    pub fn query_device_ex(&self) -> Result<DeviceAttrEx> {
        let mut attr = ibv_device_attr_ex::default();
        // SAFETY: the context is open, a null input asks for everything, and `attr` is a local of
        // the size that the call assumes.
        let ret = unsafe { ibv_query_device_ex(self.as_ptr(), std::ptr::null(), &raw mut attr) };
        ret::errno("ibv_query_device_ex", ret)?;
        Ok(DeviceAttrEx { attr })
    }

    /// Refuses a capacity above the device's limit.
    pub(crate) fn within(what: &'static str, asked: u32, max: u32) -> Result<()> {
        if asked <= max {
            return Ok(());
        }
        Err(Error::Limit {
            what,
            asked: asked.into(),
            max: Some(max.into()),
        })
    }
}

impl DeviceAttr {
    /// The firmware's version.
    #[must_use]
    pub fn fw_ver(&self) -> String {
        // SAFETY: an array of bytes is as long in either signedness.
        let bytes: [u8; 64] = unsafe { std::mem::transmute(self.attr.fw_ver) };
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        text.to_string_lossy().into_owned()
    }

    /// The node's GUID.
    #[must_use]
    pub const fn node_guid(&self) -> Guid {
        Guid::from_be(self.attr.node_guid)
    }

    /// The GUID of the adapter that the node is a part of.
    #[must_use]
    pub const fn sys_image_guid(&self) -> Guid {
        Guid::from_be(self.attr.sys_image_guid)
    }

    /// Capabilities of the device.
    #[must_use]
    pub const fn device_cap_flags(&self) -> DeviceCapFlags {
        DeviceCapFlags::from_bits_retain(self.attr.device_cap_flags)
    }

    /// Scope of the device's atomics.
    #[must_use]
    pub const fn atomic_cap(&self) -> AtomicCap {
        AtomicCap::from_raw(self.attr.atomic_cap.0)
    }

    /// C's struct.
    #[must_use]
    pub const fn as_raw(&self) -> &ibv_device_attr {
        &self.attr
    }
}

serde_getters! {
    DeviceAttr, ibv_device_attr;
    {
        fw_ver: String, |attr, fw_ver| attr.fw_ver = c_string(&fw_ver);
        node_guid: Guid, |attr, guid| attr.node_guid = guid.to_be();
        sys_image_guid: Guid, |attr, guid| attr.sys_image_guid = guid.to_be();
        atomic_cap: AtomicCap, |attr, cap| attr.atomic_cap = ibv_atomic_cap(cap.as_raw());
        device_cap_flags: DeviceCapFlags, |attr, flags| attr.device_cap_flags = flags.bits();
    }
    /// The largest region that can be registered, in bytes.
    max_mr_size: plain u64,
    /// Page sizes that can be registered, as a mask: bit n stands for 2ⁿ bytes.
    page_size_cap: plain u64,
    /// The vendor, an IEEE OUI.
    vendor_id: plain u32,
    /// The vendor's number for this device.
    vendor_part_id: plain u32,
    /// The hardware's version.
    hw_ver: plain u32,
    /// How many queue pairs there can be.
    max_qp: count u32,
    /// How many work requests a send queue or a receive queue can have room for.
    max_qp_wr: count u32,
    /// How many elements a work request can have.
    max_sge: count u32,
    /// How many elements a read can have, on devices where this differs from `max_sge`.
    max_sge_rd: count u32,
    /// How many completion queues there can be.
    max_cq: count u32,
    /// How many completions a completion queue can have room for.
    max_cqe: count u32,
    /// How many memory regions there can be.
    max_mr: count u32,
    /// How many protection domains there can be.
    max_pd: count u32,
    /// How many reads and atomics of its peer a queue pair can serve at once.
    max_qp_rd_atom: count u32,
    /// The same for an end-to-end context (RD only).
    max_ee_rd_atom: count u32,
    /// How many reads and atomics the device can serve at once, for all queue pairs together.
    max_res_rd_atom: count u32,
    /// How many reads and atomics a queue pair can have in flight at once.
    max_qp_init_rd_atom: count u32,
    /// The same for an end-to-end context (RD only).
    max_ee_init_rd_atom: count u32,
    /// How many end-to-end contexts there can be (RD only).
    max_ee: count u32,
    /// How many reliable datagram domains there can be (RD only).
    max_rdd: count u32,
    /// How many memory windows there can be.
    max_mw: count u32,
    /// How many raw IPv6 queue pairs there can be.
    max_raw_ipv6_qp: count u32,
    /// How many raw Ethertype queue pairs there can be.
    max_raw_ethy_qp: count u32,
    /// How many multicast groups there can be.
    max_mcast_grp: count u32,
    /// How many queue pairs can be attached to a multicast group.
    max_mcast_qp_attach: count u32,
    /// How many queue pairs can be attached to multicast groups, in all groups together.
    max_total_mcast_qp_attach: count u32,
    /// How many address handles there can be.
    max_ah: count u32,
    /// How many fast memory regions there can be.
    max_fmr: count u32,
    /// How many times a fast memory region can be mapped before it must be unmapped.
    max_map_per_fmr: count u32,
    /// How many shared receive queues there can be.
    max_srq: count u32,
    /// How many receives a shared receive queue can have room for.
    max_srq_wr: count u32,
    /// How many elements a receive of a shared receive queue can have.
    max_srq_sge: count u32,
    /// How many P_Keys a port can have.
    max_pkeys: plain u16,
    /// How long this side may take to acknowledge a packet, as a code t: 4.096 µs × 2ᵗ.
    local_ca_ack_delay: plain u8,
    /// How many ports the device has.
    phys_port_cnt: plain u8,
}

impl DeviceAttrEx {
    /// The basic attributes.
    #[must_use]
    pub const fn base(&self) -> DeviceAttr {
        DeviceAttr {
            attr: self.attr.orig_attr,
        }
    }

    /// Whether the device can fault pages in instead of having them pinned (on-demand paging, ODP).
    #[must_use]
    #[doc(alias = "ibv_odp_caps")]
    pub const fn odp_caps(&self) -> OdpCaps {
        OdpCaps::from_bits_retain(self.attr.odp_caps.general_caps)
    }

    /// Which requests of reliable connections may name memory that is paged on demand.
    #[must_use]
    pub const fn rc_odp_caps(&self) -> OdpTransportCaps {
        let caps = &self.attr.odp_caps.per_transport_caps;
        OdpTransportCaps::from_bits_retain(caps.rc_odp_caps)
    }

    /// Which requests of unreliable connections may name memory that is paged on demand.
    #[must_use]
    pub const fn uc_odp_caps(&self) -> OdpTransportCaps {
        let caps = &self.attr.odp_caps.per_transport_caps;
        OdpTransportCaps::from_bits_retain(caps.uc_odp_caps)
    }

    /// Which datagrams may name memory that is paged on demand.
    #[must_use]
    pub const fn ud_odp_caps(&self) -> OdpTransportCaps {
        let caps = &self.attr.odp_caps.per_transport_caps;
        OdpTransportCaps::from_bits_retain(caps.ud_odp_caps)
    }

    /// Which requests of extended reliable connections (XRC) may name memory that is paged on demand.
    #[must_use]
    pub const fn xrc_odp_caps(&self) -> OdpTransportCaps {
        OdpTransportCaps::from_bits_retain(self.attr.xrc_odp_caps)
    }

    /// Further capabilities of the device: the upper 32 bits of C's number. The lower ones are
    /// [`device_cap_flags`](DeviceAttr::device_cap_flags).
    #[must_use]
    pub const fn device_cap_flags_ex(&self) -> DeviceCapFlagsEx {
        let upper = self.attr.device_cap_flags_ex >> 32 << 32;
        DeviceCapFlagsEx::from_bits_retain(upper)
    }

    /// The limits of TCP segmentation by the device: the largest payload in bytes, and the types of queue
    /// pairs that can do it, as a mask of `1 << IBV_QPT_*`.
    #[must_use]
    #[doc(alias = "ibv_tso_caps")]
    pub const fn tso_caps(&self) -> (u32, u32) {
        (
            self.attr.tso_caps.max_tso,
            self.attr.tso_caps.supported_qpts,
        )
    }

    /// The limits of completion moderation: the largest count, and the longest time in microseconds.
    #[must_use]
    #[doc(alias = "ibv_cq_moderation_caps")]
    pub const fn cq_mod_caps(&self) -> (u16, u16) {
        let caps = &self.attr.cq_mod_caps;
        (caps.max_cq_count, caps.max_cq_period)
    }

    getters! {
        /// The bits that completion timestamps have; 0 if the device has no timestamps.
        completion_timestamp_mask: plain u64,
        /// The frequency of the device's clock, in kHz; 0 if it is not known.
        hca_core_clock: plain u64,
        /// How many receive work queues (`IBV_WQT_RQ`) there can be.
        max_wq_type_rq: plain u32,
        /// Capabilities of raw packet queue pairs, `IBV_RAW_PACKET_CAP_*`.
        raw_packet_caps: plain u32,
        /// How much memory of the device can be allocated, in bytes.
        max_dm_size: plain u64,
        /// How many ports the device has, also if there are more than 255; 0 if the driver does not
        /// report it.
        phys_port_cnt_ex: plain u32,
    }

    /// C's struct.
    #[must_use]
    pub const fn as_raw(&self) -> &ibv_device_attr_ex {
        &self.attr
    }
}

impl fmt::Debug for DeviceAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceAttr")
            .field("fw_ver", &self.fw_ver())
            .field("node_guid", &self.node_guid())
            .field("max_qp_wr", &self.max_qp_wr())
            .field("max_sge", &self.max_sge())
            .field("max_cqe", &self.max_cqe())
            .field("atomic_cap", &self.atomic_cap())
            .field("phys_port_cnt", &self.phys_port_cnt())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for DeviceAttrEx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceAttrEx")
            .field("base", &self.base())
            .field("odp_caps", &self.odp_caps())
            .finish_non_exhaustive()
    }
}

open_enum! {
    /// Scope of a device's atomics: which other accesses they are atomic with.
    AtomicCap(u32), "ibv_atomic_cap";
    /// The device has no atomics.
    NONE = IBV_ATOMIC_NONE "IBV_ATOMIC_NONE",
    /// They are atomic with respect to other atomics of the same device, but not with respect to
    /// this machine's processors.
    HCA = IBV_ATOMIC_HCA "IBV_ATOMIC_HCA",
    /// They are atomic with respect to everything, this machine's processors included.
    GLOB = IBV_ATOMIC_GLOB "IBV_ATOMIC_GLOB",
}

/// A text as C's array of characters, which ends with a zero.
#[cfg(feature = "serde")]
fn c_string<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    let room = array.iter_mut().take(N.saturating_sub(1));
    for (to, from) in room.zip(text.bytes().take_while(|byte| *byte != 0)) {
        *to = c_char::from_ne_bytes([from]);
    }
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_never_negative() {
        let attr = ibv_device_attr {
            max_qp: -1,
            max_qp_wr: 16,
            ..Default::default()
        };
        let attr = DeviceAttr { attr };
        assert_eq!((attr.max_qp(), attr.max_qp_wr()), (0, 16));
        assert_eq!(attr.fw_ver(), "");
    }

    #[cfg(feature = "serde")]
    #[test]
    fn attributes_are_serde_data() {
        let attr = ibv_device_attr {
            fw_ver: c_string("1.2.3"),
            node_guid: Guid::new([1, 2, 3, 4, 5, 6, 7, 8]).to_be(),
            max_mr_size: u64::MAX,
            max_qp: 7,
            atomic_cap: verbs_sys::IBV_ATOMIC_HCA,
            phys_port_cnt: 2,
            ..Default::default()
        };
        let attr = DeviceAttr { attr };
        let json = serde_json::to_string(&attr).unwrap();
        let start = r#"{"fw_ver":"1.2.3","node_guid":"0102:0304:0506:0708","#;
        assert!(json.starts_with(start), "{json}");
        assert!(json.contains(r#""atomic_cap":"HCA""#), "{json}");
        let back: DeviceAttr = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), json);
        assert_eq!((back.max_mr_size(), back.max_qp()), (u64::MAX, 7));
    }

    #[test]
    fn limits_have_names() {
        assert!(Context::within("max_sge", 4, 4).is_ok());
        let error = Context::within("max_sge", 5, 4).unwrap_err();
        assert_eq!(error.to_string(), "max_sge 5 exceeds this device's 4");
    }
}
