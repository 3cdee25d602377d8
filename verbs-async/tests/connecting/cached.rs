//! Slices of cached memory: who registers, who waits for room, and what a dropped future leaves.

use std::future::Future;
use std::thread;

use fake_libibverbs::ladder;
use verbs_async::verbs_channel::RegistrationCache;
use verbs_async::verbs_channel::buffer::SharedSlice;
use verbs_async::verbs_channel::registration_cache::CachedMemory;
use verbs_async::verbs_channel::verbs_core::error::Rejected;
use verbs_async::verbs_channel::verbs_core::{self, AccessFlags, SharedRegion};
use verbs_async::{Result, cached_slice};
use verbs_harness::allocations::allocations;
use verbs_harness::until;

use crate::bench::{Held, Task, now};
use crate::gate::{LONG, alone};

const PART: usize = 64;

/// Awaits a part.
fn part(
    memory: &CachedMemory,
    part: usize,
) -> Task<impl Future<Output = Result<SharedSlice>> + '_> {
    Task::new(cached_slice(memory, part * PART..part * PART + 8))
}

fn slice(memory: &CachedMemory, number: usize) -> SharedSlice {
    part(memory, number).ends_when_woken().unwrap()
}

fn is_woken<F: Future>(task: &Task<F>) {
    assert!(until(LONG, || task.is_woken()), "it is not woken");
}

/// A cache with room for `parts` parts.
fn cache(parts: usize) -> RegistrationCache {
    let (_context, pd, _cq) = ladder();
    let builder = RegistrationCache::builder(&pd, parts * PART);
    builder.part_len(PART).build()
}

/// Memory of ten parts. Each registration is of other memory, which no test can see.
fn memory(cache: &RegistrationCache) -> CachedMemory {
    cache.memory(10 * PART, |pd, part| {
        let bytes = vec![0_u8; part.len()];
        let region = pd.reg_shared(bytes, AccessFlags::LOCAL_WRITE);
        region.map_err(Rejected::into_error)
    })
}

#[test]
fn slice_of_what_is_registered_is_ready_at_once_and_allocates_nothing() {
    alone(|| {
        let cache = cache(1);
        let memory = memory(&cache);
        drop(slice(&memory, 0));
        for at in 0..100 {
            let before = allocations();
            let slice = now(cached_slice(&memory, at % 8..8)).unwrap();
            assert_eq!(slice.len(), 8 - at % 8);
            drop(slice);
            assert_eq!(allocations(), before);
        }
    });
}

#[test]
fn registration_runs_on_a_helper_thread_and_stays_if_its_future_is_dropped() {
    for is_dropped in [false, true] {
        alone(|| {
            let cache = cache(1);
            let memory = memory(&cache);
            let held = Held::new(&["ibv_reg_mr"]);
            let mut task = part(&memory, 3).waits();
            held.begins("ibv_reg_mr");
            assert_eq!(task.was_woken(), 0);
            if is_dropped {
                drop(task);
                // It waits for the same registration.
                task = part(&memory, 3).waits();
            }
            held.returns();
            is_woken(&task);
            drop(task.ends_when_woken().unwrap());
            assert!(!held.has_begun(), "it was registered again");
            assert_eq!(cache.registered_regions(), 1);
            // Nothing is in use: the other part finds room.
            held.returns();
            drop(slice(&memory, 4));
        });
    }
}

#[test]
fn task_waits_for_room_until_a_slice_is_dropped_in_any_thread() {
    alone(|| {
        let cache = cache(2);
        let memory = memory(&cache);
        let in_use = [0, 1].map(|part| slice(&memory, part));
        // The region has a place for one slice: this one is in none.
        let more = in_use[0].clone();
        let task = part(&memory, 2).waits();
        let [first, second] = in_use;
        let kept = first.memory();
        drop(first);
        assert_eq!(task.was_woken(), 1);
        let task = task.waits();
        drop(more);
        assert_eq!(task.was_woken(), 2);
        let mut task = task.waits();
        thread::scope(|scope| scope.spawn(|| drop(kept)).join().unwrap());
        assert_eq!(task.was_woken(), 3);
        drop(task.ends_when_woken().unwrap());
        drop(second);
    });
}

#[test]
fn memory_that_is_dropped_and_registration_that_fails_make_room() {
    alone(|| {
        let cache = cache(1);
        let gone = memory(&cache);
        let last = slice(&gone, 0);
        drop(gone);
        let memory = memory(&cache);
        let mut task = part(&memory, 0).waits();
        drop(last);
        is_woken(&task);
        drop(task.ends_when_woken().unwrap());
    });
    alone(|| {
        let cache = cache(1);
        let fails = cache.memory(PART, |pd, part| {
            drop(pd.reg_shared(vec![0_u8; part.len()], AccessFlags::empty()));
            Err::<SharedRegion<Vec<u8>>, _>(verbs_core::Error::RemoteAccess)
        });
        let held = Held::new(&["ibv_reg_mr"]);
        let mut failing = part(&fails, 0).waits();
        held.begins("ibv_reg_mr");
        let memory = memory(&cache);
        let mut task = part(&memory, 0).waits();
        drop(held);
        is_woken(&task);
        drop(task.ends_when_woken().unwrap());
        assert!(failing.ends_when_woken().is_err());
    });
}

#[test]
fn woken_task_that_is_dropped_leaves_the_room_to_others() {
    alone(|| {
        let cache = cache(1);
        let memory = memory(&cache);
        let in_use = slice(&memory, 0);
        let [first, second, mut third] = [1, 2, 3].map(|number| part(&memory, number).waits());
        drop(first);
        drop(in_use);
        is_woken(&second);
        drop(second);
        assert_eq!(third.was_woken(), 1);
        drop(third.ends_when_woken().unwrap());
    });
}
