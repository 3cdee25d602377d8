//! Links: the states, the layer, the width and the speed of a port's link.

use super::macros::open_enum;

open_enum! {
    /// The state of a port's logical link.
    #[doc(alias = "ibv_port_state_str")]
    PortState(u32), "ibv_port_state";
    /// No change: only in requests to change the state.
    NOP = IBV_PORT_NOP "IBV_PORT_NOP",
    /// No link: check the cable and the other end.
    DOWN = IBV_PORT_DOWN "IBV_PORT_DOWN",
    /// The link is up, but no subnet manager has configured it: start one.
    INIT = IBV_PORT_INIT "IBV_PORT_INIT",
    /// The link is configured, but not yet allowed to carry data.
    ARMED = IBV_PORT_ARMED "IBV_PORT_ARMED",
    /// The link is usable.
    ACTIVE = IBV_PORT_ACTIVE "IBV_PORT_ACTIVE",
    /// The link is being restored.
    ACTIVE_DEFER = IBV_PORT_ACTIVE_DEFER "IBV_PORT_ACTIVE_DEFER",
}

open_enum! {
    /// The link layer of a port.
    LinkLayer(u8), "link_layer";
    /// The driver does not report it. Treat it as InfiniBand.
    UNSPECIFIED = 0 "IBV_LINK_LAYER_UNSPECIFIED" "Unspecified",
    /// InfiniBand: addressed by LID, within a subnet.
    INFINIBAND = 1 "IBV_LINK_LAYER_INFINIBAND" "InfiniBand",
    /// Ethernet: RoCE, addressed by GID.
    ETHERNET = 2 "IBV_LINK_LAYER_ETHERNET" "Ethernet",
}

open_enum! {
    /// How many lanes a link has.
    LinkWidth(u8), "active_width";
    /// One lane.
    X1 = 1 "IB_WIDTH_1X" "1X",
    /// Two lanes.
    X2 = 16 "IB_WIDTH_2X" "2X",
    /// Four lanes.
    X4 = 2 "IB_WIDTH_4X" "4X",
    /// Eight lanes.
    X8 = 4 "IB_WIDTH_8X" "8X",
    /// Twelve lanes.
    X12 = 8 "IB_WIDTH_12X" "12X",
}

impl LinkWidth {
    /// The number of lanes; `None` for an unknown code.
    #[must_use]
    pub const fn lanes(self) -> Option<u32> {
        match self {
            Self::X1 => Some(1),
            Self::X2 => Some(2),
            Self::X4 => Some(4),
            Self::X8 => Some(8),
            Self::X12 => Some(12),
            _ => None,
        }
    }
}

open_enum! {
    /// The speed of each lane of a link.
    ///
    /// Ethernet devices report the code of the nearest InfiniBand speed.
    LinkSpeed(u8), "active_speed";
    /// Single data rate: 2.5 Gbit/s.
    SDR = 1 "IB_SPEED_SDR" "2.5 Gbps",
    /// Double data rate: 5 Gbit/s.
    DDR = 2 "IB_SPEED_DDR" "5.0 Gbps",
    /// Quad data rate: 10 Gbit/s.
    QDR = 4 "IB_SPEED_QDR" "10.0 Gbps",
    /// Fourteen data rate at 10 Gbit/s.
    FDR10 = 8 "IB_SPEED_FDR10" "10.0 Gbps",
    /// Fourteen data rate: 14 Gbit/s.
    FDR = 16 "IB_SPEED_FDR" "14.0 Gbps",
    /// Enhanced data rate: 25 Gbit/s.
    EDR = 32 "IB_SPEED_EDR" "25.0 Gbps",
    /// High data rate: 50 Gbit/s.
    HDR = 64 "IB_SPEED_HDR" "50.0 Gbps",
    /// Next data rate: 100 Gbit/s.
    NDR = 128 "IB_SPEED_NDR" "100.0 Gbps",
}

impl LinkSpeed {
    /// The speed in Mbit/s; `None` for an unknown code.
    #[must_use]
    pub const fn mbit_per_s(self) -> Option<u32> {
        match self {
            Self::SDR => Some(2_500),
            Self::DDR => Some(5_000),
            Self::QDR | Self::FDR10 => Some(10_000),
            Self::FDR => Some(14_000),
            Self::EDR => Some(25_000),
            Self::HDR => Some(50_000),
            Self::NDR => Some(100_000),
            _ => None,
        }
    }
}

open_enum! {
    /// The state of a port's physical link.
    PhysState(u8), "phys_state";
    /// The port sleeps until the other end of the link is found.
    SLEEP = 1 "IB_PORT_PHYS_STATE_SLEEP",
    /// The port looks for the other end of the link.
    POLLING = 2 "IB_PORT_PHYS_STATE_POLLING",
    /// The port is disabled.
    DISABLED = 3 "IB_PORT_PHYS_STATE_DISABLED",
    /// Configuring the link with the other end.
    PORT_CONFIGURATION_TRAINING = 4 "IB_PORT_PHYS_STATE_PORT_CONFIGURATION_TRAINING",
    /// Up.
    LINK_UP = 5 "IB_PORT_PHYS_STATE_LINK_UP",
    /// Recovering from errors on the link.
    LINK_ERROR_RECOVERY = 6 "IB_PORT_PHYS_STATE_LINK_ERROR_RECOVERY",
    /// Under test.
    PHY_TEST = 7 "IB_PORT_PHYS_STATE_PHY_TEST",
}

#[cfg(test)]
mod tests {
    #[test]
    fn link_layers_are_those_of_c() {
        let c = [
            verbs_sys::IBV_LINK_LAYER_UNSPECIFIED,
            verbs_sys::IBV_LINK_LAYER_INFINIBAND,
            verbs_sys::IBV_LINK_LAYER_ETHERNET,
        ];
        assert_eq!(c, [0, 1, 2]);
    }
}
