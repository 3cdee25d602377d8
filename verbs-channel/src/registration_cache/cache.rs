//! The regions a cache has registered, and how it makes room for more.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use verbs_core::{Error as CoreError, ProtectionDomain};

use super::regions::Regions;
use crate::buffer::{Returns, SharedMemory, SharedSlice};
use crate::error::{Error, Result};

/// State shared by the clones of a cache and its memories.
pub(super) struct Cache {
    pub(super) pd: ProtectionDomain,
    pub(super) limits: Limits,
    pub(super) registered: Arc<Registered>,
    state: Mutex<State>,
    /// Notified when a thread has registered or deregistered something, or has failed to.
    changed: Condvar,
}

/// The bounds of a cache, and what it registers at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_bytes: usize,
    pub(super) max_regions: usize,
    pub(super) part_len: usize,
    /// How long a slice waits for other threads; `None` is without a bound.
    pub(super) timeout: Option<Duration>,
}

/// How much is registered, or is about to be. It is added to while the state is locked.
#[derive(Default)]
pub(super) struct Registered {
    bytes: AtomicUsize,
    regions: AtomicUsize,
    /// Notified when there may be room.
    pub(super) returns: Arc<Returns>,
}

/// A region among what is registered, until it is deregistered.
pub(super) struct Counted {
    registered: Arc<Registered>,
    bytes: usize,
}

/// Registers a part of a memory, which is counted.
pub(super) type Register =
    dyn Fn(&Cache, Range<usize>, Counted) -> Result<SharedMemory, CoreError> + Send + Sync;

struct State {
    regions: Regions<SharedMemory>,
    /// Ranges that threads are registering now.
    registering: Vec<(u64, Range<usize>)>,
    /// How many threads are deregistering what was removed.
    leaving: usize,
    /// The threads that are in code of the program's: it registers something, or frees it.
    inside: Vec<ThreadId>,
}

/// A thread registers this.
struct Registering<'a> {
    cache: &'a Cache,
    memory: u64,
    range: Range<usize>,
}

/// A thread deregisters what it has removed.
struct Leaving<'a>(&'a Cache);

/// This thread is in code of the program's.
struct Inside<'a>(&'a Cache);

impl Cache {
    pub(super) fn new(pd: ProtectionDomain, limits: Limits) -> Self {
        Self {
            pd,
            limits,
            registered: Arc::default(),
            state: Mutex::new(State {
                regions: Regions::new(),
                registering: Vec::new(),
                leaving: 0,
                inside: Vec::new(),
            }),
            changed: Condvar::new(),
        }
    }

    /// A slice of a memory of this length: of a region that is registered, or is registered now.
    #[inline]
    pub(super) fn slice(
        &self,
        memory: u64,
        len: usize,
        range: Range<usize>,
        register: &Register,
    ) -> Result<SharedSlice> {
        let found = self.lock().slice(memory, &range);
        match found {
            Some(slice) => slice,
            None => self.slice_of_new(memory, len, range, register),
        }
    }

    /// A slice of what is registered; `None` if [`slice`](Self::slice) would register something, or wait
    /// for a thread that does. It does not wait.
    pub(super) fn slice_if_registered(
        &self,
        memory: u64,
        len: usize,
        range: &Range<usize>,
    ) -> Result<Option<SharedSlice>> {
        let mut state = self.lock();
        if let Some(slice) = state.slice(memory, range) {
            return slice.map(Some);
        }
        let len = self.limits.parts(len, range).len();
        // A thread that registers the range or deregisters something has ended soon.
        let is_soon = state.is_registering(memory, range) || state.leaving > 0;
        let idle = || state.regions.count(SharedMemory::is_idle);
        if len <= self.limits.max_bytes
            && (is_soon || self.registered.fits(len, &self.limits, idle()))
        {
            return Ok(None);
        }
        Err(self.limits.full(len))
    }

    #[cold]
    fn slice_of_new(
        &self,
        memory: u64,
        len: usize,
        range: Range<usize>,
        register: &Register,
    ) -> Result<SharedSlice> {
        let all = self.limits.parts(len, &range);
        if all.len() > self.limits.max_bytes {
            return Err(self.limits.full(all.len()));
        }
        // When the first wait for another thread has begun.
        let mut begun = None;
        let mut is_first = true;
        loop {
            let mut state = self.lock();
            loop {
                if let Some(slice) = state.slice(memory, &range) {
                    return slice;
                }
                if !state.is_registering(memory, &range) {
                    break;
                }
                state = self.wait(state, &mut begun)?;
            }
            // Before anything is evicted: threads that need the same range evict nothing for it as well.
            state.registering.push((memory, all.clone()));
            let registering = Registering {
                cache: self,
                memory,
                range: all.clone(),
            };
            let counted = self.reserve(state, all.len(), &mut begun)?;
            let _inside = Inside::new(self);
            let error = match register(self, all.clone(), counted) {
                Ok(region) => return registering.done(region, &range),
                Err(error) => error,
            };
            drop(registering);
            // Evicting the range's length makes room, whoever sets the limit.
            if !(is_first && is_full(&error) && self.evict(all.len())) {
                return Err(Error::Core(error));
            }
            is_first = false;
        }
    }

    /// Counts these bytes, and evicts for them what has not been used for longest. An error if what is in
    /// use has their room.
    fn reserve<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        len: usize,
        begun: &mut Option<Instant>,
    ) -> Result<Counted> {
        let limits = &self.limits;
        loop {
            if let Some(counted) = self.registered.reserve(len, limits) {
                return Ok(counted);
            }
            // Nothing is evicted unless that makes room.
            let idle = state.regions.count(SharedMemory::is_idle);
            if self.registered.fits(len, limits, idle)
                && let Some((_, oldest)) = state.regions.remove_oldest(SharedMemory::is_idle)
            {
                state = self.deregister(state, vec![oldest]);
                continue;
            }
            if state.leaving == 0 {
                return Err(limits.full(len));
            }
            state = self.wait(state, begun)?;
        }
    }

    /// Waits until a thread has registered or deregistered something, or has failed to.
    ///
    /// A thread that registers or frees something itself does not wait: it might be what it waits for, or
    /// another thread that waits for it.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        begun: &mut Option<Instant>,
    ) -> Result<MutexGuard<'a, State>> {
        if state.inside.contains(&thread::current().id()) {
            return Err(Error::CacheRecursion);
        }
        let Some(timeout) = self.limits.timeout else {
            let changed = self.changed.wait(state);
            return Ok(changed.unwrap_or_else(PoisonError::into_inner));
        };
        let waited = begun.get_or_insert_with(Instant::now).elapsed();
        if waited >= timeout {
            return Err(Error::CacheTimedOut { after: timeout });
        }
        let changed = self.changed.wait_timeout(state, timeout - waited);
        Ok(changed.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Removes the least recently used regions, of at least `bytes` bytes together. Returns whether
    /// there were any.
    fn evict(&self, bytes: usize) -> bool {
        let mut evicted = 0;
        let mut state = self.lock();
        while evicted < bytes {
            let Some((range, oldest)) = state.regions.remove_oldest(SharedMemory::is_idle) else {
                break;
            };
            evicted += range.len();
            state = self.deregister(state, vec![oldest]);
        }
        evicted > 0
    }

    /// Forgets a memory. A region in use is deregistered when its last operation has ended.
    pub(super) fn forget(&self, memory: u64) {
        let mut state = self.lock();
        let all = state.regions.remove_all(memory);
        drop(self.deregister(state, all));
    }

    /// Drops what was removed while nothing is locked: the memory is the program's, and so is the code
    /// that frees it.
    fn deregister<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        removed: Vec<SharedMemory>,
    ) -> MutexGuard<'a, State> {
        state.leaving += 1;
        drop(state);
        let leaving = Leaving(self);
        let inside = Inside::new(self);
        drop(removed);
        drop((inside, leaving));
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A slice of what is registered.
    fn slice(&mut self, memory: u64, range: &Range<usize>) -> Option<Result<SharedSlice>> {
        let (region, start) = self.regions.find(memory, range)?;
        Some(region.slice(range.start - start..range.end - start))
    }

    /// Whether a thread registers this range.
    fn is_registering(&self, memory: u64, range: &Range<usize>) -> bool {
        self.registering
            .iter()
            .any(|(of, all)| *of == memory && all.start <= range.start && range.end <= all.end)
    }
}

impl Limits {
    /// The bytes to register for a range of a memory of this length: whole parts, or the range
    /// alone if that is too much.
    fn parts(&self, len: usize, range: &Range<usize>) -> Range<usize> {
        let Self {
            max_bytes,
            part_len,
            ..
        } = *self;
        // A range without bytes is in a part, too.
        let first = range.start.min(len.saturating_sub(1));
        let start = first - first % part_len;
        let end = range.end.max(first + 1);
        let end = end.checked_next_multiple_of(part_len).unwrap_or(len);
        let parts = start..end.min(len);
        if parts.len() <= max_bytes {
            parts
        } else {
            range.clone()
        }
    }

    /// There is no room for `len` bytes.
    const fn full(&self, len: usize) -> Error {
        Error::CacheFull {
            len,
            max_bytes: self.max_bytes,
            max_regions: self.max_regions,
        }
    }
}

impl Registered {
    /// Counts another region, unless that exceeds one of the bounds. The state is locked.
    fn reserve(self: &Arc<Self>, bytes: usize, limits: &Limits) -> Option<Counted> {
        if !self.fits(bytes, limits, (0, 0)) {
            return None;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.regions.fetch_add(1, Ordering::Relaxed);
        Some(Counted {
            registered: Arc::clone(self),
            bytes,
        })
    }

    /// Whether another region is within the bounds, once the bytes and regions in `without` are
    /// deregistered.
    fn fits(&self, bytes: usize, limits: &Limits, without: (usize, usize)) -> bool {
        // Acquire: what is not counted any more was deregistered before.
        let registered = self.bytes.load(Ordering::Acquire);
        let regions = self.regions.load(Ordering::Acquire);
        let left = (
            registered.saturating_sub(without.0),
            regions.saturating_sub(without.1),
        );
        left.0.saturating_add(bytes) <= limits.max_bytes && left.1 < limits.max_regions
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn regions(&self) -> usize {
        self.regions.load(Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Self { registered, bytes } = self;
        registered.bytes.fetch_sub(*bytes, Ordering::Release);
        registered.regions.fetch_sub(1, Ordering::Release);
        registered.returns.notify();
    }
}

impl Registering<'_> {
    /// The region was registered: others find it. Returns a slice of it.
    fn done(self, region: SharedMemory, range: &Range<usize>) -> Result<SharedSlice> {
        let all = &self.range;
        if region.len() != all.len() {
            return Err(Error::Core(CoreError::OutOfBounds {
                start: all.start as u64,
                end: all.end as u64,
                len: region.len() as u64,
            }));
        }
        // Before it is found: so it is in use, and is not evicted.
        let slice = region.slice(range.start - all.start..range.end - all.start)?;
        let mut state = self.cache.lock();
        state.regions.insert(self.memory, all.clone(), region);
        Ok(slice)
    }
}

impl Drop for Registering<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        let mut registering = state.registering.iter();
        let place = registering.position(|(of, range)| *of == self.memory && *range == self.range);
        if let Some(place) = place {
            state.registering.swap_remove(place);
        }
        self.cache.changed.notify_all();
    }
}

impl<'a> Inside<'a> {
    fn new(cache: &'a Cache) -> Self {
        cache.lock().inside.push(thread::current().id());
        Self(cache)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let inside = &mut self.0.lock().inside;
        let this = thread::current().id();
        if let Some(place) = inside.iter().position(|thread| *thread == this) {
            inside.swap_remove(place);
        }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.lock().leaving -= 1;
        self.0.changed.notify_all();
    }
}

/// Whether a registration failed because too much is registered already.
fn is_full(error: &CoreError) -> bool {
    match error {
        CoreError::Memlock { .. } => true,
        CoreError::Registration { .. } => error.errno() == Some(Errno::NOMEM.raw_os_error()),
        _ => false,
    }
}
