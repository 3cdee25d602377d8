//! Capabilities of devices and ports, as flags.

use verbs_sys::{
    IBV_DEVICE_AUTO_PATH_MIG, IBV_DEVICE_BAD_PKEY_CNTR, IBV_DEVICE_BAD_QKEY_CNTR,
    IBV_DEVICE_CHANGE_PHY_PORT, IBV_DEVICE_CURR_QP_STATE_MOD, IBV_DEVICE_INIT_TYPE,
    IBV_DEVICE_MANAGED_FLOW_STEERING, IBV_DEVICE_MEM_MGT_EXTENSIONS, IBV_DEVICE_MEM_WINDOW,
    IBV_DEVICE_MEM_WINDOW_TYPE_2A, IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_DEVICE_N_NOTIFY_CQ,
    IBV_DEVICE_PCI_WRITE_END_PADDING, IBV_DEVICE_PORT_ACTIVE_EVENT, IBV_DEVICE_RAW_IP_CSUM,
    IBV_DEVICE_RAW_MULTI, IBV_DEVICE_RAW_SCATTER_FCS, IBV_DEVICE_RC_IP_CSUM,
    IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_RESIZE_MAX_WR, IBV_DEVICE_SHUTDOWN_PORT,
    IBV_DEVICE_SRQ_RESIZE, IBV_DEVICE_SYS_IMAGE_GUID, IBV_DEVICE_UD_AV_PORT_ENFORCE,
    IBV_DEVICE_UD_IP_CSUM, IBV_DEVICE_XRC, IBV_PORT_AUTO_MIGR_SUP, IBV_PORT_BOOT_MGMT_SUP,
    IBV_PORT_CAP_MASK_NOTICE_SUP, IBV_PORT_CAP_MASK2_SUP, IBV_PORT_CLIENT_REG_SUP, IBV_PORT_CM_SUP,
    IBV_PORT_DEVICE_MGMT_SUP, IBV_PORT_DR_NOTICE_SUP, IBV_PORT_EXTENDED_SPEEDS_SUP,
    IBV_PORT_IP_BASED_GIDS, IBV_PORT_LED_INFO_SUP, IBV_PORT_LINK_LATENCY_SUP, IBV_PORT_MKEY_NVRAM,
    IBV_PORT_NOTICE_SUP, IBV_PORT_OPT_IPD_SUP, IBV_PORT_PKEY_NVRAM,
    IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP, IBV_PORT_REINIT_SUP, IBV_PORT_SL_MAP_SUP, IBV_PORT_SM,
    IBV_PORT_SNMP_TUNNEL_SUP, IBV_PORT_SYS_IMAGE_GUID_SUP, IBV_PORT_TRAP_SUP,
    IBV_PORT_VENDOR_CLASS_SUP,
};

use verbs_sys::{
    IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_ATOMIC, IBV_ODP_SUPPORT_IMPLICIT, IBV_ODP_SUPPORT_READ,
    IBV_ODP_SUPPORT_RECV, IBV_ODP_SUPPORT_SEND, IBV_ODP_SUPPORT_SRQ_RECV, IBV_ODP_SUPPORT_WRITE,
};

use super::macros::flags_as_text;

bitflags::bitflags! {
    /// Capabilities of a device, from [`DeviceAttr::device_cap_flags`].
    ///
    /// The flags print and parse as C's names without their prefix: `RC_RNR_NAK_GEN | XRC`.
    ///
    /// [`DeviceAttr::device_cap_flags`]: crate::device::DeviceAttr::device_cap_flags
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_device_cap_flags")]
    pub struct DeviceCapFlags: u32 {
        /// The queues of a queue pair can be resized.
        #[doc(alias = "IBV_DEVICE_RESIZE_MAX_WR")]
        const RESIZE_MAX_WR = IBV_DEVICE_RESIZE_MAX_WR.0;
        /// Ports count packets with a bad P_Key.
        #[doc(alias = "IBV_DEVICE_BAD_PKEY_CNTR")]
        const BAD_PKEY_CNTR = IBV_DEVICE_BAD_PKEY_CNTR.0;
        /// Ports count packets with a bad Q_Key.
        #[doc(alias = "IBV_DEVICE_BAD_QKEY_CNTR")]
        const BAD_QKEY_CNTR = IBV_DEVICE_BAD_QKEY_CNTR.0;
        /// Raw packets can be multicast.
        #[doc(alias = "IBV_DEVICE_RAW_MULTI")]
        const RAW_MULTI = IBV_DEVICE_RAW_MULTI.0;
        /// Connections can move to another path by themselves.
        #[doc(alias = "IBV_DEVICE_AUTO_PATH_MIG")]
        const AUTO_PATH_MIG = IBV_DEVICE_AUTO_PATH_MIG.0;
        /// A queue pair can be moved to another port.
        #[doc(alias = "IBV_DEVICE_CHANGE_PHY_PORT")]
        const CHANGE_PHY_PORT = IBV_DEVICE_CHANGE_PHY_PORT.0;
        /// The port of an address handle is checked.
        #[doc(alias = "IBV_DEVICE_UD_AV_PORT_ENFORCE")]
        const UD_AV_PORT_ENFORCE = IBV_DEVICE_UD_AV_PORT_ENFORCE.0;
        /// `modify` can be given the current state.
        #[doc(alias = "IBV_DEVICE_CURR_QP_STATE_MOD")]
        const CURR_QP_STATE_MOD = IBV_DEVICE_CURR_QP_STATE_MOD.0;
        /// A port can be shut down.
        #[doc(alias = "IBV_DEVICE_SHUTDOWN_PORT")]
        const SHUTDOWN_PORT = IBV_DEVICE_SHUTDOWN_PORT.0;
        /// The subnet manager can choose how much of a port it initialises.
        #[doc(alias = "IBV_DEVICE_INIT_TYPE")]
        const INIT_TYPE = IBV_DEVICE_INIT_TYPE.0;
        /// There is an event when a port becomes ACTIVE.
        #[doc(alias = "IBV_DEVICE_PORT_ACTIVE_EVENT")]
        const PORT_ACTIVE_EVENT = IBV_DEVICE_PORT_ACTIVE_EVENT.0;
        /// The system image GUID is meaningful.
        #[doc(alias = "IBV_DEVICE_SYS_IMAGE_GUID")]
        const SYS_IMAGE_GUID = IBV_DEVICE_SYS_IMAGE_GUID.0;
        /// Reliable connections send RNR NAKs.
        #[doc(alias = "IBV_DEVICE_RC_RNR_NAK_GEN")]
        const RC_RNR_NAK_GEN = IBV_DEVICE_RC_RNR_NAK_GEN.0;
        /// Shared receive queues can be resized.
        #[doc(alias = "IBV_DEVICE_SRQ_RESIZE")]
        const SRQ_RESIZE = IBV_DEVICE_SRQ_RESIZE.0;
        /// An event can be requested after a number of completions.
        #[doc(alias = "IBV_DEVICE_N_NOTIFY_CQ")]
        const N_NOTIFY_CQ = IBV_DEVICE_N_NOTIFY_CQ.0;
        /// Memory windows of type 1.
        #[doc(alias = "IBV_DEVICE_MEM_WINDOW")]
        const MEM_WINDOW = IBV_DEVICE_MEM_WINDOW.0;
        /// IP checksums are computed for unreliable datagrams.
        #[doc(alias = "IBV_DEVICE_UD_IP_CSUM")]
        const UD_IP_CSUM = IBV_DEVICE_UD_IP_CSUM.0;
        /// Extended reliable connections.
        #[doc(alias = "IBV_DEVICE_XRC")]
        const XRC = IBV_DEVICE_XRC.0;
        /// The memory management extensions: invalidation, fast registration.
        #[doc(alias = "IBV_DEVICE_MEM_MGT_EXTENSIONS")]
        const MEM_MGT_EXTENSIONS = IBV_DEVICE_MEM_MGT_EXTENSIONS.0;
        /// Memory windows of type 2A.
        #[doc(alias = "IBV_DEVICE_MEM_WINDOW_TYPE_2A")]
        const MEM_WINDOW_TYPE_2A = IBV_DEVICE_MEM_WINDOW_TYPE_2A.0;
        /// Memory windows of type 2B.
        #[doc(alias = "IBV_DEVICE_MEM_WINDOW_TYPE_2B")]
        const MEM_WINDOW_TYPE_2B = IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
        /// IP checksums are computed for reliable connections.
        #[doc(alias = "IBV_DEVICE_RC_IP_CSUM")]
        const RC_IP_CSUM = IBV_DEVICE_RC_IP_CSUM.0;
        /// IP checksums are computed for raw packets.
        #[doc(alias = "IBV_DEVICE_RAW_IP_CSUM")]
        const RAW_IP_CSUM = IBV_DEVICE_RAW_IP_CSUM.0;
        /// Received packets can be steered by flow rules.
        #[doc(alias = "IBV_DEVICE_MANAGED_FLOW_STEERING")]
        const MANAGED_FLOW_STEERING = IBV_DEVICE_MANAGED_FLOW_STEERING.0;

        // Flags of newer libraries are kept as they are.
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Further capabilities of a device, from
    /// [`DeviceAttrEx::device_cap_flags_ex`](crate::device::DeviceAttrEx::device_cap_flags_ex).
    ///
    /// The flags print and parse as C's names without their prefix:
    /// `RAW_SCATTER_FCS | ATOMIC_WRITE`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct DeviceCapFlagsEx: u64 {
        /// The frame check sequences of raw packets can be scattered with their bytes.
        #[doc(alias = "IBV_DEVICE_RAW_SCATTER_FCS")]
        const RAW_SCATTER_FCS = IBV_DEVICE_RAW_SCATTER_FCS;
        /// Writes to memory can be padded to whole cache lines.
        #[doc(alias = "IBV_DEVICE_PCI_WRITE_END_PADDING")]
        const PCI_WRITE_END_PADDING = IBV_DEVICE_PCI_WRITE_END_PADDING;
        // The kernel's numbers, `IB_UVERBS_DEVICE_*`.
        /// The peer's memory can be flushed until all of the peer's devices see it.
        #[doc(alias = "IB_UVERBS_DEVICE_FLUSH_GLOBAL")]
        const FLUSH_GLOBAL = 1 << 38;
        /// The peer's memory can be flushed until it is persistent.
        #[doc(alias = "IB_UVERBS_DEVICE_FLUSH_PERSISTENT")]
        const FLUSH_PERSISTENT = 1 << 39;
        /// Eight bytes can be written atomically.
        #[doc(alias = "IB_UVERBS_DEVICE_ATOMIC_WRITE")]
        const ATOMIC_WRITE = 1 << 40;

        // Flags of newer libraries are kept as they are.
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Capabilities of a port, from [`PortAttr::port_cap_flags`](crate::device::PortAttr::port_cap_flags).
    /// Most are InfiniBand's.
    ///
    /// The flags print and parse as C's names without their prefix: `CM_SUP | IP_BASED_GIDS`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_port_cap_flags")]
    pub struct PortCapFlags: u32 {
        /// A subnet manager runs on this port.
        #[doc(alias = "IBV_PORT_SM")]
        const SM = IBV_PORT_SM.0;
        /// Notices.
        #[doc(alias = "IBV_PORT_NOTICE_SUP")]
        const NOTICE_SUP = IBV_PORT_NOTICE_SUP.0;
        /// Traps.
        #[doc(alias = "IBV_PORT_TRAP_SUP")]
        const TRAP_SUP = IBV_PORT_TRAP_SUP.0;
        /// Optional inter-packet delays.
        #[doc(alias = "IBV_PORT_OPT_IPD_SUP")]
        const OPT_IPD_SUP = IBV_PORT_OPT_IPD_SUP.0;
        /// Automatic path migration.
        #[doc(alias = "IBV_PORT_AUTO_MIGR_SUP")]
        const AUTO_MIGR_SUP = IBV_PORT_AUTO_MIGR_SUP.0;
        /// A table from service levels to virtual lanes.
        #[doc(alias = "IBV_PORT_SL_MAP_SUP")]
        const SL_MAP_SUP = IBV_PORT_SL_MAP_SUP.0;
        /// The M_Key is kept without power.
        #[doc(alias = "IBV_PORT_MKEY_NVRAM")]
        const MKEY_NVRAM = IBV_PORT_MKEY_NVRAM.0;
        /// The P_Key table is kept without power.
        #[doc(alias = "IBV_PORT_PKEY_NVRAM")]
        const PKEY_NVRAM = IBV_PORT_PKEY_NVRAM.0;
        /// The port's LED can be set.
        #[doc(alias = "IBV_PORT_LED_INFO_SUP")]
        const LED_INFO_SUP = IBV_PORT_LED_INFO_SUP.0;
        /// A system image GUID.
        #[doc(alias = "IBV_PORT_SYS_IMAGE_GUID_SUP")]
        const SYS_IMAGE_GUID_SUP = IBV_PORT_SYS_IMAGE_GUID_SUP.0;
        /// Traps for bad P_Keys at a switch's external ports.
        #[doc(alias = "IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP")]
        const PKEY_SW_EXT_PORT_TRAP_SUP = IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP.0;
        /// Lanes of 14 Gbit/s and more.
        #[doc(alias = "IBV_PORT_EXTENDED_SPEEDS_SUP")]
        const EXTENDED_SPEEDS_SUP = IBV_PORT_EXTENDED_SPEEDS_SUP.0;
        /// There are more flags: [`port_cap_flags2`](crate::device::PortAttr::port_cap_flags2).
        #[doc(alias = "IBV_PORT_CAP_MASK2_SUP")]
        const CAP_MASK2_SUP = IBV_PORT_CAP_MASK2_SUP.0;
        /// A communication manager runs on this port.
        #[doc(alias = "IBV_PORT_CM_SUP")]
        const CM_SUP = IBV_PORT_CM_SUP.0;
        /// SNMP in management packets.
        #[doc(alias = "IBV_PORT_SNMP_TUNNEL_SUP")]
        const SNMP_TUNNEL_SUP = IBV_PORT_SNMP_TUNNEL_SUP.0;
        /// The port can be initialised again.
        #[doc(alias = "IBV_PORT_REINIT_SUP")]
        const REINIT_SUP = IBV_PORT_REINIT_SUP.0;
        /// Device management.
        #[doc(alias = "IBV_PORT_DEVICE_MGMT_SUP")]
        const DEVICE_MGMT_SUP = IBV_PORT_DEVICE_MGMT_SUP.0;
        /// Management packets of the vendor's own.
        #[doc(alias = "IBV_PORT_VENDOR_CLASS_SUP")]
        const VENDOR_CLASS_SUP = IBV_PORT_VENDOR_CLASS_SUP.0;
        /// Notices of directed routes.
        #[doc(alias = "IBV_PORT_DR_NOTICE_SUP")]
        const DR_NOTICE_SUP = IBV_PORT_DR_NOTICE_SUP.0;
        /// Notices of changed capabilities.
        #[doc(alias = "IBV_PORT_CAP_MASK_NOTICE_SUP")]
        const CAP_MASK_NOTICE_SUP = IBV_PORT_CAP_MASK_NOTICE_SUP.0;
        /// Boot management.
        #[doc(alias = "IBV_PORT_BOOT_MGMT_SUP")]
        const BOOT_MGMT_SUP = IBV_PORT_BOOT_MGMT_SUP.0;
        /// The latency of the link is measured.
        #[doc(alias = "IBV_PORT_LINK_LATENCY_SUP")]
        const LINK_LATENCY_SUP = IBV_PORT_LINK_LATENCY_SUP.0;
        /// Clients can be registered again.
        #[doc(alias = "IBV_PORT_CLIENT_REG_SUP")]
        const CLIENT_REG_SUP = IBV_PORT_CLIENT_REG_SUP.0;
        /// GIDs are made from IP addresses.
        #[doc(alias = "IBV_PORT_IP_BASED_GIDS")]
        const IP_BASED_GIDS = IBV_PORT_IP_BASED_GIDS.0;

        // Flags of newer libraries are kept as they are.
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Further capabilities of a port, from
    /// [`PortAttr::port_cap_flags2`](crate::device::PortAttr::port_cap_flags2). All are InfiniBand's.
    ///
    /// The flags print and parse as C's names without their prefix:
    /// `LINK_WIDTH_2X_SUP | LINK_SPEED_HDR_SUP`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_port_cap_flags2")]
    pub struct PortCapFlags2: u16 {
        /// The description of the node can be set.
        #[doc(alias = "IBV_PORT_SET_NODE_DESC_SUP")]
        const SET_NODE_DESC_SUP = 1 << 0;
        /// Extended information about the port.
        #[doc(alias = "IBV_PORT_INFO_EXT_SUP")]
        const INFO_EXT_SUP = 1 << 1;
        /// Virtual ports.
        #[doc(alias = "IBV_PORT_VIRT_SUP")]
        const VIRT_SUP = 1 << 2;
        /// A table of the states of a switch's ports.
        #[doc(alias = "IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP")]
        const SWITCH_PORT_STATE_TABLE_SUP = 1 << 3;
        /// Links of two lanes.
        #[doc(alias = "IBV_PORT_LINK_WIDTH_2X_SUP")]
        const LINK_WIDTH_2X_SUP = 1 << 4;
        /// Lanes of 50 Gbit/s.
        #[doc(alias = "IBV_PORT_LINK_SPEED_HDR_SUP")]
        const LINK_SPEED_HDR_SUP = 1 << 5;
        /// Lanes of 100 Gbit/s.
        #[doc(alias = "IBV_PORT_LINK_SPEED_NDR_SUP")]
        const LINK_SPEED_NDR_SUP = 1 << 10;

        // Flags of newer libraries are kept as they are.
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Whether a device can fault pages in instead of having them pinned (on-demand paging), from
    /// [`DeviceAttrEx::odp_caps`](crate::device::DeviceAttrEx::odp_caps).
    ///
    /// The flags print and parse as C's names without their prefix: `SUPPORT | SUPPORT_IMPLICIT`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_odp_general_caps")]
    pub struct OdpCaps: u64 {
        /// The device can do this: regions may have [`ON_DEMAND`](crate::AccessFlags::ON_DEMAND).
        #[doc(alias = "IBV_ODP_SUPPORT")]
        const SUPPORT = IBV_ODP_SUPPORT.0 as u64;
        /// One region can be over the whole address space.
        #[doc(alias = "IBV_ODP_SUPPORT_IMPLICIT")]
        const SUPPORT_IMPLICIT = IBV_ODP_SUPPORT_IMPLICIT.0 as u64;

        // Flags of newer libraries are kept as they are.
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Which requests of a transport may name memory that is paged on demand, from
    /// [`DeviceAttrEx::rc_odp_caps`](crate::device::DeviceAttrEx::rc_odp_caps) and similar functions.
    ///
    /// The flags print and parse as C's names without their prefix: `SUPPORT_SEND | SUPPORT_RECV`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_odp_transport_cap_bits")]
    pub struct OdpTransportCaps: u32 {
        /// Sends.
        #[doc(alias = "IBV_ODP_SUPPORT_SEND")]
        const SUPPORT_SEND = IBV_ODP_SUPPORT_SEND.0;
        /// Receives.
        #[doc(alias = "IBV_ODP_SUPPORT_RECV")]
        const SUPPORT_RECV = IBV_ODP_SUPPORT_RECV.0;
        /// Writes.
        #[doc(alias = "IBV_ODP_SUPPORT_WRITE")]
        const SUPPORT_WRITE = IBV_ODP_SUPPORT_WRITE.0;
        /// Reads.
        #[doc(alias = "IBV_ODP_SUPPORT_READ")]
        const SUPPORT_READ = IBV_ODP_SUPPORT_READ.0;
        /// Atomics.
        #[doc(alias = "IBV_ODP_SUPPORT_ATOMIC")]
        const SUPPORT_ATOMIC = IBV_ODP_SUPPORT_ATOMIC.0;
        /// Receives of a shared receive queue.
        #[doc(alias = "IBV_ODP_SUPPORT_SRQ_RECV")]
        const SUPPORT_SRQ_RECV = IBV_ODP_SUPPORT_SRQ_RECV.0;

        // Flags of newer libraries are kept as they are.
        const _ = !0;
    }
}

flags_as_text!(DeviceCapFlags(u32), "IBV_DEVICE_");
flags_as_text!(PortCapFlags(u32), "IBV_PORT_");
flags_as_text!(DeviceCapFlagsEx(u64), "IBV_DEVICE_");
flags_as_text!(PortCapFlags2(u16), "IBV_PORT_");
flags_as_text!(OdpCaps(u64), "IBV_ODP_");
flags_as_text!(OdpTransportCaps(u32), "IBV_ODP_");

#[cfg(test)]
mod tests {
    use verbs_sys::{
        IBV_PORT_INFO_EXT_SUP, IBV_PORT_LINK_SPEED_HDR_SUP, IBV_PORT_LINK_WIDTH_2X_SUP,
        IBV_PORT_SET_NODE_DESC_SUP, IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP, IBV_PORT_VIRT_SUP,
    };

    use super::*;

    #[test]
    fn capabilities_print_and_parse_as_c_names() {
        let flags = DeviceCapFlags::XRC | DeviceCapFlags::RC_RNR_NAK_GEN;
        assert_eq!(flags.to_string(), "RC_RNR_NAK_GEN | XRC");
        assert_eq!("ibv_device_xrc|rc_rnr_nak_gen".parse(), Ok(flags));
        let error = "XRC | 5G".parse::<DeviceCapFlags>().unwrap_err();
        assert_eq!(
            (error.names().len(), error.names()[0]),
            (24, "RESIZE_MAX_WR")
        );
        let flags = PortCapFlags::from_bits_retain(1 << 16 | 1 << 31);
        assert_eq!(
            flags.to_string(),
            "CM_SUP | 0x80000000",
            "of a newer library"
        );
        assert_eq!("CM_SUP | 0x80000000".parse(), Ok(flags));
        assert_eq!(PortCapFlags::empty().to_string(), "0");
        let flags = OdpTransportCaps::SUPPORT_RECV | OdpTransportCaps::from_bits_retain(1 << 20);
        assert_eq!(flags.to_string(), "SUPPORT_RECV | 0x100000");
        assert_eq!("ibv_odp_support".parse(), Ok(OdpCaps::SUPPORT));
        let flags = DeviceCapFlagsEx::ATOMIC_WRITE | DeviceCapFlagsEx::from_bits_retain(1 << 60);
        assert_eq!(flags.to_string(), "ATOMIC_WRITE | 0x1000000000000000");
        let flags = PortCapFlags2::LINK_SPEED_NDR_SUP | PortCapFlags2::VIRT_SUP;
        assert_eq!(flags.to_string(), "VIRT_SUP | LINK_SPEED_NDR_SUP");
        assert_eq!("ibv_port_virt_sup | 0x400".parse(), Ok(flags));
    }

    #[test]
    fn second_word_of_a_port_has_the_numbers_of_c() {
        for (flag, constant) in [
            (PortCapFlags2::SET_NODE_DESC_SUP, IBV_PORT_SET_NODE_DESC_SUP),
            (PortCapFlags2::INFO_EXT_SUP, IBV_PORT_INFO_EXT_SUP),
            (PortCapFlags2::VIRT_SUP, IBV_PORT_VIRT_SUP),
            (
                PortCapFlags2::SWITCH_PORT_STATE_TABLE_SUP,
                IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP,
            ),
            (PortCapFlags2::LINK_WIDTH_2X_SUP, IBV_PORT_LINK_WIDTH_2X_SUP),
            (
                PortCapFlags2::LINK_SPEED_HDR_SUP,
                IBV_PORT_LINK_SPEED_HDR_SUP,
            ),
        ] {
            assert_eq!(u32::from(flag.bits()), constant.0, "{flag}");
        }
    }
}
