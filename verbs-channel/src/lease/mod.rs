//! Leases: parts of shared memory that a peer can access until they are taken back.

use std::fmt;
use std::sync::Arc;

use verbs_core::codes::WcOpcode;
use verbs_core::error::Rejected;
use verbs_core::work_request::WorkRequest;
use verbs_core::{AccessFlags, RemoteMemoryRegion, WorkSuccess};

use crate::buffer::{OwnedBuffer, SharedMemory, SharedSlice};
use crate::channel_id::ChannelId;
use crate::error::{Error, RejectReason, Result, TransportError};
use entry::Entry;
pub use entry::LeaseKind;
use entry::Post;
#[doc(hidden)]
pub use lender::Lender;

mod entry;
mod lender;

/// A part of shared memory that the peer of one channel can access, until the lease ends.
///
/// The key of a region opens the region for as long as it is registered, also to a peer that comes late. A lease has
/// a key of its own, for its part only. When the lease has ended, no access with that key reaches its memory any more,
/// which can be used for something else. If the end is a system call, the driver may use the key's number again at
/// once, for another lease or region: a late access of the peer would reach the memory of that.
///
/// [`Channel::lease`](crate::Channel::lease) grants one, and [`Channel::revoke`](crate::Channel::revoke) ends it and
/// returns the memory. It also ends
///
/// - when the peer gives it back, by a send with [`invalidate`](crate::Outgoing::invalidate): see
///   [`given_back`](Self::given_back);
/// - when its [scope](crate::PollingScope::lease) does, if it was granted by one;
/// - when its channel's queue pair is destroyed: it then still has the memory, which `end` and `revoke` return at once;
/// - when it is dropped: that is a system call, as by [`end`](Self::end).
///
/// While it exists, it keeps the region registered. A lease that is leaked (`mem::forget`) ends with its scope or its
/// channel.
///
/// There are two [kinds](LeaseKind).
///
/// # If the driver refuses to end it
///
/// The lease keeps its memory, and its channel is taken down: one of verbs-async at once, others when they are polled or
/// waited for next. Once the queue pair is destroyed, the peer has no access by a window: then [`end`](Self::end) and
/// `revoke` return the memory. A region that could not be deregistered stays, and so does its memory.
pub struct Lease {
    lender: Arc<Lender>,
    // Its entry there; `NONE` once that is not this lease's any more.
    index: usize,
}

impl Lender {
    /// Makes a lease of this memory for the peer of a channel.
    ///
    /// If it is a [window](LeaseKind::Window), it is not granted yet.
    ///
    /// # Errors
    ///
    /// As [`Channel::lease`](crate::Channel::lease), with the memory.
    pub fn lease(
        self: &Arc<Self>,
        channel: ChannelId,
        slice: SharedSlice,
        access: AccessFlags,
    ) -> Result<Lease, Rejected<SharedSlice, Error>> {
        self.lease_in(channel, slice, access, false)
    }

    /// The same, for as long as a scope, if it is one's.
    pub(crate) fn lease_in(
        self: &Arc<Self>,
        channel: ChannelId,
        slice: SharedSlice,
        access: AccessFlags,
        is_scoped: bool,
    ) -> Result<Lease, Rejected<SharedSlice, Error>> {
        let index = self.reserve(channel, slice, access, is_scoped)?;
        self.entry(index, |entry| entry.watch(self, index));
        let lender = Arc::clone(self);
        Ok(Lease { lender, index })
    }
}

impl Lease {
    /// The address, length and key that the peer needs.
    ///
    /// They can be sent to it by its channel at once, and in any other way, too: the lease has been granted.
    #[must_use]
    pub fn remote(&self) -> RemoteMemoryRegion {
        self.lender.entry(self.index, |entry| entry.remote)
    }

    /// How it gives access.
    #[must_use]
    pub fn kind(&self) -> LeaseKind {
        self.lender.entry(self.index, |entry| entry.kind)
    }

    /// Ends a lease that the peer has given back, and returns its memory.
    ///
    /// `received` is the receive of the peer's send with [`invalidate`](crate::Outgoing::invalidate), and `channel` the
    /// one that it arrived on: devices, and peers, have keys with the same number. From then on, no access with the
    /// key succeeds.
    ///
    /// Never pass a receive that completed before the lease was granted: the number of a key is used again, and such a
    /// message may have given back an earlier lease. The peer of this one could then still access its memory.
    ///
    /// # Errors
    ///
    /// The lease, if that message has not given it back, or arrived on another channel.
    pub fn given_back(
        self,
        channel: ChannelId,
        received: &WorkSuccess,
    ) -> Result<SharedSlice, Self> {
        let given = (channel, received.invalidated_rkey());
        let is_given_back = self.lender.entry(self.index, |entry| {
            let its = (entry.channel, Some(entry.remote.rkey()));
            entry.kind == LeaseKind::Window && its == given && {
                entry.invalidated();
                true
            }
        });
        if is_given_back { self.end() } else { Err(self) }
    }

    /// Ends the lease without its channel, by system calls, and returns its memory.
    ///
    /// It deallocates the window, or deregisters the memory. It does not wait for the channel, and works if that is down.
    /// [`Channel::revoke`](crate::Channel::revoke) costs less, as it keeps the window.
    ///
    /// # Errors
    ///
    /// The lease, if the driver [refuses](Self#if-the-driver-refuses-to-end-it): the peer may still have access.
    #[doc(alias = "ibv_dealloc_mw")]
    #[doc(alias = "ibv_dereg_mr")]
    pub fn end(mut self) -> Result<SharedSlice, Self> {
        match self.lender.end(self.index, false) {
            Some(slice) => {
                self.index = NONE;
                Ok(slice)
            }
            None => Err(self),
        }
    }

    /// Its request for the bind, or for the invalidation.
    #[doc(hidden)]
    #[must_use]
    pub fn request(&self, is_bind: bool) -> LeaseRequest {
        LeaseRequest {
            lender: Arc::clone(&self.lender),
            index: self.index,
            what: if is_bind {
                Post::Bind
            } else {
                Post::Invalidate
            },
        }
    }

    /// It was not granted, for this reason: ends it, and hands the slice of this memory back; an empty one if that has to
    /// be kept.
    #[doc(hidden)]
    #[must_use]
    pub fn refused(
        self,
        memory: &SharedMemory,
        reason: TransportError,
    ) -> Rejected<SharedSlice, Error> {
        let slice = self.end().unwrap_or_else(|_kept| memory.empty());
        Rejected::new(reason.into(), slice)
    }

    /// Its request has succeeded.
    #[doc(hidden)]
    pub fn completed(&self) {
        self.lender.entry(self.index, Entry::completed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.index == NONE || self.lender.is_in_child() {
            return;
        }
        match self.lender.entry(self.index, Entry::abandon) {
            // It ends when the request has completed.
            Some(in_flight) => drop(in_flight),
            None => drop(self.lender.end(self.index, true)),
        }
    }
}

/// A request of a lease, which is not used any more once the lease has been dropped.
#[doc(hidden)]
#[derive(Debug)]
pub struct LeaseRequest {
    lender: Arc<Lender>,
    index: usize,
    what: Post,
}

impl LeaseRequest {
    /// The channel that it is for.
    pub(crate) fn channel(&self) -> ChannelId {
        self.lender.entry(self.index, |entry| entry.channel)
    }

    /// The opcode of its completion.
    pub(crate) const fn opcode(&self) -> WcOpcode {
        match self.what {
            Post::Bind => WcOpcode::BIND_MW,
            Post::Invalidate => WcOpcode::LOCAL_INV,
        }
    }

    /// Posts it. Returns what the operation keeps until it has completed.
    pub(crate) fn post(
        &self,
        post: impl FnOnce(&mut WorkRequest<'_>) -> Result<(), RejectReason>,
    ) -> (Result<(), RejectReason>, OwnedBuffer) {
        self.lender.entry(self.index, |entry| {
            let posted = entry.post(self.what, post);
            (posted, entry.kept())
        })
    }
}

/// The index of no entry.
const NONE: usize = usize::MAX;

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("kind", &self.kind())
            .field("remote", &self.remote())
            .finish()
    }
}
