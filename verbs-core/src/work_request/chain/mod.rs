//! Chains of requests that are built once, patched in place, and posted again and again.

mod block;
#[cfg(debug_assertions)]
pub(crate) mod check_domain;
pub(crate) mod internal;
mod kinds;
pub(crate) mod post;

use std::fmt;
use std::marker::PhantomData;

use verbs_sys::{ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use super::{
    FENCE, ReadWorkRequest, ReceiveWorkRequest, SIGNALED, SendWorkRequest, WorkRequest,
    WriteWorkRequest,
};
use crate::error::{Error, Result};
pub(crate) use block::{Block, Linked};

/// A chain of requests of one kind that is built once, and posted again and again.
///
/// Its requests are patched in place. All of them can be posted, or any range.
///
/// It owns its requests and copies of their elements, at addresses that do not change, and links them
/// once. So a post costs as much as in C, however many requests it has, and nothing is allocated after
/// the chain is made. For a single request that is posted again and again, use a chain of one.
///
/// [`sends`](Self::sends), [`writes`](Self::writes), [`reads`](Self::reads) and
/// [`receives`](Self::receives) make a chain, from the number of requests and the maximum number of
/// elements of each. [`QueuePair::post_chain`](crate::QueuePair::post_chain) and
/// [`QueuePair::post_receive_chain`](crate::QueuePair::post_receive_chain) post it. The driver copies the
/// requests during the post: when it returns, the chain can be patched, posted to another queue pair, or
/// dropped. The device still uses the memory of the elements, as for any request.
///
/// ```
/// use verbs_core::RemoteMemoryRegion;
/// use verbs_core::memory::Sge;
/// use verbs_core::work_request::RequestChain;
///
/// let theirs = RemoteMemoryRegion::new(0x7000_0000, 64 << 12, 9)?;
/// // 64 writes of a page each. Only the last one has a completion, and immediate data.
/// let mut pages = RequestChain::writes(64, 1)?.signal_every(0);
/// pages.set_immediate(63, Some(7))?;
/// for (index, page) in (0..64).enumerate() {
///     let ours = Sge::new(0x1000_0000 + (page << 12), 1 << 12, 5);
///     pages.set(index, ours, &theirs.slice(page << 12..)?)?;
/// }
/// // Post it, poll the completion of the last request; then the same with other pages.
/// # Ok::<(), verbs_core::Error>(())
/// ```
#[doc(alias = "ibv_send_wr")]
#[doc(alias = "ibv_recv_wr")]
pub struct RequestChain<R: ChainRequest> {
    block: Block<R::Wr>,
    // All elements can go to other threads, unlike requests on the stack.
    requests: PhantomData<fn() -> R>,
}

/// A kind of request that a [`RequestChain`] can consist of.
///
/// It is sealed: types of other crates cannot implement it.
pub trait ChainRequest: sealed::Sealed {
    /// C's type of such a request.
    #[expect(private_bounds, reason = "seals it")]
    type Wr: Linked;
}

mod sealed {
    /// Keeps [`ChainRequest`](super::ChainRequest) to the kinds here.
    #[expect(unnameable_types, reason = "seals a trait")]
    pub trait Sealed {}
}

macro_rules! kinds {
    ($($request:ident: $wr:ident)*) => {$(
        impl sealed::Sealed for $request<'_> {}

        impl ChainRequest for $request<'_> {
            type Wr = $wr;
        }
    )*};
}

kinds! {
    SendWorkRequest: ibv_send_wr
    WriteWorkRequest: ibv_send_wr
    ReadWorkRequest: ibv_send_wr
    ReceiveWorkRequest: ibv_recv_wr
    // For layers above: see `internal`.
    WorkRequest: ibv_send_wr
}

impl<R: ChainRequest> RequestChain<R> {
    fn new(len: usize, max_sge: u32) -> Result<Self> {
        let block = Block::new(len, max_sge)?;
        let requests = PhantomData;
        Ok(Self { block, requests })
    }

    /// How many requests the chain has: at least 1.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.block.len()
    }

    /// How many elements a request can have.
    #[inline]
    #[must_use]
    pub const fn max_sge(&self) -> u32 {
        self.block.max_sge()
    }

    /// Changes the ID in a request's completion. It is 0 unless set.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the chain has no such request.
    #[inline]
    pub fn set_wr_id(&mut self, index: usize, wr_id: u64) -> Result<()> {
        let len = self.len();
        let Some(request) = self.block.get(index) else {
            return Err(no_request(index, len));
        };
        *request.wr_id() = wr_id;
        Ok(())
    }

    /// Changes the IDs of all requests to `first`, `first + 1` and so on, with wrap-around.
    #[inline]
    pub fn set_wr_ids(&mut self, first: u64) {
        let mut wr_id = first;
        for index in 0..self.len() {
            if let Some(request) = self.block.get(index) {
                *request.wr_id() = wr_id;
            }
            wr_id = wr_id.wrapping_add(1);
        }
    }

    pub(crate) fn block(&mut self) -> &mut Block<R::Wr> {
        &mut self.block
    }

    /// Gives a request one element, or none if it is empty.
    #[inline]
    fn put(&mut self, index: usize, sge: ibv_sge) -> Result<&mut R::Wr> {
        let len = self.len();
        let Some((request, first)) = self.block.with_first(index) else {
            return Err(no_request(index, len));
        };
        *first = sge;
        *request.list().1 = (sge.length != 0).into();
        Ok(request)
    }

    /// Gives a request the elements that are not empty, and returns their bytes. After an error it
    /// has none.
    fn put_all(&mut self, index: usize, sges: impl Iterator<Item = ibv_sge>) -> Result<u64> {
        let (len, max) = (self.len(), self.max_sge());
        let Some((request, room)) = self.block.with_room(index) else {
            return Err(no_request(index, len));
        };
        let num_sge = request.list().1;
        *num_sge = 0;
        let (mut count, mut total) = (0, 0);
        for sge in sges.filter(|sge| sge.length != 0) {
            if let Some(place) = room.get_mut(count as usize) {
                *place = sge;
            }
            count += 1_u32;
            total += u64::from(sge.length);
        }
        match i32::try_from(count) {
            Ok(count) if count.unsigned_abs() <= max => *num_sge = count,
            _ => {
                return Err(Error::OutOfRange {
                    what: "number of elements",
                    value: count.into(),
                    min: 0,
                    max: max.into(),
                });
            }
        }
        Ok(total)
    }
}

impl<R: ChainRequest<Wr = ibv_send_wr>> RequestChain<R> {
    fn of(opcode: ibv_wr_opcode, len: usize, max_sge: u32) -> Result<Self> {
        let mut chain = Self::new(len, max_sge)?;
        chain.each(|_, request| {
            request.opcode = opcode;
            request.send_flags = SIGNALED;
        });
        Ok(chain)
    }

    fn each(&mut self, mut change: impl FnMut(usize, &mut ibv_send_wr)) {
        for index in 0..self.len() {
            if let Some(request) = self.block.get(index) {
                change(index, request);
            }
        }
    }

    /// Signals every `count`th request, and the last one; 0 signals only the last one.
    ///
    /// Only signalled requests have a completion if they succeed. Unless this is set, each request is
    /// signalled. The last request of a post is always signalled, whichever it is.
    ///
    /// The requests before a signalled one keep their places in the send queue until it completes. So
    /// choose at most half of [`max_send_wr`](crate::queue_pair::QpCap::max_send_wr), if the chain is to be posted
    /// piece by piece to a queue that may be full.
    #[must_use]
    #[doc(alias = "IBV_SEND_SIGNALED")]
    pub fn signal_every(mut self, count: usize) -> Self {
        let len = self.len();
        self.each(|index, request| {
            let place = index + 1;
            let is_signaled = place == len || (count != 0 && place % count == 0);
            request.send_flags &= !SIGNALED;
            request.send_flags |= if is_signaled { SIGNALED } else { 0 };
        });
        self
    }

    /// The device starts each request only after earlier reads and atomics of the queue pair are done.
    #[must_use]
    #[doc(alias = "IBV_SEND_FENCE")]
    pub fn fence(self) -> Self {
        self.flagged(FENCE)
    }

    fn flagged(mut self, flag: u32) -> Self {
        self.each(|_, request| request.send_flags |= flag);
        self
    }
}

impl<R: ChainRequest> fmt::Debug for RequestChain<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestChain")
            .field("len", &self.len())
            .field("max_sge", &self.max_sge())
            .finish_non_exhaustive()
    }
}

#[cold]
fn no_request(index: usize, len: usize) -> Error {
    Error::OutOfRange {
        what: "index of a request",
        value: index as u64,
        min: 0,
        max: len as u64 - 1,
    }
}
