//! What a registration permits.

use std::ffi::c_int;
use std::fmt;
use std::str::FromStr;

use verbs_sys::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND,
    IBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
};

use crate::macros::serde_by_name;
use crate::names::ParseNameError;

bitflags::bitflags! {
    /// The access that the device, and peers through it, have to a region or a queue pair.
    ///
    /// Local reads are always permitted.
    ///
    /// They print and parse as C's names without prefix: `LOCAL_WRITE | REMOTE_READ`.
    ///
    /// See [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_access_flags")]
    pub struct AccessFlags: u32 {
        /// This side's receives, reads and atomics may write here. A region with
        /// `REMOTE_WRITE` or `REMOTE_ATOMIC` needs it too.
        #[doc(alias = "IBV_ACCESS_LOCAL_WRITE")]
        const LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE.0;
        /// A peer may write here.
        #[doc(alias = "IBV_ACCESS_REMOTE_WRITE")]
        const REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE.0;
        /// A peer may read here.
        #[doc(alias = "IBV_ACCESS_REMOTE_READ")]
        const REMOTE_READ = IBV_ACCESS_REMOTE_READ.0;
        /// A peer may run atomics here.
        #[doc(alias = "IBV_ACCESS_REMOTE_ATOMIC")]
        const REMOTE_ATOMIC = IBV_ACCESS_REMOTE_ATOMIC.0;
        /// Memory windows may be bound to this region.
        #[doc(alias = "IBV_ACCESS_MW_BIND")]
        const MW_BIND = IBV_ACCESS_MW_BIND.0;
        /// The device faults pages in instead of pinning them (ODP).
        #[doc(alias = "IBV_ACCESS_ON_DEMAND")]
        const ON_DEMAND = IBV_ACCESS_ON_DEMAND.0;
        /// The memory is backed by huge pages.
        #[doc(alias = "IBV_ACCESS_HUGETLB")]
        const HUGETLB = IBV_ACCESS_HUGETLB.0;
        /// The device may write the bytes of messages in any order, which is faster on some hosts.
        /// They are in place once their completion, or a later one, has been polled. A flag in the
        /// memory does not show that they are. Devices may ignore this flag.
        #[doc(alias = "IBV_ACCESS_RELAXED_ORDERING")]
        const RELAXED_ORDERING = IBV_ACCESS_RELAXED_ORDERING.0;

        // Flags of newer libraries are kept as they are.
        const _ = !0;
    }
}

impl AccessFlags {
    /// All kinds of access for peers.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC);

    /// What lets no peer in.
    pub(crate) const PRIVATE: Self = Self::LOCAL_WRITE
        .union(Self::ON_DEMAND)
        .union(Self::HUGETLB)
        .union(Self::RELAXED_ORDERING);

    /// For the C calls that take an `int`.
    pub(crate) const fn as_int(self) -> c_int {
        self.bits().cast_signed()
    }
}

impl fmt::Display for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, _) in self.iter_names() {
            write!(f, "{separator}{name}")?;
            separator = " | ";
        }
        let known = self
            .iter_names()
            .fold(0, |bits, (_, flag)| bits | flag.bits());
        match self.bits() & !known {
            0 if self.is_empty() => f.write_str("0"),
            0 => Ok(()),
            newer => write!(f, "{separator}{newer:#x}"),
        }
    }
}

impl FromStr for AccessFlags {
    type Err = ParseNameError;

    /// Parses names and hexadecimal numbers, separated by `|`.
    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        text.split('|')
            .map(one)
            .collect::<Option<Self>>()
            .ok_or(ParseNameError::new(NAMES))
    }
}

serde_by_name!(
    AccessFlags,
    u32,
    |flags| (true, flags.bits()),
    Self::from_bits_retain
);

/// One flag.
fn one(text: &str) -> Option<AccessFlags> {
    let name = text.trim().to_ascii_uppercase();
    let name = name.strip_prefix("IBV_ACCESS_").unwrap_or(&name);
    let bits = || match name.strip_prefix("0X") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => name.parse().ok(),
    };
    AccessFlags::from_name(name).or_else(|| bits().map(AccessFlags::from_bits_retain))
}

const NAMES: &[&str] = &[
    "LOCAL_WRITE",
    "REMOTE_WRITE",
    "REMOTE_READ",
    "REMOTE_ATOMIC",
    "MW_BIND",
    "ON_DEMAND",
    "HUGETLB",
    "RELAXED_ORDERING",
];
