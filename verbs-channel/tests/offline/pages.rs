//! Memory that was not allocated as a buffer, as a program maps it.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use verbs_channel::SharedMemory;
use verbs_channel::verbs_core::memory::RawRegion;
use verbs_channel::verbs_core::{AccessFlags, Error, ProtectionDomain};

/// Memory that is freed when this is dropped, which is counted.
pub(crate) struct Pages {
    start: NonNull<[u8]>,
    freed: Arc<AtomicUsize>,
}

// SAFETY: `Pages` owns the memory, which it does not access.
unsafe impl Send for Pages {}
// SAFETY: `Pages` owns the memory, which it does not access.
unsafe impl Sync for Pages {}

impl Pages {
    /// `len` bytes, which are all 1.
    pub(crate) fn new(len: usize, freed: &Arc<AtomicUsize>) -> Self {
        let bytes = vec![1_u8; len].into_boxed_slice();
        Self {
            start: NonNull::from(Box::leak(bytes)),
            freed: Arc::clone(freed),
        }
    }

    pub(crate) fn addr(&self) -> u64 {
        self.start.as_ptr().cast::<u8>().addr() as u64
    }

    /// Registers all of it, which the region owns.
    pub(crate) fn register(self, pd: &ProtectionDomain) -> RawRegion<Self> {
        let (start, len) = (self.start.cast(), self.start.len());
        // SAFETY: the memory is freed when `self` is dropped, and only then; it is never borrowed.
        unsafe { pd.register_raw(start, len, AccessFlags::LOCAL_WRITE, self) }.unwrap()
    }

    /// Registers all of it in each of these domains, as memory that owns it.
    pub(crate) fn register_on(self, domains: &[ProtectionDomain]) -> SharedMemory {
        let (start, len) = (self.start.cast(), self.start.len());
        // SAFETY: the memory is freed when `self` is dropped, and only then; it is never borrowed.
        let memory = unsafe {
            SharedMemory::register_raw(domains, start, len, AccessFlags::LOCAL_WRITE, self)
        };
        memory.unwrap()
    }

    /// Registers a part of it for local access, with a keepalive that has these pages.
    pub(crate) fn register_part<K: 'static>(
        &self,
        pd: &ProtectionDomain,
        part: Range<usize>,
        keepalive: K,
    ) -> Result<RawRegion<K>, Error> {
        assert!(part.end <= self.start.len());
        // SAFETY: the address is within the allocation.
        let start = unsafe { self.start.cast::<u8>().add(part.start) };
        let access = AccessFlags::LOCAL_WRITE;
        // SAFETY: the keepalive frees the memory when it is dropped; it is never borrowed.
        unsafe { pd.register_raw(start, part.len(), access, keepalive) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the memory was a box.
        drop(unsafe { Box::from_raw(self.start.as_ptr()) });
    }
}
