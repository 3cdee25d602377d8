//! One lease in the table of its engine: its memory, and what gives the peer access.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::{fmt, mem};

use verbs_core::memory::{MemoryWindow, RawRegion};
use verbs_core::work_request::{BindWorkRequest, InvalidateWorkRequest, WorkRequest};
use verbs_core::{AccessFlags, Error, RemoteMemoryRegion};

use crate::buffer::{OwnedBuffer, PdTag, Registered, SharedSlice};
use crate::channel_id::ChannelId;
use crate::error::RejectReason;

/// A lease, or a place for one.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) grant: Grant,
    /// The memory; `None` if there is no lease.
    pub(super) slice: Option<SharedSlice>,
    pub(super) remote: RemoteMemoryRegion,
    pub(super) access: AccessFlags,
    pub(super) kind: LeaseKind,
    pub(super) channel: ChannelId,
    pub(super) is_scoped: bool,
    /// Its lease was dropped.
    pub(super) is_dropped: bool,
    /// The binds of its window since that rested.
    pub(super) binds: u8,
    /// Kept by its request while that is in flight. Made once for each window.
    pub(super) watch: Option<Arc<Watch>>,
}

/// The means by which the peer has access.
#[derive(Debug)]
pub(super) enum Grant {
    /// There is none, or no more.
    None,
    /// A window that is not bound.
    Free(MemoryWindow),
    /// A window that is bound, or whose bind or invalidation is in flight.
    Bound(MemoryWindow, Option<Post>),
    Registered(RawRegion<Arc<dyn Registered>>),
    /// The driver has refused to end it.
    Stuck,
}

/// How a [`Lease`](super::Lease) gives the peer access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseKind {
    /// A memory window: one request grants it, and one takes it back.
    ///
    /// Only the peer of the channel has access.
    Window,
    /// A registration of its own: system calls, which cost more the longer the memory is.
    ///
    /// A lease is one
    ///
    /// - if the channel has no [windows](crate::ChannelConfig::lease_windows), or the device has none of type 2;
    /// - if the region was registered without [`MW_BIND`](verbs_core::AccessFlags::MW_BIND), or by another library;
    /// - on soft-RoCE (the kernel's `rdma_rxe`), which does not check the bounds of windows, and whose invalidations do
    ///   not wait for accesses that have begun: see
    ///   [`MemoryWindow::checks_bounds`](verbs_core::memory::MemoryWindow::checks_bounds).
    ///
    /// Other peers of the same protection domain have access, too, if they get the key. The peer cannot give it back
    /// by [`invalidate`](crate::Outgoing::invalidate).
    Registration,
}

/// A request for a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Post {
    Bind,
    Invalidate,
}

/// Ends a lease that was dropped while its request was in flight, when that has completed.
#[derive(Debug)]
pub(super) struct Watch {
    end: Weak<dyn EndLease>,
    index: usize,
    is_abandoned: AtomicBool,
}

/// The table that the entry is in.
pub(super) trait EndLease: fmt::Debug + Send + Sync {
    /// Ends the lease.
    fn end_abandoned(&self, index: usize);
}

impl Drop for Watch {
    fn drop(&mut self) {
        if *self.is_abandoned.get_mut()
            && let Some(lender) = self.end.upgrade()
        {
            lender.end_abandoned(self.index);
        }
    }
}

impl Entry {
    /// Makes what its requests keep, unless it has that.
    pub(super) fn watch<L: EndLease + 'static>(&mut self, lender: &Arc<L>, index: usize) {
        if self.kind == LeaseKind::Window && self.watch.is_none() {
            let end: Weak<L> = Arc::downgrade(lender);
            self.watch = Some(Arc::new(Watch {
                end,
                index,
                is_abandoned: AtomicBool::new(false),
            }));
        }
    }

    /// A slice of its memory that keeps the watch.
    pub(super) fn kept(&self) -> OwnedBuffer {
        match (&self.slice, &self.watch) {
            (Some(slice), Some(watch)) => slice.clone().owned_by(Arc::clone(watch)).into_owned(),
            _ => OwnedBuffer::empty(),
        }
    }

    /// Its lease was dropped. If a request of it is in flight, or was when that was looked at last, the lease ends when
    /// all that keep this have been dropped.
    pub(super) fn abandon(&mut self) -> Option<Arc<Watch>> {
        if !matches!(self.grant, Grant::Bound(_, Some(_))) {
            return None;
        }
        let watch = self.watch.take()?;
        watch.is_abandoned.store(true, Ordering::Relaxed);
        Some(watch)
    }

    /// Builds the request, and posts it. The window is bound from then on, until the outcome is known.
    pub(super) fn post<T>(
        &mut self,
        what: Post,
        post: impl FnOnce(&mut WorkRequest<'_>) -> Result<T, RejectReason>,
    ) -> Result<T, RejectReason> {
        match (mem::replace(&mut self.grant, Grant::None), what) {
            (Grant::Free(mut window), Post::Bind) => {
                let before = window.rkey();
                let posted = self.bind(&mut window, post);
                match &posted {
                    Err(reason) if !may_be_posted(reason) => {
                        window.set_rkey(before);
                        self.grant = Grant::Free(window);
                    }
                    _ => {
                        self.binds += 1;
                        self.grant = Grant::Bound(window, Some(what));
                    }
                }
                posted
            }
            (Grant::Bound(window, None), Post::Invalidate) => {
                let posted = match InvalidateWorkRequest::new(&window) {
                    Ok(request) => post(&mut request.into()),
                    Err(error) => Err(reason(error)),
                };
                let is_posted = posted.as_ref().err().is_none_or(may_be_posted);
                self.grant = Grant::Bound(window, is_posted.then_some(what));
                posted
            }
            // It has ended with its channel.
            (grant, _) => {
                self.grant = grant;
                Err(RejectReason::GONE)
            }
        }
    }

    fn bind<T>(
        &mut self,
        window: &mut MemoryWindow,
        post: impl FnOnce(&mut WorkRequest<'_>) -> Result<T, RejectReason>,
    ) -> Result<T, RejectReason> {
        let slice = self.slice.as_ref().ok_or(RejectReason::GONE)?;
        let (region, part) = slice
            .lent(PdTag::of(window.pd()))
            .ok_or(RejectReason::OtherDomain)?;
        let info = region.bind_info(part, self.access).map_err(reason)?;
        let bind = BindWorkRequest::new(window, &info).map_err(reason)?;
        self.remote = bind.remote();
        post(&mut bind.into())
    }

    /// The request that was posted last has succeeded.
    pub(super) fn completed(&mut self) {
        self.grant = match mem::replace(&mut self.grant, Grant::None) {
            Grant::Bound(window, Some(Post::Invalidate)) => Grant::Free(window),
            Grant::Bound(window, _) => Grant::Bound(window, None),
            other => other,
        };
    }

    /// The peer has invalidated the window's key.
    pub(super) fn invalidated(&mut self) {
        self.grant = match mem::replace(&mut self.grant, Grant::None) {
            Grant::Bound(window, None) => Grant::Free(window),
            other => other,
        };
    }

    /// Ends the access that it gives, if it does, without a request. Returns whether that was by deallocating a window.
    pub(super) fn close(&mut self) -> Result<bool, Error> {
        let (closed, is_window) = match mem::replace(&mut self.grant, Grant::None) {
            Grant::None => (Ok(()), false),
            Grant::Free(window) | Grant::Bound(window, _) => (window.close(), true),
            // The slice has the region, too.
            Grant::Registered(region) => (region.dereg().map(drop), false),
            Grant::Stuck => (
                Err(Error::InUse {
                    object: "the lease",
                }),
                false,
            ),
        };
        match closed {
            // In the child of a fork nothing has happened to the parent's.
            Ok(()) | Err(Error::OtherProcess { .. }) => Ok(is_window),
            Err(error) => {
                self.grant = Grant::Stuck;
                Err(error)
            }
        }
    }
}

/// Whether the device may have a request that was rejected for this reason.
fn may_be_posted(reason: &RejectReason) -> bool {
    matches!(reason, RejectReason::Post(error) if error.posted() > 0)
}

/// The memory was checked before: what is left is the driver's.
fn reason(error: Error) -> RejectReason {
    RejectReason::from_core(&error)
}
