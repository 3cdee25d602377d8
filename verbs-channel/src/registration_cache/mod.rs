//! A cache of registrations, for memory that is registered while it is used.

mod cache;
mod regions;

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use verbs_core::__private::Process;
use verbs_core::ProtectionDomain;

use crate::buffer::{Returns, Shareable, SharedMemory, SharedSlice, within};
use crate::error::Result;
use cache::{Cache, Limits, Register};

/// A bounded cache of registrations, for programs with more memory than they can keep registered.
///
/// Registering memory takes a system call that pins each of its pages: from microseconds to many
/// milliseconds. The cache registers memory in parts when they are first used, and keeps them
/// registered. When its bounds are reached, it deregisters the part that has not been used for the
/// longest time.
///
/// A program that can keep all of its memory registered needs no cache: a
/// [`SharedMemory`] of one region does the same.
///
/// ```no_run
/// # use std::ptr::NonNull;
/// # struct Mapping(usize);
/// # impl Mapping {
/// #     fn new(len: usize) -> Self { Self(len) }
/// #     fn len(&self) -> usize { self.0 }
/// #     fn at(&self, _: usize) -> NonNull<u8> { NonNull::dangling() }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use verbs_channel::verbs_core::{AccessFlags, Context};
/// use verbs_channel::{Channel, RegistrationCache};
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// # let (mut channel, _peer) = Channel::loopback(&pd)?;
/// // At most 8 GiB are registered.
/// let cache = RegistrationCache::builder(&pd, 8 << 30).build();
///
/// // Any type that frees its memory when it is dropped: of a crate for `mmap`, for example.
/// let mapping = Arc::new(Mapping::new(64 << 30));
/// let memory = cache.memory(mapping.len(), move |pd, part| {
///     let start = mapping.at(part.start);
///     let (access, keepalive) = (AccessFlags::LOCAL_WRITE, Arc::clone(&mapping));
///     // SAFETY: `keepalive` keeps the mapping, whose bytes are accessed by raw pointers only.
///     unsafe { pd.register_raw(start, part.len(), access, keepalive) }
/// });
///
/// // Registers a part of 64 MiB.
/// let first = channel.start_send(memory.slice(4096..8192)?)?;
/// // The same part: this is a look-up.
/// let second = channel.start_send(memory.slice(8192..16384)?)?;
/// # for ticket in [first, second] {
/// #     channel.wait(ticket, None)?;
/// # }
/// # Ok(())
/// # }
/// ```
///
/// # What is registered, and for how long
///
/// - A [slice](CachedMemory::slice) uses a region that contains its range, if there is one. Otherwise the
///   [parts](RegistrationCacheBuilder::part_len) that contain its range are registered as one region. If
///   the bounds are too small for that, only the range is registered.
/// - A region is *in use* while a slice of it exists: in the program, or in an operation that has not
///   ended; and while the program has its [memory](SharedSlice::memory). It is never evicted then.
/// - A region that is not in use stays registered until it is evicted, or the last clone of its
///   [`CachedMemory`] is dropped. If the last clone is dropped while the region is in use, the region is
///   deregistered with its last slice.
/// - Each region keeps the memory alive, by the keepalive with which it was registered. So the memory is
///   freed when the [`CachedMemory`] has been dropped and no slice is left.
///
/// # No stale registration
///
/// A cache that is keyed by address finds a stale region if memory was freed and other memory was
/// mapped at the same address. This cannot happen here: regions belong to a [`CachedMemory`], and
/// are looked up by their place in it. Each region keeps its memory alive, so the memory cannot
/// be freed or mapped anew while the region can be found.
///
/// # Bounds
///
/// Regions that are in use cannot be evicted, and count towards the bounds. So a slice that needs
/// more fails with [`Error::CacheFull`](crate::Error::CacheFull). The error
/// [is backpressure](crate::Error::is_backpressure) if some operations must end first. Memory
/// that is dropped while it is in use counts until its last slice is dropped.
///
/// If the kernel or the device has no room for a registration ("locked memory", `ulimit -l`),
/// regions of that size are evicted, and the registration is tried once more.
///
/// # Threads
///
/// The cache can be used from all threads at once; cloning it is cheap and shares it. It holds no lock
/// while memory is registered, deregistered or freed. If several threads need the same part, one
/// registers it, and the others wait for it, up to the [`timeout`](RegistrationCacheBuilder::timeout).
///
/// # Cost
///
/// A slice of an existing region takes a lock and a binary search among the regions, which a slice of a
/// [`SharedMemory`] does not. It allocates nothing, unless more slices of the region exist than ever before. Any other slice takes as long as the registration: in async code use
/// `verbs_async::cached_slice`, or a thread that may block.
#[derive(Clone)]
#[doc(alias = "ibv_reg_mr")]
pub struct RegistrationCache {
    shared: Arc<Cache>,
}

/// Memory whose used parts a [`RegistrationCache`] registers.
///
/// Cloning is cheap and shares the memory. After the last clone has been dropped, its regions are
/// deregistered: at once, or with their last slice.
#[derive(Clone)]
pub struct CachedMemory {
    memory: Arc<Memory>,
}

struct Memory {
    /// No two memories of a process have the same.
    id: u64,
    len: usize,
    register: Box<Register>,
    process: Process,
    cache: Arc<Cache>,
}

#[bon::bon]
impl RegistrationCache {
    /// Starts to build a cache, which registers at most `max_bytes` in this protection domain.
    #[builder(
        builder_type(doc {
            /// Builder for a cache of registrations, from [`RegistrationCache::builder`].
        }),
        finish_fn(doc {
            /// Builds the cache, which has registered nothing yet.
        }),
        derive(Clone, Debug),
        on(_, required),
        on(_, setters(doc(default(skip)))),
    )]
    #[must_use]
    pub fn new(
        #[builder(start_fn)] pd: &ProtectionDomain,
        #[builder(start_fn)] max_bytes: usize,
        /// The most regions that are registered at once: 1024 unless set, and at least 1.
        #[builder(default = 1024, setters(option_fn(vis = "")))]
        max_regions: usize,
        /// How many bytes of memory are registered together: 64 MiB unless set, and at least 1.
        ///
        /// Memory is divided into parts of this length from its start on; the last may be shorter. It should
        /// be a multiple of the page size.
        #[builder(default = 64 << 20, setters(option_fn(vis = "")))]
        part_len: usize,
        /// How long a slice waits for other threads that register the same part, or deregister something to make
        /// room; without a bound unless set. With [`Duration::ZERO`] it does not wait.
        ///
        /// The time that a registration takes in the thread itself has no bound: it is a system call.
        #[builder(default = None, with = |value: impl Into<Option<Duration>>| value.into(), setters(option_fn(vis = "")))]
        timeout: Option<Duration>,
    ) -> Self {
        let limits = Limits {
            max_bytes,
            max_regions: max_regions.max(1),
            part_len: part_len.max(1),
            timeout,
        };
        Self {
            shared: Arc::new(Cache::new(pd.clone(), limits)),
        }
    }
}

impl RegistrationCache {
    /// Adds memory of `len` bytes, of which nothing is registered yet.
    ///
    /// `register` is called for each part that is to be registered. It registers exactly these
    /// bytes of the memory in that protection domain, with a keepalive that keeps the memory: as
    /// [`register_raw`](ProtectionDomain::register_raw) or
    /// [`reg_dmabuf_mr`](ProtectionDomain::reg_dmabuf_mr) does. It may be called by several threads
    /// at once, for different parts. It, and the drop of a keepalive, can take slices of the cache's memory, but
    /// never wait for another thread: [`Error::CacheRecursion`](crate::Error::CacheRecursion).
    ///
    /// This function needs no promise about the memory: the `unsafe` registration in `register` has
    /// all of them.
    #[must_use]
    pub fn memory<R: Shareable>(
        &self,
        len: usize,
        register: impl Fn(&ProtectionDomain, Range<usize>) -> verbs_core::Result<R>
        + Send
        + Sync
        + 'static,
    ) -> CachedMemory {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        CachedMemory {
            memory: Arc::new(Memory {
                id: NEXT.fetch_add(1, Ordering::Relaxed),
                len,
                register: Box::new(move |cache, part, counted| {
                    let region = register(&cache.pd, part)?;
                    let returns = Some(Arc::clone(&cache.registered.returns));
                    Ok(SharedMemory::with_follower(region, counted, returns))
                }),
                process: Process::current(),
                cache: Arc::clone(&self.shared),
            }),
        }
    }

    /// How many bytes the cache has registered, in use or not.
    #[must_use]
    pub fn registered_bytes(&self) -> usize {
        self.shared.registered.bytes()
    }

    /// How many regions the cache has registered, in use or not.
    #[must_use]
    pub fn registered_regions(&self) -> usize {
        self.shared.registered.regions()
    }
}

impl CachedMemory {
    /// A slice of the memory, which is registered first if it is not registered yet. The range
    /// counts bytes.
    ///
    /// Its [`offset`](SharedSlice::offset) counts from the start of the region that the slice uses,
    /// which may begin before the range.
    ///
    /// # Errors
    ///
    /// - [`verbs_core::Error::OutOfBounds`]: the range ends after the memory, or the closure
    ///   registered a region of another length.
    /// - [`Error::CacheFull`](crate::Error::CacheFull): there is no room within the bounds of the cache.
    /// - [`Error::CacheTimedOut`](crate::Error::CacheTimedOut): the cache's
    ///   [`timeout`](RegistrationCacheBuilder::timeout) has passed in a wait for other threads.
    /// - [`Error::CacheRecursion`](crate::Error::CacheRecursion): this is called within a registration, and would
    ///   wait for itself or another thread.
    /// - The error of the registration.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<SharedSlice> {
        let Memory {
            id,
            len,
            ref register,
            ref cache,
            ..
        } = *self.memory;
        let range = within(range, len)?;
        cache.slice(id, len, range, register)
    }

    /// A slice of memory that is already registered: this never blocks. `None` if
    /// [`slice`](Self::slice) would register something first, or wait for a thread that does.
    ///
    /// # Errors
    ///
    /// As [`slice`](Self::slice), without those of a registration.
    #[doc(hidden)]
    pub fn slice_if_registered(
        &self,
        range: impl RangeBounds<usize>,
    ) -> Result<Option<SharedSlice>> {
        let Memory { id, len, cache, .. } = &*self.memory;
        let range = within(range, *len)?;
        cache.slice_if_registered(*id, *len, &range)
    }

    /// Waits until the cache may have room: a future for any runtime.
    ///
    /// It is ready when a slice of any memory of the cache was dropped, or a region was deregistered, since
    /// the future was created or last ready. So create it before the attempt that may fail, and await it after
    /// that:
    ///
    /// ```no_run
    /// # use verbs_channel::Result;
    /// # use verbs_channel::buffer::SharedSlice;
    /// # use verbs_channel::registration_cache::CachedMemory;
    /// /// On a task that may block.
    /// async fn slice(memory: &CachedMemory) -> Result<SharedSlice> {
    ///     let mut room = memory.room();
    ///     loop {
    ///         match memory.slice(..4096) {
    ///             Err(error) if error.is_backpressure() => (&mut room).await,
    ///             result => return result,
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// All tasks that wait are woken, and one of them finds the room.
    ///
    /// Dropping it has no effect on others.
    pub fn room(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        let returns = &self.memory.cache.registered.returns;
        let mut watch = Returns::watch(returns);
        poll_fn(move |cx| watch.poll_returned(cx))
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len
    }

    /// Whether it has no bytes: then it has no slices.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // In the child of a fork, nothing is deregistered, and another thread may have had the lock.
        if self.process.is_current() {
            self.cache.forget(self.id);
        }
    }
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationCache")
            .field("registered_bytes", &self.registered_bytes())
            .field("registered_regions", &self.registered_regions())
            .field("limits", &self.shared.limits)
            .finish()
    }
}

impl fmt::Debug for CachedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CachedMemory({} bytes)", self.len())
    }
}
