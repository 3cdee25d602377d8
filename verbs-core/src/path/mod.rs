//! Paths: how packets get from one port to another.

mod address_handle;
mod datagram_endpoint;
mod qkey;
pub(crate) mod wire;

use std::fmt;

use verbs_sys::{ibv_ah_attr, ibv_global_route};

pub use address_handle::AddressHandle;
pub use datagram_endpoint::{DatagramEndpoint, DatagramEndpointBuilder};
pub use qkey::QKey;

use crate::codes::{Gid, GidType, MaximumTransferUnit, PortState};
use crate::device::{Context, Device, GidEntry};
use crate::error::causes::PathFacts;
use crate::error::{EndpointError, Error, Result};

/// An address vector: the destination of packets and the path to it.
///
/// Everything that is not set is 0.
#[derive(Clone, Copy, Default)]
#[doc(alias = "ibv_ah_attr")]
pub struct AhAttr {
    attr: ibv_ah_attr,
}

impl AhAttr {
    /// An address vector for packets from this port, without a destination yet.
    #[must_use]
    pub fn new(port_num: u8) -> Self {
        let attr = ibv_ah_attr {
            port_num,
            ..Default::default()
        };
        Self { attr }
    }

    /// Sets the destination: the port with this LID (InfiniBand).
    #[must_use]
    pub const fn dlid(mut self, dlid: u16) -> Self {
        self.attr.dlid = dlid;
        self
    }

    /// Sets the destination: the port with this GID. Packets have a global routing header (GRH).
    ///
    /// This is required on RoCE. `sgid_index` is the index of this side's GID.
    #[must_use]
    #[doc(alias = "is_global")]
    #[doc(alias = "ibv_global_route")]
    pub const fn grh(mut self, dgid: Gid, sgid_index: u8, hop_limit: u8) -> Self {
        self.attr.is_global = 1;
        self.attr.grh = ibv_global_route {
            dgid: dgid.as_raw(),
            flow_label: self.attr.grh.flow_label,
            sgid_index,
            hop_limit,
            traffic_class: self.attr.grh.traffic_class,
        };
        self
    }

    /// Sets the GRH's traffic class. On RoCE v2 its upper six bits are the DSCP.
    #[must_use]
    pub const fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.attr.grh.traffic_class = traffic_class;
        self
    }

    /// Sets the GRH's flow label, 20 bits. Higher bits are ignored.
    #[must_use]
    pub const fn flow_label(mut self, flow_label: u32) -> Self {
        self.attr.grh.flow_label = flow_label & 0xf_ffff;
        self
    }

    /// Sets the service level, 0 to 15.
    #[must_use]
    pub const fn sl(mut self, sl: u8) -> Self {
        self.attr.sl = sl;
        self
    }

    /// Sets which of this side's LIDs to send from, if the port has several.
    #[must_use]
    pub const fn src_path_bits(mut self, src_path_bits: u8) -> Self {
        self.attr.src_path_bits = src_path_bits;
        self
    }

    /// Sets the highest rate to send at, as a code of `enum ibv_rate`; 0 is the port's own rate.
    #[must_use]
    #[doc(alias = "ibv_rate")]
    pub const fn static_rate(mut self, static_rate: u8) -> Self {
        self.attr.static_rate = static_rate;
        self
    }

    /// C's struct.
    #[must_use]
    pub const fn as_raw(&self) -> &ibv_ah_attr {
        &self.attr
    }

    pub(crate) const fn as_raw_mut(&mut self) -> *mut ibv_ah_attr {
        &raw mut self.attr
    }

    /// The destination's GID and the index of this side's, if packets have a GRH.
    pub(crate) fn gids(&self) -> Option<(Gid, u8)> {
        let grh = &self.attr.grh;
        (self.attr.is_global != 0).then(|| (Gid::from_raw(grh.dgid), grh.sgid_index))
    }

    pub(crate) const fn from_raw(attr: ibv_ah_attr) -> Self {
        Self { attr }
    }
}

impl fmt::Debug for AhAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("AhAttr");
        debug.field("port_num", &self.attr.port_num);
        if self.attr.is_global == 0 {
            debug.field("dlid", &self.attr.dlid);
        } else {
            debug
                .field("dgid", &Gid::from_raw(self.attr.grh.dgid))
                .field("sgid_index", &self.attr.grh.sgid_index);
        }
        debug.field("sl", &self.attr.sl).finish_non_exhaustive()
    }
}

/// Choices for the paths of a queue pair: the port and the GID they start from, and fields of each
/// packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) port_num: Option<u8>,
    pub(crate) gid_index: Option<u8>,
    pub(crate) pkey_index: Option<u16>,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) traffic_class: u8,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
}

impl Route {
    /// Rejects numbers that their fields cannot hold.
    pub(crate) fn check(&self) -> Result<()> {
        check_range("sl", self.sl.into(), 0, 15)?;
        check_range("flow_label", self.flow_label, 0, 0xf_ffff)
    }

    /// Chooses this side's end.
    pub(crate) fn local(&self, context: &Context) -> Result<LocalPath> {
        let mut path = LocalPath::choose(context, self.port_num, self.gid_index)?;
        path.pkey_index = match self.pkey_index {
            // Some drivers take any index, and others refuse the state change without a reason.
            Some(index) => {
                let last = path.pkey_tbl_len.max(1) - 1;
                check_range("pkey_index", index.into(), 0, last.into()).map(|()| index)?
            }
            None => best_pkey(context, path.port_num, path.pkey_tbl_len),
        };
        // Not all drivers have P_Keys. 0 is an empty entry.
        let pkey = context.query_pkey(path.port_num, path.pkey_index).ok();
        path.pkey = pkey.filter(|pkey| *pkey != 0);
        Ok(path)
    }

    /// The index at which the P_Key is now that this side's end was chosen with: a subnet manager may sort the
    /// table anew.
    pub(crate) fn pkey_index(&self, context: &Context, local: &LocalPath) -> Result<u16> {
        let (port_num, index) = (local.port_num, local.pkey_index);
        match local.pkey {
            Some(pkey)
                if !context
                    .query_pkey(port_num, index)
                    .is_ok_and(|now| now == pkey) =>
            {
                let moved = context.pkey_index(port_num, pkey);
                moved.ok_or(Error::PkeyRemoved {
                    port: port_num,
                    pkey,
                })
            }
            _ => Ok(index),
        }
    }

    /// This side's end of the path to a peer's GID: unless a GID was set, with one of the same kind, if the table
    /// has one. Packets with headers of IPv4 lead to IPv4 addresses only.
    pub(crate) fn toward(
        &self,
        dgid: Option<Gid>,
        mut local: LocalPath,
        context: &Context,
    ) -> LocalPath {
        if let (Some(ours), Some(dgid), None) = (local.gid, dgid, self.gid_index)
            && ours.gid_type() != GidType::IB
            && ours.gid().is_ipv4() != dgid.is_ipv4()
            && let Ok(table) = context.gid_table(local.port_num)
        {
            let is_alike = |entry: &GidEntry| {
                entry.gid_type() == ours.gid_type() && entry.gid().leads_to(dgid)
            };
            let alike = table.into_iter().filter(is_alike);
            local.gid = alike.min_by_key(GidEntry::rank).or(local.gid);
        }
        local
    }

    /// The address vector from this side's end to a peer's port, with the index at which this side's GID is now.
    pub(crate) fn attr_to(
        &self,
        context: &Context,
        local: &LocalPath,
        dlid: u16,
        dgid: Option<Gid>,
    ) -> Result<AhAttr> {
        let attr = AhAttr::new(local.port_num)
            .sl(self.sl)
            .src_path_bits(self.src_path_bits)
            .static_rate(self.static_rate)
            .dlid(dlid);
        match (&local.gid, dgid) {
            (Some(sgid), Some(dgid)) => Ok(attr
                .grh(dgid, context.gid_index(sgid)?, self.hop_limit)
                .traffic_class(self.traffic_class)
                .flow_label(self.flow_label)),
            (Some(_), None) => Err(EndpointError::NoGid.into()),
            (None, _) if dlid == 0 => Err(EndpointError::NoLid.into()),
            (None, _) => Ok(attr),
        }
    }
}

/// Rejects a number outside the range of its field.
pub(crate) fn check_range(what: &'static str, value: u32, min: u32, max: u32) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::OutOfRange {
        what,
        value: value.into(),
        min: min.into(),
        max: max.into(),
    })
}

impl Context {
    /// Facts of a path that was rejected, as far as they can be found out.
    pub(crate) fn path_facts(&self, attr: &AhAttr) -> PathFacts {
        let (port_num, gids) = (attr.as_raw().port_num, attr.gids());
        let port = self.query_port(port_num).ok();
        let table = self.gid_table(port_num).unwrap_or_default();
        let local = gids.and_then(|(_, index)| table.iter().find(|own| own.gid_index() == index));
        let remote = gids.map(|(remote, _)| remote);
        let is_alike = |own: &&GidEntry| {
            let is_same_type = local.is_some_and(|local| local.gid_type() == own.gid_type());
            is_same_type && remote.is_some_and(|remote| own.gid().leads_to(remote))
        };
        let alike = table.iter().filter(is_alike).min_by_key(|own| own.rank());
        PathFacts {
            port_num,
            state: port.map(|port| port.state()),
            needs_grh: port.is_some_and(|port| port.needs_grh()),
            sgid_index: gids.map(|(_, index)| index),
            local: local.map(|local| (local.gid(), local.gid_type())),
            remote,
            alike: alike.map(GidEntry::gid_index),
            ..PathFacts::default()
        }
    }

    /// Opens the first device that can be used: it has an ACTIVE port, and a GID there if packets need one.
    ///
    /// If there is none, it opens the first device with an ACTIVE port.
    ///
    /// To choose a device by its name, use [`Device::by_name`](crate::Device::by_name) and
    /// [`Device::open`](crate::Device::open).
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] or [`Error::NoActivePort`]. If a device could not be opened or queried, and no other has
    /// an ACTIVE port, the error of the first.
    pub fn first_active() -> Result<Self> {
        let (mut refused, mut without_gid) = (None, None);
        for device in Device::some()? {
            let active = device
                .open()
                .and_then(|context| Ok((context.active_port()?, context)));
            match active {
                Ok((Some(_port), context)) if LocalPath::choose(&context, None, None).is_ok() => {
                    return Ok(context);
                }
                Ok((Some(_port), context)) => without_gid = without_gid.or(Some(context)),
                Ok((None, _)) => {}
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        without_gid.ok_or_else(|| {
            refused.unwrap_or_else(|| Error::NoActivePort {
                device: "any device".into(),
            })
        })
    }
}

/// Where this side's packets come from: chosen once, when a queue pair is prepared.
///
/// The choices are the GID and the P_Key. Their indices change with the tables, so they are looked up when they
/// are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalPath {
    pub(crate) port_num: u8,
    pub(crate) lid: u16,
    pub(crate) gid: Option<GidEntry>,
    /// `None` if it could not be read.
    pub(crate) pkey: Option<u16>,
    pub(crate) active_mtu: MaximumTransferUnit,
    pub(crate) max_msg_sz: u32,
    /// How many P_Keys the port's table has.
    pub(crate) pkey_tbl_len: u16,
    pub(crate) pkey_index: u16,
}

impl LocalPath {
    /// The port and GID that were asked for, or those that suit best: the first ACTIVE port, of those that have a
    /// GID if packets need one, and the GID that [`GidEntry::rank`] puts first.
    pub(crate) fn choose(
        context: &Context,
        port_num: Option<u8>,
        gid_index: Option<u8>,
    ) -> Result<Self> {
        if let Some(port_num) = port_num {
            return Self::at(context, port_num, gid_index);
        }
        let (mut first, mut any) = (None, None);
        for port_num in context.ports()? {
            match Self::at(context, port_num, gid_index) {
                Ok(path) => return Ok(path),
                Err(Error::PortNotActive { .. }) => {}
                // A port that is ACTIVE, and lacks a GID, is nearer to working than one that cannot be queried.
                Err(error @ (Error::NoGid { .. } | Error::EmptyGid { .. })) => {
                    first = first.or(Some(error));
                }
                Err(error) => any = any.or(Some(error)),
            }
        }
        Err(first.or(any).unwrap_or_else(|| no_active_port(context)))
    }

    fn at(context: &Context, port_num: u8, gid_index: Option<u8>) -> Result<Self> {
        let port = context.query_port(port_num)?;
        if port.state() != PortState::ACTIVE {
            return Err(Error::PortNotActive {
                port: port_num,
                state: port.state(),
            });
        }
        let gid = match gid_index {
            Some(index) => Some(context.query_gid(port_num, index)?),
            None if port.needs_grh() => Some(best(context, port_num)?),
            None => None,
        };
        Ok(Self {
            port_num,
            lid: port.lid(),
            gid,
            pkey: None,
            active_mtu: port.active_mtu().unwrap_or(MaximumTransferUnit::Mtu1024),
            max_msg_sz: longest_message(port.max_msg_sz()),
            pkey_tbl_len: port.pkey_tbl_len(),
            pkey_index: 0,
        })
    }

    /// The index that this side's GID had when it was chosen.
    pub(crate) fn sgid_index(&self) -> Option<u8> {
        self.gid.as_ref().map(GidEntry::gid_index)
    }
}

fn best(context: &Context, port_num: u8) -> Result<GidEntry> {
    let table = context.gid_table(port_num)?;
    let best = table.into_iter().min_by_key(GidEntry::rank);
    best.ok_or(Error::NoGid { port: port_num })
}

/// The index of the first P_Key with full membership. Two limited members cannot reach each other: such a key is
/// taken only if there is no other, and one of no partition never.
fn best_pkey(context: &Context, port_num: u8, pkey_tbl_len: u16) -> u16 {
    const FULL: u16 = 0x8000;
    let mut limited = None;
    for index in 0..pkey_tbl_len {
        match context.query_pkey(port_num, index) {
            Ok(pkey) if pkey & !FULL == 0 => {}
            Ok(pkey) if pkey & FULL != 0 => return index,
            Ok(_) => limited = limited.or(Some(index)),
            // The table is shorter than the port reports.
            Err(_) => break,
        }
    }
    limited.unwrap_or(0)
}

/// A port's limit, which a driver may leave out; no transport has messages above 2 GiB.
fn longest_message(max_msg_sz: u32) -> u32 {
    const MAX: u32 = 1 << 31;
    match max_msg_sz {
        0 => MAX,
        max => max.min(MAX),
    }
}

fn no_active_port(context: &Context) -> Error {
    Error::NoActivePort {
        device: context.device().name().into(),
    }
}
