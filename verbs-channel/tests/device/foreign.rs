//! Memory that Rust does not manage: `mmap`ed pages, in slices and as elements; and memory of another
//! protection domain.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use verbs_channel::verbs_core::memory::RawRegion;
use verbs_channel::verbs_core::{AccessFlags, ProtectionDomain};
use verbs_channel::{RegistrationCache, SharedMemory};
use verbs_harness::{PATIENCE, begin};

use super::ends::{bytes, given, pair, pattern};

const PAGE: usize = 4096;
const LEN: usize = 16 * PAGE;

/// Pages, unmapped when this is dropped.
struct Mapping(NonNull<u8>);

// SAFETY: a `Mapping` owns the pages, which it does not access.
unsafe impl Send for Mapping {}
// SAFETY: a `Mapping` owns the pages, which it does not access.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new() -> Self {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new pages, at an address that the kernel chooses.
        let map = unsafe { libc::mmap(ptr::null_mut(), LEN, access, flags, -1, 0) };
        assert_ne!(map, libc::MAP_FAILED);
        Self(NonNull::new(map.cast()).unwrap())
    }

    fn register(self, pd: &ProtectionDomain) -> RawRegion<Self> {
        let (start, access) = (self.0, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE);
        // SAFETY: the pages are unmapped when `self` is dropped, and only then; they are never borrowed.
        unsafe { pd.register_raw(start, LEN, access, self) }.unwrap()
    }

    /// A copy of some of the bytes, which no operation has.
    fn copy(&self, from: usize, len: usize) -> Vec<u8> {
        let bytes = (from..from + len).map(|at| {
            assert!(at < LEN);
            let byte = self.0.as_ptr().wrapping_add(at);
            // SAFETY: the address is within the pages; the test has waited for what writes there.
            unsafe { byte.read_volatile() }
        });
        bytes.collect()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the pages were mapped with this length, and nothing uses them any more.
        let unmapped = unsafe { libc::munmap(self.0.as_ptr().cast(), LEN) };
        assert_eq!(unmapped, 0);
    }
}

/// A cache that registers a page at a time, and four at most.
#[test]
#[ignore = "needs an RDMA device"]
fn pages_that_a_cache_registers_are_read_into_whether_they_are_new_known_or_evicted() {
    let _test = begin!();
    let (mut a, b) = pair();
    let target = given(&b, pattern(3, LEN));
    let cache = RegistrationCache::builder(a.pd(), 4 * PAGE).part_len(PAGE);
    let cache = cache.build();
    let mapping = Arc::new(Mapping::new());
    let memory = cache.memory(LEN, {
        let mapping = Arc::clone(&mapping);
        move |pd, part| {
            // SAFETY: the address is within the pages.
            let start = unsafe { mapping.0.add(part.start) };
            let (access, keepalive) = (AccessFlags::LOCAL_WRITE, Arc::clone(&mapping));
            // SAFETY: the pages are unmapped when the keepalive is dropped, and only then; they are
            // never borrowed.
            unsafe { pd.register_raw(start, part.len(), access, keepalive) }
        }
    });
    // Each page in two halves, and then two pages at once.
    let half = PAGE / 2;
    let halves = (0..LEN / half).map(|at| at * half..(at + 1) * half);
    for range in halves.chain([0..2 * PAGE, LEN - half..LEN]) {
        let remote = target.remote();
        let remote = remote.slice(range.start as u64..range.end as u64).unwrap();
        let ticket = a.start_read(memory.slice(range).unwrap(), remote).unwrap();
        let ended = a.wait(ticket, Some(PATIENCE)).unwrap().unwrap();
        ended.result.unwrap();
        assert!(cache.registered_regions() <= 4 && cache.registered_bytes() <= 4 * PAGE);
    }
    assert!(mapping.copy(0, LEN) == pattern(3, LEN));
    drop((memory, cache));
    assert_eq!(Arc::strong_count(&mapping), 1);
}

#[test]
#[ignore = "needs an RDMA device"]
fn pages_are_read_and_written_in_slices() {
    let _test = begin!(iwarp lacks "reads into several elements");
    let (mut a, b) = pair();
    let target = given(&b, pattern(3, LEN));
    let memory = SharedMemory::new([Mapping::new().register(a.pd())]);
    let region: &RawRegion<Mapping> = memory.region().unwrap();
    let page = |at: usize| at * PAGE..(at + 1) * PAGE;
    let remote = |at: usize| {
        let at = at as u64 * PAGE as u64;
        target.remote().slice(at..at + PAGE as u64).unwrap()
    };
    // In another order than they are in, several at once.
    let reads = [3, 0, 2, 1].map(|at| {
        let slice = memory.slice(page(at)).unwrap();
        a.start_read(slice, remote(3 - at)).unwrap()
    });
    for ticket in reads {
        let ended = a.wait(ticket, Some(PATIENCE)).unwrap().unwrap();
        ended.result.unwrap();
    }
    let all = pattern(3, LEN);
    for at in 0..4 {
        let read = region.keepalive().copy(at * PAGE, PAGE);
        assert!(read == all[page(3 - at)], "page {at}");
    }
    // Overlapping slices, to other places.
    let writes = [8, 9].map(|to| {
        let slice = memory.slice(page(1)).unwrap();
        a.start_write(slice, remote(to)).unwrap()
    });
    for ticket in writes {
        let ended = a.wait(ticket, Some(PATIENCE)).unwrap().unwrap();
        ended.result.unwrap();
        assert_eq!(ended.buffer.unwrap().into_shared().unwrap().offset(), PAGE);
    }
    let written = bytes(&target);
    assert!(written[page(8)] == all[page(2)] && written[page(9)] == all[page(2)]);
    // A list of elements, borrowed.
    let parts = [5, 7, 6].map(|at| region.element(page(at)).unwrap());
    a.read(parts, target.remote()).unwrap();
    for (from, at) in [5, 7, 6].into_iter().enumerate() {
        let read = region.keepalive().copy(at * PAGE, PAGE);
        assert!(read == written[page(from)], "page {at}");
    }
}
