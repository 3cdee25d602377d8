//! A bounded cache of address handles.

use std::collections::HashMap;
use std::sync::Arc;

use verbs_core::codes::Gid;
use verbs_core::path::{AddressHandle, DatagramEndpoint};

/// The address handles to the ports that were sent to last.
///
/// One that is evicted lives on until the datagrams that need it have left: they hold clones.
#[derive(Debug, Default)]
pub(super) struct Handles {
    kept: HashMap<Port, (Arc<AddressHandle>, u64)>,
    capacity: usize,
    uses: u64,
}

/// The address that a handle depends on.
type Port = (u16, Option<Gid>);

impl Handles {
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self {
            // A limit is no size: most of many may never be there.
            kept: HashMap::with_capacity(capacity.min(1024)),
            capacity,
            uses: 0,
        }
    }

    pub(super) fn get(&mut self, peer: &DatagramEndpoint) -> Option<Arc<AddressHandle>> {
        self.uses += 1;
        let (handle, used) = self.kept.get_mut(&port(peer))?;
        *used = self.uses;
        Some(Arc::clone(handle))
    }

    /// Keeps a handle. Returns those that are dropped for it.
    pub(super) fn insert(
        &mut self,
        peer: &DatagramEndpoint,
        handle: Arc<AddressHandle>,
    ) -> [Option<Arc<AddressHandle>>; 2] {
        let port = port(peer);
        let is_full = self.kept.len() >= self.capacity && !self.kept.contains_key(&port);
        let evicted = is_full.then(|| self.evict()).flatten();
        self.uses += 1;
        let replaced = self.kept.insert(port, (handle, self.uses));
        [evicted, replaced.map(|(handle, _)| handle)]
    }

    pub(super) fn remove(&mut self, peer: &DatagramEndpoint) -> Option<Arc<AddressHandle>> {
        self.kept.remove(&port(peer)).map(|(handle, _)| handle)
    }

    /// Takes out the handles of which this holds, for the GID of their peer.
    pub(super) fn take_if(
        &mut self,
        mut holds: impl FnMut(Option<Gid>, &AddressHandle) -> bool,
    ) -> impl Iterator<Item = Arc<AddressHandle>> {
        let holds = move |(_, gid): &Port, (handle, _): &mut (Arc<_>, _)| holds(*gid, handle);
        let stale = self.kept.extract_if(holds);
        stale.map(|(_, (handle, _))| handle)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The one that was not used for longest. It looks at all of them: making the new handle, by a
    /// system call, takes longer.
    fn evict(&mut self) -> Option<Arc<AddressHandle>> {
        let (oldest, _) = self.kept.iter().min_by_key(|(_, (_, used))| *used)?;
        let oldest = *oldest;
        self.kept.remove(&oldest).map(|(handle, _)| handle)
    }
}

const fn port(peer: &DatagramEndpoint) -> Port {
    (peer.lid(), peer.gid())
}
