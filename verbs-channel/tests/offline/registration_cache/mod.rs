//! Caches of registrations: what is registered and when, what is evicted, and that memory is kept while it
//! is registered.

mod threads;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{io, iter};

use fake_libibverbs::{assert_all_is_well, with};
use verbs_channel::registration_cache::CachedMemory;
use verbs_channel::verbs_core::memory::RawRegion;
use verbs_channel::verbs_core::{Error as CoreError, ProtectionDomain};
use verbs_channel::{Error, RegistrationCache};
use verbs_harness::allocations::allocations;

use crate::fake_device::{channel, count, forget_the_past, pd, posted, succeeds};
use crate::pages::Pages;

const PART: usize = 64;
/// Length of each memory: ten parts, of which the last is shorter.
const LEN: usize = 9 * PART + 16;

/// As long as each memory is.
fn pages(freed: &Arc<AtomicUsize>) -> Arc<Pages> {
    Arc::new(Pages::new(LEN, freed))
}

/// Registers a part of these pages, which the region shares.
fn register(
    pages: &Arc<Pages>,
    pd: &ProtectionDomain,
    part: Range<usize>,
) -> Result<RawRegion<Arc<Pages>>, CoreError> {
    pages.register_part(pd, part, Arc::clone(pages))
}

/// A cache with room for `parts` parts.
fn cache(pd: &ProtectionDomain, parts: usize) -> RegistrationCache {
    cache_with(pd, parts, 1024, None)
}

fn cache_with(
    pd: &ProtectionDomain,
    parts: usize,
    max_regions: usize,
    timeout: Option<Duration>,
) -> RegistrationCache {
    RegistrationCache::builder(pd, parts * PART)
        .part_len(PART)
        .max_regions(max_regions)
        .timeout(timeout)
        .build()
}

fn memory(cache: &RegistrationCache) -> CachedMemory {
    let pages = pages(&Arc::default());
    cache.memory(LEN, move |pd, part| register(&pages, pd, part))
}

/// Uses a part of the memory.
fn touch(memory: &CachedMemory, part: usize) {
    drop(memory.slice(part * PART..part * PART + 1).unwrap());
}

/// How often memory was registered and deregistered since the last time this was asked.
fn registrations() -> (usize, usize) {
    let counts = (count("ibv_reg_mr"), count("ibv_dereg_mr"));
    forget_the_past();
    counts
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::CacheFull { .. })
}

#[test]
fn part_is_registered_at_its_first_use_and_found_at_every_other() {
    let mut channel = channel();
    let cache = cache(channel.pd(), 100);
    let pages = pages(&Arc::default());
    let addr = pages.addr();
    let memory = cache.memory(LEN, move |pd, part| register(&pages, pd, part));
    assert_eq!((registrations(), memory.len()), ((0, 0), LEN));
    for range in [70..80, 64..128, 127..128, 100..100, 128..128] {
        drop(memory.slice(range).unwrap());
    }
    assert_eq!(registrations(), (1, 0));
    assert_eq!(
        (cache.registered_regions(), cache.registered_bytes()),
        (1, PART)
    );
    // Across parts: all of them at once, in which the ranges of each are found from now on.
    for range in [60..200, 0..256, 200..201] {
        drop(memory.slice(range).unwrap());
    }
    assert_eq!(registrations(), (1, 0));
    // The last part, and a slice without bytes at its end.
    drop(memory.slice(LEN..).unwrap());
    drop(memory.slice(LEN - 16..).unwrap());
    assert_eq!(registrations(), (1, 0));
    assert_eq!(cache.registered_bytes(), PART + 4 * PART + 16);
    assert!(memory.slice(..LEN + 1).is_err());
    let slice = memory.slice(130..140).unwrap();
    assert_eq!((slice.offset(), slice.len()), (130, 10));
    channel.start_send(slice).unwrap();
    let list = with(|library| library.posted[0][0].list.clone());
    assert_eq!((list[0].0, list[0].1), (addr + 130, 10));
    succeeds(posted()[0]);
    drop((channel, memory, cache));
    assert_all_is_well();
}

#[test]
fn eviction_makes_room_for_all_of_a_long_range() {
    let pd = pd();
    let cache = cache(&pd, 3);
    let memory = memory(&cache);
    [0, 1, 2].iter().for_each(|part| touch(&memory, *part));
    registrations();
    drop(memory.slice(3 * PART..5 * PART).unwrap());
    assert_eq!(registrations(), (1, 2));
    touch(&memory, 2);
    assert_eq!(registrations(), (0, 0));
    // Four parts are too much, but not the range itself.
    drop(memory.slice(5 * PART + 32..8 * PART + 32).unwrap());
    assert_eq!(registrations(), (1, 2));
    assert_eq!(cache.registered_bytes(), 3 * PART);
}

#[test]
fn registrations_in_use_are_counted_and_never_evicted() {
    let mut channel = channel();
    let cache = cache(channel.pd(), 2);
    let memory = memory(&cache);
    let ticket = channel.start_receive(memory.slice(..8).unwrap()).unwrap();
    let kept = memory.slice(PART..PART + 8).unwrap();
    registrations();
    let error = memory.slice(2 * PART..3 * PART).unwrap_err();
    assert!(is_full(&error) && error.is_backpressure(), "{error:?}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::WouldBlock);
    // The regions in use have more slices all the same.
    drop(memory.slice(8..16).unwrap());
    drop(kept.clone());
    assert_eq!(registrations(), (0, 0));
    channel.abort();
    let ended = channel.poll(ticket).unwrap().unwrap();
    assert!(is_full(&memory.slice(2 * PART..3 * PART).unwrap_err()));
    let region = ended.buffer.unwrap().into_shared().unwrap().memory();
    assert!(is_full(&memory.slice(2 * PART..3 * PART).unwrap_err()));
    assert!(region.region::<RawRegion<Arc<Pages>>>().is_some());
    drop(region);
    touch(&memory, 2);
    assert_eq!(registrations(), (1, 1));
    assert_eq!(kept.offset(), 0);
}

#[test]
fn range_longer_than_the_bound_is_an_error_for_good() {
    let cache = cache(&pd(), 2);
    let memory = memory(&cache);
    touch(&memory, 0);
    let error = memory.slice(..2 * PART + 1).unwrap_err();
    assert!(is_full(&error) && !error.is_backpressure(), "{error:?}");
    assert_eq!(cache.registered_regions(), 1, "nothing was evicted for it");
}

#[test]
fn dropped_memory_is_deregistered_at_once_or_with_its_last_slice() {
    let mut channel = channel();
    let cache = cache(channel.pd(), 2);
    let freed = Arc::default();
    let pages = pages(&freed);
    let memory = cache.memory(LEN, move |pd, part| register(&pages, pd, part));
    let ticket = channel.start_receive(memory.slice(..8).unwrap()).unwrap();
    touch(&memory, 1);
    registrations();
    let again = memory.clone();
    drop(memory);
    assert_eq!(registrations(), (0, 0));
    drop(again);
    assert_eq!(registrations(), (0, 1));
    assert_eq!(freed.load(Ordering::Relaxed), 0);
    // It is still registered, so it counts.
    assert_eq!(
        (cache.registered_regions(), cache.registered_bytes()),
        (1, PART)
    );
    let other = self::memory(&cache);
    touch(&other, 0);
    assert!(is_full(&other.slice(..2 * PART).unwrap_err()));
    registrations();
    channel.abort();
    drop(channel.poll(ticket).unwrap());
    assert_eq!((registrations().1, freed.load(Ordering::Relaxed)), (1, 1));
    assert_eq!(cache.registered_bytes(), PART, "that of the other memory");
    drop(other.slice(..2 * PART).unwrap());
    drop((cache, other, channel));
    assert_all_is_well();
}

/// While a registration of memory can be found, nothing else can be at its address.
#[test]
fn memory_is_kept_while_it_is_registered_and_not_found_for_other_memory() {
    let cache = cache(&pd(), 2);
    let freed = Arc::default();
    let first = pages(&freed);
    let addr = first.addr();
    let memory = cache.memory(LEN, {
        let first = Arc::clone(&first);
        move |pd, part| register(&first, pd, part)
    });
    touch(&memory, 0);
    drop(first);
    assert_eq!(freed.load(Ordering::Relaxed), 0, "the cache keeps it");
    drop(memory);
    assert_eq!(freed.load(Ordering::Relaxed), 1);
    // As other memory at the same address would be.
    let pages: Vec<_> = (0..64).map(|_| pages(&freed)).collect();
    let same = pages.iter().find(|pages| pages.addr() == addr);
    let pages = Arc::clone(same.unwrap_or(&pages[0]));
    let memory = cache.memory(LEN, move |pd, part| register(&pages, pd, part));
    registrations();
    touch(&memory, 0);
    assert_eq!(registrations(), (1, 0));
}

#[test]
fn registration_without_room_evicts_its_length_and_is_tried_once_more() {
    let cache = cache(&pd(), 100);
    let memory = memory(&cache);
    let refuse = |errno, times| {
        registrations();
        with(|library| {
            library
                .refuse
                .extend(iter::repeat_n(("ibv_reg_mr", errno), times));
        });
    };
    for part in 0..4 {
        touch(&memory, part);
    }
    refuse(libc::ENOMEM, 1);
    drop(memory.slice(4 * PART..6 * PART).unwrap());
    assert_eq!(registrations(), (2, 2));
    [2, 3].iter().for_each(|part| touch(&memory, *part));
    assert_eq!(registrations(), (0, 0));
    refuse(libc::ENOMEM, 2);
    let error = memory.slice(6 * PART..7 * PART).unwrap_err();
    let Error::Core(CoreError::Registration { .. } | CoreError::Memlock { .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(registrations(), (2, 1));
    // Not for lack of room.
    refuse(libc::EINVAL, 1);
    assert!(memory.slice(6 * PART..7 * PART).is_err());
    assert_eq!(registrations(), (1, 0));
    // Nothing can be evicted.
    let _kept = [2, 3, 4].map(|part| memory.slice(part * PART..part * PART + 1));
    registrations();
    refuse(libc::ENOMEM, 1);
    let before = cache.registered_regions();
    assert!(memory.slice(7 * PART..8 * PART).is_err());
    assert_eq!((registrations().0, cache.registered_regions()), (1, before));
    touch(&memory, 7);
}

#[test]
fn region_of_another_length_is_an_error() {
    let cache = cache(&pd(), 100);
    let pages = pages(&Arc::default());
    let memory = cache.memory(LEN, move |pd, part| {
        register(&pages, pd, part.start..part.end - 1)
    });
    let error = memory.slice(..8).unwrap_err();
    assert!(
        matches!(error, Error::Core(CoreError::OutOfBounds { .. })),
        "{error:?}"
    );
    assert_eq!((registrations(), cache.registered_bytes()), ((1, 1), 0));
    let empty = cache.memory(0, |_, part| {
        assert!(part.is_empty());
        Err::<RawRegion, _>(CoreError::RemoteAccess)
    });
    assert!(empty.is_empty() && empty.slice(..).is_err());
}

#[test]
fn slices_of_what_is_registered_allocate_nothing() {
    let cache = cache(&pd(), 100);
    let memory = memory(&cache);
    [0, 3, 7].iter().for_each(|part| touch(&memory, *part));
    let before = allocations();
    let slices = [memory.slice(8..16), memory.slice(3 * PART..3 * PART + 1)].map(Result::unwrap);
    drop(slices);
    assert_eq!(allocations(), before);
}
