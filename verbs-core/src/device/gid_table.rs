//! The GID table of a port.
#![expect(unsafe_code, reason = "lets C fill in `ibv_gid_entry`")]

use std::ffi::{CStr, c_char};

use verbs_sys::{ibv_gid_entry, ibv_query_gid_table};

use super::context::Context;
use crate::codes::macros::man;
use crate::codes::{Gid, GidType};
use crate::error::{Error, Result};
use crate::ffi::ret;

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[doc(alias = "ibv_gid_entry")]
pub struct GidEntry {
    gid: Gid,
    gid_index: u8,
    port_num: u8,
    gid_type: GidType,
    ndev_ifindex: u32,
}

impl GidEntry {
    /// The GID.
    #[must_use]
    pub const fn gid(&self) -> Gid {
        self.gid
    }

    /// Its index in the table.
    #[must_use]
    pub const fn gid_index(&self) -> u8 {
        self.gid_index
    }

    /// The port whose table it is in.
    #[must_use]
    pub const fn port_num(&self) -> u8 {
        self.port_num
    }

    /// The format of packets with this GID.
    #[must_use]
    pub const fn gid_type(&self) -> GidType {
        self.gid_type
    }

    /// The index of the network interface behind the GID; 0 if there is none.
    #[must_use]
    pub const fn ndev_ifindex(&self) -> u32 {
        self.ndev_ifindex
    }

    /// The name of the network interface behind the GID; `None` if there is none.
    ///
    /// Each network namespace counts its interfaces by itself. If that of the GID is in another namespace, this may
    /// be the name of another interface: compare the [`gid`](Self::gid) with the interface's address.
    #[must_use]
    pub fn netdev(&self) -> Option<String> {
        let mut name: [c_char; libc::IF_NAMESIZE] = [0; libc::IF_NAMESIZE];
        // SAFETY: `name` is a local of the size the call requires.
        let found = unsafe { libc::if_indextoname(self.ndev_ifindex, name.as_mut_ptr()) };
        if found.is_null() {
            return None;
        }
        // SAFETY: the call wrote a C string into `name`.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Some(name.to_string_lossy().into_owned())
    }

    /// Its rank as the default: RoCE v2 before v1, an address that reaches further before a link-local one, IPv4
    /// before IPv6, a lower index before a higher.
    ///
    /// IPv4 first, whatever the order of the table is: two hosts that have both reach each other only if they
    /// choose the same.
    pub(crate) fn rank(&self) -> impl Ord + use<> {
        let old = self.gid_type != GidType::ROCE_V2;
        (
            old,
            self.gid.confinement(),
            !self.gid.is_ipv4(),
            self.gid_index,
        )
    }

    /// Whether packets from `other` are those from this GID, at whatever index the two are.
    ///
    /// A link-local address says nothing without its interface. Others belong to this machine, and an interface
    /// that was made again has another number.
    fn is_same(&self, other: &Self) -> bool {
        let is_same_netdev = self.ndev_ifindex == other.ndev_ifindex;
        (self.gid, self.gid_type, self.port_num) == (other.gid, other.gid_type, other.port_num)
            && (is_same_netdev || !self.gid.is_link_local())
    }

    fn from_raw(entry: &ibv_gid_entry) -> Option<Self> {
        Some(Self {
            gid: Gid::from_raw(entry.gid),
            gid_index: u8::try_from(entry.gid_index).ok()?,
            port_num: u8::try_from(entry.port_num).ok()?,
            gid_type: GidType::from_raw(entry.gid_type),
            ndev_ifindex: entry.ndev_ifindex,
        })
    }
}

impl Context {
    /// The entries of a port's GID table, without empty ones.
    ///
    /// Entries after index 255 are left out. An address vector has eight bits for the index, so no queue
    /// pair can use them.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] if there is no such port, otherwise the errno.
    #[doc = man!("ibv_query_gid_table")]
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_table(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        let mut room = 0;
        for port in self.ports()? {
            room += self.query_port(port)?.gid_tbl_len() as usize;
        }
        if let Some(error) = self.unknown_port(port_num) {
            return Err(error);
        }
        let mut entries = vec![ibv_gid_entry::default(); room];
        let first = entries.as_mut_ptr();
        // SAFETY: the context is open, and `entries` has room for `room` of them.
        let ret = unsafe { ibv_query_gid_table(self.as_ptr(), first, room, 0) };
        entries.truncate(ret::count("ibv_query_gid_table", ret)?);
        let entries = entries.iter().filter_map(GidEntry::from_raw);
        let entries = entries.filter(|entry| entry.port_num == port_num && !entry.gid.is_zero());
        Ok(entries.collect())
    }

    /// The entry at an index of a port's GID table.
    ///
    /// # Errors
    ///
    /// [`Error::EmptyGid`] if the entry is empty, with the indices that are filled. Otherwise as
    /// [`gid_table`](Self::gid_table).
    #[doc(alias = "ibv_query_gid")]
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn query_gid(&self, port_num: u8, index: u8) -> Result<GidEntry> {
        let table = self.gid_table(port_num)?;
        let found = table.iter().find(|entry| entry.gid_index == index);
        found.copied().ok_or_else(|| Error::EmptyGid {
            port: port_num,
            index,
            filled: table.iter().map(GidEntry::gid_index).collect(),
        })
    }
}

impl Context {
    /// The index at which a GID is now. An address that was removed and added again has most often another index.
    pub(crate) fn gid_index(&self, entry: &GidEntry) -> Result<u8> {
        let table = self.gid_table(entry.port_num)?;
        let same = table.iter().filter(|found| found.is_same(entry));
        let index = same.map(|found| {
            let is_other_netdev = found.ndev_ifindex != entry.ndev_ifindex;
            (
                is_other_netdev,
                found.gid_index != entry.gid_index,
                found.gid_index,
            )
        });
        let (.., index) = index.min().ok_or(Error::GidRemoved {
            port: entry.port_num,
            gid: entry.gid,
        })?;
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: &str, gid_type: GidType, gid_index: u8) -> GidEntry {
        GidEntry {
            gid: address.parse().unwrap(),
            gid_index,
            port_num: 1,
            gid_type,
            ndev_ifindex: 0,
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_table_is_serde_data() {
        let entry = entry("fe80::1", GidType::ROCE_V2, 1);
        let json = serde_json::to_string(&entry).unwrap();
        assert_eq!(
            json,
            r#"{"gid":"fe80::1","gid_index":1,"port_num":1,"gid_type":"RoCE v2","ndev_ifindex":0}"#
        );
        assert_eq!(serde_json::from_str::<GidEntry>(&json).unwrap(), entry);
    }

    #[test]
    fn a_routable_roce_v2_gid_ranks_first() {
        let mut table = [
            entry("fe80::1", GidType::ROCE_V1, 0),
            entry("fe80::1", GidType::ROCE_V2, 1),
            entry("::ffff:10.0.0.1", GidType::ROCE_V1, 2),
            entry("2001:db8::1", GidType::ROCE_V2, 5),
            entry("::ffff:10.0.0.1", GidType::ROCE_V2, 7),
            entry("::ffff:169.254.0.1", GidType::ROCE_V2, 3),
            entry("::ffff:127.0.0.1", GidType::ROCE_V2, 4),
        ];
        table.sort_by_key(GidEntry::rank);
        let order: Vec<u8> = table.iter().map(GidEntry::gid_index).collect();
        assert_eq!(order, [7, 5, 3, 1, 4, 2, 0]);
    }
}
