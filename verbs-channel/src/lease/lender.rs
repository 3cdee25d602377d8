//! The leases of an engine, and its windows, which are given out in turn.
#![expect(unsafe_code, reason = "registers parts of regions that it keeps")]

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use verbs_core::__private::Process;
use verbs_core::codes::DeviceCapFlags;
use verbs_core::error::{ErrorChain, Rejected};
use verbs_core::memory::{MwType, RawRegion};
use verbs_core::{AccessFlags, ProtectionDomain, RemoteMemoryRegion};

use super::entry::{EndLease, Entry, Grant, LeaseKind};
use crate::buffer::{Leaked, PdTag, Registered, SharedSlice};
use crate::channel_id::ChannelId;
use crate::error::{Error, RejectReason, Result, TransportError};
use crate::panics::log_error;

/// Grants the leases of an [engine](crate::engine::Engine)'s channels, for layers that wait in their own way.
///
/// It needs no engine for what takes system calls.
pub struct Lender {
    pd: ProtectionDomain,
    process: Process,
    /// How long a window rests when all its keys have been used.
    rest: Duration,
    max_windows: u32,
    state: Mutex<State>,
    on_failed: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct State {
    // In this order: a window ends before the memory that it is bound to.
    entries: Vec<Entry>,
    /// Those with a window that can be bound, in the order in which they became free.
    free: VecDeque<usize>,
    /// Those whose window rests, and until when.
    resting: VecDeque<(Instant, usize)>,
    /// Those with nothing.
    vacant: Vec<usize>,
    /// Windows that have been deallocated since.
    missing: u32,
    /// Channels of leases that could not be ended, and why.
    failed: Vec<(ChannelId, i32)>,
}

impl Lender {
    /// Allocates this number of windows, if the device has some.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        windows: u32,
        rest: Duration,
    ) -> verbs_core::Result<Arc<Self>> {
        let type_2 = DeviceCapFlags::MEM_WINDOW_TYPE_2A | DeviceCapFlags::MEM_WINDOW_TYPE_2B;
        let has_windows =
            windows > 0 && (pd.context().query_device()?.device_cap_flags()).intersects(type_2);
        let mut lender = Self {
            pd: pd.clone(),
            process: Process::current(),
            rest,
            max_windows: if has_windows { windows } else { 0 },
            state: Mutex::default(),
            on_failed: OnceLock::new(),
        };
        let mut state = State::default();
        for index in 0..lender.max_windows as usize {
            let window = pd.alloc_mw(MwType::Type2)?;
            if !window.checks_bounds() {
                lender.max_windows = 0;
                break;
            }
            state.entries.push(Entry::new(Grant::Free(window)));
            state.free.push_back(index);
        }
        // A lease allocates nothing later.
        state.resting.reserve(state.free.len());
        state.vacant.reserve(state.free.len());
        lender.state = Mutex::new(state);
        let lender = Arc::new(lender);
        for index in 0..lender.max_windows as usize {
            lender.entry(index, |entry| entry.watch(&lender, index));
        }
        Ok(lender)
    }

    /// An entry for a lease of this memory, with a window or a registration.
    pub(super) fn reserve(
        &self,
        channel: ChannelId,
        slice: SharedSlice,
        access: AccessFlags,
        is_scoped: bool,
    ) -> Result<usize, Rejected<SharedSlice, Error>> {
        let access = access & AccessFlags::REMOTE;
        match self.reserve_for(&slice, access) {
            Ok(index) => {
                self.entry(index, |entry| {
                    (entry.slice, entry.access) = (Some(slice), access);
                    (entry.channel, entry.is_scoped) = (channel, is_scoped);
                });
                Ok(index)
            }
            Err(error) => Err(Rejected::new(error, slice)),
        }
    }

    fn reserve_for(&self, slice: &SharedSlice, access: AccessFlags) -> Result<usize> {
        let lent = slice.lent(PdTag::of(&self.pd));
        let (region, part) = lent.ok_or_else(|| rejected(RejectReason::OtherDomain))?;
        let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        let may_write = region.access().contains(AccessFlags::LOCAL_WRITE);
        if access.is_empty() || access.intersects(writes) && !may_write {
            return Err(rejected(RejectReason::LeaseAccess));
        }
        if part.is_empty() {
            return Err(Error::Core(verbs_core::Error::OutOfRange {
                what: "the length of a lease",
                value: 0,
                min: 1,
                max: u64::MAX,
            }));
        }
        if self.max_windows > 0 && region.access().contains(AccessFlags::MW_BIND) {
            return self.free_window();
        }
        let local = if access.intersects(writes) {
            AccessFlags::LOCAL_WRITE
        } else {
            AccessFlags::empty()
        };
        let registered = self.register(region, part, access | local)?;
        let remote = registered.remote();
        let mut entry = Entry::new(Grant::Registered(registered));
        (entry.kind, entry.remote) = (LeaseKind::Registration, remote);
        Ok(self.lock().add(entry))
    }

    /// The entry of a window that is free.
    fn free_window(&self) -> Result<usize> {
        let mut state = self.lock();
        if state.free.is_empty() {
            state.end_rests();
        }
        if let Some(index) = state.free.pop_front() {
            return Ok(index);
        }
        if state.missing == 0 {
            let max = self.max_windows;
            return Err(rejected(RejectReason::NoWindow { max }));
        }
        state.missing -= 1;
        drop(state);
        let window = self.pd.alloc_mw(MwType::Type2);
        let mut state = self.lock();
        match window {
            Ok(window) => Ok(state.add(Entry::new(Grant::Free(window)))),
            Err(error) => {
                state.missing += 1;
                Err(error.into())
            }
        }
    }

    fn register(
        &self,
        region: Arc<dyn Registered>,
        part: Range<usize>,
        access: AccessFlags,
    ) -> Result<RawRegion<Arc<dyn Registered>>> {
        let start = region.start();
        let start = start.and_then(|start| NonNull::new(start.as_ptr().wrapping_add(part.start)));
        let Some(start) = start else {
            let verb = "ibv_reg_mr of a part of this region";
            return Err(Error::Core(verbs_core::Error::Unsupported { verb }));
        };
        // SAFETY: the region keeps the memory mapped for as long as it is registered itself, which the `Arc` sees to. The
        // part is within it. No `&mut` to its bytes is ever live, as it is a region whose bytes cannot be borrowed. If
        // `access` permits writes, the region has `LOCAL_WRITE`: it was checked above, and so its memory is
        // writable, and all rules about what the device may write are kept for the region already.
        let registered = unsafe { self.pd.register_raw(start, part.len(), access, region) };
        Ok(registered?)
    }

    /// Ends the access of a lease without a request, unless it has ended. Returns its memory, and takes its entry back.
    /// `None` if the driver refuses, which is logged once: the entry keeps the memory, also of a lease that is dropped.
    pub(super) fn end(&self, index: usize, is_dropped: bool) -> Option<SharedSlice> {
        let mut entry = {
            let mut state = self.lock();
            mem::replace(&mut state.entries[index], Entry::new(Grant::None))
        };
        entry.is_dropped = is_dropped;
        let ended = match entry.grant {
            Grant::Stuck => Err(None),
            // It keeps its window.
            Grant::Free(_) => Ok(false),
            _ => entry.close().map_err(Some),
        };
        let mut state = self.lock();
        match ended {
            Ok(is_window) => {
                let slice = entry.slice.take();
                state.missing += u32::from(is_window);
                match entry.grant {
                    Grant::Free(_) if entry.binds == LEASES => {
                        let until = Instant::now().checked_add(self.rest);
                        entry.binds = 0;
                        // Without an end, it rests for good.
                        if let Some(until) = until {
                            state.resting.push_back((until, index));
                        }
                    }
                    Grant::Free(_) => state.free.push_back(index),
                    _ => state.vacant.push(index),
                }
                let Entry {
                    grant,
                    binds,
                    watch,
                    ..
                } = entry;
                state.entries[index] = Entry {
                    binds,
                    watch,
                    ..Entry::new(grant)
                };
                slice
            }
            Err(error) => {
                let channel = entry.channel;
                state.entries[index] = entry;
                if let Some(error) = error {
                    state.failed.push((channel, error.errno().unwrap_or(0)));
                    drop(state);
                    let error = ErrorChain::new(&error);
                    log_error(format_args!(
                        "cannot end a lease, whose peer may still have access: its memory is kept, and its channel is \
                         taken down: {error}"
                    ));
                    if let Some(failed) = self.on_failed.get() {
                        failed();
                    }
                }
                None
            }
        }
    }

    /// Ends the access of all leases of a channel, or of those that a scope has granted. They keep their memory.
    ///
    /// Returns how many the driver has refused to end, and why.
    pub(crate) fn end_all(
        &self,
        channel: ChannelId,
        only_scoped: bool,
    ) -> Option<(usize, verbs_core::Error)> {
        let mut state = self.lock();
        let State {
            entries, missing, ..
        } = &mut *state;
        let mut refused = None;
        let its = entries
            .iter_mut()
            .filter(|entry| entry.channel == channel && (entry.is_scoped || !only_scoped));
        for entry in its {
            if let Grant::None | Grant::Free(_) | Grant::Stuck = entry.grant {
                continue;
            }
            match entry.close() {
                Ok(is_window) => *missing += u32::from(is_window),
                Err(error) => refused = Some((refused.map_or(0, |(count, _)| count) + 1, error)),
            }
        }
        refused
    }

    /// The queue pair of a channel is destroyed: its peer has no access by a window any more, though that could not be
    /// deallocated. Or it is stuck. Memory that stays accessible is leaked.
    ///
    /// Returns whether there is memory to be [freed](Self::free_dropped).
    pub(crate) fn queue_pair_ended(
        &self,
        channel: ChannelId,
        is_destroyed: bool,
        leaked: &mut Leaked,
    ) -> bool {
        let mut has_dropped = false;
        for entry in &mut self.lock().entries {
            if entry.channel != channel || !matches!(entry.grant, Grant::Stuck) {
                continue;
            }
            if is_destroyed && entry.kind == LeaseKind::Window {
                entry.grant = Grant::None;
                has_dropped |= entry.is_dropped;
            } else if let Some(slice) = &entry.slice {
                slice.announce_leak(leaked);
            }
        }
        has_dropped
    }

    /// Frees the memory of leases that were dropped, and have ended since.
    pub(crate) fn free_dropped(&self) {
        let mut state = self.lock();
        let State {
            entries, vacant, ..
        } = &mut *state;
        let mut freed = Vec::new();
        for (index, entry) in (0..).zip(entries) {
            if entry.is_dropped && matches!(entry.grant, Grant::None) {
                freed.push(mem::replace(entry, Entry::new(Grant::None)));
                vacant.push(index);
            }
        }
        drop(state);
        // Without the lock: the owners of slices are code of others.
        drop(freed);
    }

    /// Sets what is called, without a lock, when a lease could not be ended: it is to call
    /// [`end_failed_leases`](crate::engine::Engine::end_failed_leases), or to have that called.
    pub fn on_failed(&self, failed: impl Fn() + Send + Sync + 'static) {
        let _first = self.on_failed.set(Box::new(failed));
    }

    /// A channel with a lease that could not be ended, and the errno.
    pub(crate) fn next_failed(&self) -> Option<(ChannelId, i32)> {
        self.lock().failed.pop()
    }

    /// Whether this is the child of a fork, where the lock may be another thread's that is not there.
    pub(super) fn is_in_child(&self) -> bool {
        !self.process.is_current()
    }

    /// Looks at the entry of a lease, or changes it.
    pub(super) fn entry<T>(&self, index: usize, with: impl FnOnce(&mut Entry) -> T) -> T {
        with(&mut self.lock().entries[index])
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EndLease for Lender {
    fn end_abandoned(&self, index: usize) {
        if !self.is_in_child() {
            drop(self.end(index, true));
        }
    }
}

impl State {
    /// Adds an entry, in a vacant place if there is one.
    fn add(&mut self, entry: Entry) -> usize {
        match self.vacant.pop() {
            Some(index) => {
                self.entries[index] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        }
    }

    /// Frees the windows that have rested.
    #[cold]
    fn end_rests(&mut self) {
        let now = Instant::now();
        while let Some((until, index)) = self.resting.front().copied()
            && until <= now
        {
            self.resting.pop_front();
            self.free.push_back(index);
        }
    }
}

impl Entry {
    pub(super) fn new(grant: Grant) -> Self {
        Self {
            grant,
            slice: None,
            remote: RemoteMemoryRegion::default(),
            access: AccessFlags::empty(),
            kind: LeaseKind::Window,
            channel: ChannelId::NONE,
            is_scoped: false,
            is_dropped: false,
            binds: 0,
            watch: None,
        }
    }
}

impl fmt::Debug for Lender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lender")
            .field("max_windows", &self.max_windows)
            .finish_non_exhaustive()
    }
}

fn rejected(reason: RejectReason) -> Error {
    TransportError::from(reason).into()
}

/// How many leases a window has before it rests: the next key would be its first one.
const LEASES: u8 = u8::MAX;
