//! Access that a registration permits.

use std::ffi::c_int;

use verbs_sys::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND,
    IBV_ACCESS_RELAXED_ORDERING, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
};

use crate::codes::macros::flags_as_text;

bitflags::bitflags! {
    /// Access that local requests and the peer's have to a memory region, or through a queue pair.
    ///
    /// A peer needs the permission of both: the region's, and the queue pair's. This side's requests
    /// may always read.
    ///
    /// The flags print and parse as C's names without their prefix: `LOCAL_WRITE | REMOTE_READ`.
    ///
    /// See [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_access_flags")]
    pub struct AccessFlags: u32 {
        /// This side's receives, reads and atomics may write to the region. A region with
        /// `REMOTE_WRITE` or `REMOTE_ATOMIC` needs this flag too.
        #[doc(alias = "IBV_ACCESS_LOCAL_WRITE")]
        const LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE.0;
        /// A peer may write to the region.
        #[doc(alias = "IBV_ACCESS_REMOTE_WRITE")]
        const REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE.0;
        /// A peer may read the region.
        #[doc(alias = "IBV_ACCESS_REMOTE_READ")]
        const REMOTE_READ = IBV_ACCESS_REMOTE_READ.0;
        /// A peer may run atomics on the region.
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
        /// The device may write bytes into the region in any order, those of one message and those of several,
        /// which is faster on some hosts.
        ///
        /// The bytes are in place once their completion, or a later one, has been polled. A flag in
        /// the memory does not show that they are. If two writes to the same bytes are in flight at
        /// once, the older one may win. Devices may ignore `RELAXED_ORDERING`.
        #[doc(alias = "IBV_ACCESS_RELAXED_ORDERING")]
        const RELAXED_ORDERING = IBV_ACCESS_RELAXED_ORDERING.0;

        // Flags of newer libraries are kept as they are.
        const _ = !0;
    }
}

impl AccessFlags {
    /// All access that a peer can have: `REMOTE_WRITE`, `REMOTE_READ` and `REMOTE_ATOMIC`.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC);

    /// Flags without remote access.
    pub(crate) const PRIVATE: Self = Self::LOCAL_WRITE
        .union(Self::ON_DEMAND)
        .union(Self::HUGETLB)
        .union(Self::RELAXED_ORDERING);

    /// For the C calls that take an `int`.
    pub(crate) const fn as_int(self) -> c_int {
        self.bits().cast_signed()
    }
}

flags_as_text!(AccessFlags(u32), "IBV_ACCESS_");
