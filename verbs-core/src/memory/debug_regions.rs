//! In debug builds, the regions that exist: so that an element of another protection domain is rejected
//! when it is posted.
//!
//! An element that the driver gets has a key, and not its protection domain: there is no room for that
//! in C's layout. On another device, or in another domain, the same key may be that of other memory.
//! So a table has the domain of each region. In a release build there is no table, a region has no more
//! fields, and nothing is looked up.

#[cfg(debug_assertions)]
use verbs_sys::ibv_sge;

use crate::domain::ProtectionDomain;
#[cfg(debug_assertions)]
use crate::ffi::Process;

/// The entry of a region in the table, which goes with it. Nothing in a release build.
pub(super) struct Known {
    #[cfg(debug_assertions)]
    entry: Option<((u32, u64), Process)>,
}

const _: () = assert!(cfg!(debug_assertions) || size_of::<Known>() == 0);

impl Known {
    /// Enters a region: its domain, its key, its first address in requests, and its length.
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "no table"))]
    pub(super) fn new(pd: &ProtectionDomain, lkey: u32, addr: u64, len: usize) -> Self {
        Self {
            #[cfg(debug_assertions)]
            entry: table::enter(pd, lkey, addr, len as u64)
                .map(|entry| (entry, Process::current())),
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Known {
    fn drop(&mut self) {
        // In the child of a fork, the table may be locked by a thread that is not there.
        if let Some((entry, process)) = self.entry
            && process.is_current()
        {
            table::remove(entry);
        }
    }
}

/// Whether one of these elements is of another protection domain, as far as that is known.
///
/// It is known if a region of another domain has that key and these bytes, and no region of this domain
/// has. A region that was registered without this crate is not known.
#[cfg(debug_assertions)]
pub(crate) fn is_of_another(pd: &ProtectionDomain, list: &[ibv_sge]) -> bool {
    pd.tells_regions() && list.iter().any(|sge| table::is_of_another(pd, sge))
}

#[cfg(debug_assertions)]
mod table {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use verbs_sys::ibv_sge;

    use crate::domain::ProtectionDomain;
    use crate::domain::protection_domain::tag;

    struct Region {
        pd: usize,
        addr: u64,
        len: u64,
    }

    struct Table {
        // Keyed by the region's key and a number of its own, as two devices may give the same key.
        regions: BTreeMap<(u32, u64), Region>,
        next: u64,
    }

    static TABLE: Mutex<Table> = Mutex::new(Table {
        regions: BTreeMap::new(),
        next: 0,
    });

    fn table() -> MutexGuard<'static, Table> {
        TABLE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(
        pd: &ProtectionDomain,
        lkey: u32,
        addr: u64,
        len: u64,
    ) -> Option<(u32, u64)> {
        if !pd.tells_regions() {
            return None;
        }
        let pd = tag(pd);
        let mut table = table();
        let entry = (lkey, table.next);
        table.next += 1;
        table.regions.insert(entry, Region { pd, addr, len });
        Some(entry)
    }

    pub(super) fn remove(entry: (u32, u64)) {
        table().regions.remove(&entry);
    }

    pub(super) fn is_of_another(pd: &ProtectionDomain, sge: &ibv_sge) -> bool {
        let table = table();
        let of_key = table.regions.range((sge.lkey, 0)..=(sge.lkey, u64::MAX));
        let mut of_memory = of_key
            .map(|(_, region)| region)
            .filter(|region| {
                let offset = sge.addr.checked_sub(region.addr);
                let end = offset.and_then(|offset| offset.checked_add(sge.length.into()));
                end.is_some_and(|end| end <= region.len)
            })
            .map(|region| region.pd)
            .peekable();
        let pd = tag(pd);
        of_memory.peek().is_some() && of_memory.all(|of| of != pd)
    }
}
