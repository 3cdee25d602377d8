//! Requests on owned buffers, and chains of them, which are built once and started again and again.

use std::fmt;
use std::mem::{self, MaybeUninit};
use std::ops::{Range, RangeBounds};
use std::{iter, slice};

use verbs_core::__private::{of_any, put_request};
use verbs_core::error::Rejected;
use verbs_core::memory::Sge;
use verbs_core::work_request::{RequestChain, WorkRequest};

use super::work::{Incoming, Needs, Op, Outgoing};
use crate::buffer::{OwnedBuffer, PdTag, within};
use crate::error::{Queue, RejectReason, Result};

/// A request whose buffer the channel owns while it is in flight.
///
/// `into()` makes one from an [`Outgoing`] or an [`Incoming`] with a buffer, and
/// [`receive`](Self::receive) from a buffer.
///
/// ```
/// # use verbs_channel::{Incoming, Outgoing, OwnedRequest, PoolBuffer, verbs_core::RemoteMemoryRegion};
/// # fn of(block: PoolBuffer, another: PoolBuffer, third: PoolBuffer, remote: RemoteMemoryRegion) {
/// let batch: Vec<OwnedRequest> = vec![
///     Outgoing::write(block, remote).into(),
///     Incoming::read(another, remote).fence().into(),
///     Outgoing::send(third).immediate(7).into(),
/// ];
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until it is started"]
pub struct OwnedRequest {
    pub(crate) buffer: OwnedBuffer,
    pub(crate) op: Op,
}

impl OwnedRequest {
    /// A receive into the buffer's range.
    #[doc(alias = "ibv_post_recv")]
    pub fn receive(buffer: impl Into<OwnedBuffer>) -> Self {
        Self {
            buffer: buffer.into(),
            op: Op::RECEIVE,
        }
    }

    /// The queue that it is posted to.
    #[doc(hidden)]
    #[must_use]
    pub const fn queue(&self) -> Queue {
        self.op.queue()
    }

    /// The request's buffer.
    #[must_use]
    pub const fn buffer(&self) -> &OwnedBuffer {
        &self.buffer
    }

    /// The request's buffer, to fill it or to set its range.
    #[must_use]
    pub const fn buffer_mut(&mut self) -> &mut OwnedBuffer {
        &mut self.buffer
    }

    /// Converts into the buffer.
    #[must_use]
    pub fn into_buffer(self) -> OwnedBuffer {
        self.buffer
    }
}

impl<B: Into<OwnedBuffer>> From<Outgoing<B>> for OwnedRequest {
    #[inline]
    fn from(request: Outgoing<B>) -> Self {
        Self {
            buffer: request.list.into(),
            op: request.op,
        }
    }
}

impl<B: Into<OwnedBuffer>> From<Incoming<B>> for OwnedRequest {
    #[inline]
    fn from(request: Incoming<B>) -> Self {
        Self {
            buffer: request.list.into(),
            op: request.op,
        }
    }
}

/// A chain of requests on owned buffers that is built once, and started again and again.
///
/// Like a [batch](crate::Channel::start_batch), it consists of sends, writes, reads and atomics, in
/// any order. [`start_chain`](crate::Channel::start_chain) posts it with one doorbell, one
/// completion and one ticket. It comes back with the outcome, and can be started again at once, or
/// after some of its requests were [replaced](Self::set). A batch builds its requests at each
/// start; a chain builds them only when they are set.
///
/// The chain owns the buffers of its requests. Their bytes can be [read](Self::request) and
/// [written](Self::bytes_mut) while it is not in flight. [`into_requests`](Self::into_requests) returns
/// them.
///
/// Moving it is cheap. Only [`new`](Self::new) allocates, and `default`, which makes an empty chain.
///
/// ```no_run
/// # use verbs_channel::request::OwnedChain;
/// # use verbs_channel::{Channel, Outgoing, OwnedBuffer, SharedMemory};
/// # use verbs_channel::verbs_core::RemoteMemoryRegion;
/// # fn of(channel: &mut Channel, cache: &SharedMemory, theirs: RemoteMemoryRegion)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// // 16 pages, and a message that announces them.
/// let mut requests = Vec::new();
/// for page in 0..16 {
///     let ours = cache.slice(page * 4096..(page + 1) * 4096)?;
///     requests.push(Outgoing::write(ours, theirs.slice(page as u64 * 4096..)?).into());
/// }
/// requests.push(Outgoing::send(OwnedBuffer::empty()).immediate(7).into());
/// let chain = OwnedChain::new(requests)?;
///
/// let ticket = channel.start_chain(chain)?;
/// let completed = channel.wait(ticket, None)?.ok_or("no timeout")?;
/// let mut chain = completed.chain.unwrap_or_default();
/// if let Err(error) = completed.result {
///     eprintln!("request {} failed: {error}", chain.done());
/// }
/// // The same with another page in the first place.
/// let page = cache.slice(1 << 20..(1 << 20) + 4096)?;
/// chain.set(0, Outgoing::write(page, theirs))?;
/// let ticket = channel.start_chain(chain)?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[doc(alias = "ibv_send_wr")]
#[must_use = "a chain does nothing until it is started"]
pub struct OwnedChain {
    // In a box, so that a slot has room for it, and a `Completed` is not longer to copy for it.
    inner: Box<Inner>,
}

#[derive(Default)]
struct Inner {
    requests: Vec<OwnedRequest>,
    // The same, one for one; `None` if there are none.
    built: Option<Built>,
    // The requests that are started.
    range: Range<usize>,
    // The bytes of these; `None` if they are to be added up.
    bytes: Option<u64>,
    // Length of the prefix known to have succeeded.
    done: usize,
}

/// Requests as the driver gets them.
struct Built {
    // Each with the range of its request's buffer, and the request's options.
    chain: RequestChain<WorkRequest<'static>>,
    // Upper bound of the needs of its requests.
    needs: Needs,
    domains: Domains,
}

/// The protection domains of buffers. Each buffer keeps its own, so there is no other with its tag.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Domains {
    None,
    One(PdTag),
    Several,
}

impl OwnedChain {
    /// The most requests of a chain.
    pub const MAX_LEN: usize = u16::MAX as usize;

    /// A chain of these requests, in their order.
    ///
    /// # Errors
    ///
    /// The requests are handed back, with the reason: there are more than [`MAX_LEN`](Self::MAX_LEN)
    /// ([`RejectReason::BatchTooLong`]), one is a receive ([`RejectReason::ReceiveInBatch`]), or one is
    /// impossible on any channel ([`RejectReason::RemoteTooShort`], [`RejectReason::Misaligned`],
    /// [`RejectReason::SharedInline`], [`RejectReason::ElementTooLong`]).
    pub fn new(
        requests: Vec<OwnedRequest>,
    ) -> Result<Self, Rejected<Vec<OwnedRequest>, RejectReason>> {
        match Built::of(&requests) {
            Ok(built) => Ok(Self {
                inner: Box::new(Inner {
                    built,
                    range: 0..requests.len(),
                    bytes: None,
                    done: 0,
                    requests,
                }),
            }),
            Err(reason) => Err(Rejected::new(reason, requests)),
        }
    }

    /// A chain of this many sends without bytes, to be [replaced](Self::set) before it is started.
    ///
    /// It is for a chain whose requests are not known when it is built. Choose the [range](Self::set_range) of
    /// the replaced requests: the others would be sent as empty messages.
    ///
    /// ```no_run
    /// # use verbs_channel::request::OwnedChain;
    /// # use verbs_channel::{Channel, Error, Outgoing, SharedMemory};
    /// # use verbs_channel::verbs_core::RemoteMemoryRegion;
    /// # fn of(channel: &mut Channel, cache: &SharedMemory, theirs: RemoteMemoryRegion) -> Result<(), Error> {
    /// let mut chain = OwnedChain::blank(64);
    /// // Only two pages this time.
    /// chain.set(0, Outgoing::write(cache.slice(..4096)?, theirs.slice(..4096)?))?;
    /// chain.set(1, Outgoing::write(cache.slice(4096..8192)?, theirs.slice(4096..8192)?))?;
    /// chain.set_range(..2)?;
    /// let ticket = channel.start_chain(chain)?;
    /// # drop(ticket);
    /// # Ok(())
    /// # }
    /// ```
    #[expect(clippy::missing_panics_doc, reason = "any channel can send nothing")]
    pub fn blank(requests: u16) -> Self {
        let nothing = || Outgoing::send(OwnedBuffer::empty()).into();
        let requests = iter::repeat_with(nothing).take(requests.into());
        // At most `MAX_LEN`, and none is a receive, accesses the peer's memory, is inline or has an element.
        Self::new(requests.collect()).expect("any channel can send nothing")
    }

    /// How many requests it has.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.inner.requests.len()
    }

    /// Whether it has no requests: an empty chain is rejected.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.inner.requests.is_empty()
    }

    /// Replaces a request. Returns the buffer of the previous one.
    ///
    /// # Errors
    ///
    /// The new request is handed back, with the reason, and the chain is not changed:
    /// [`RejectReason::NoRequest`] if the chain does not have it, otherwise as [`new`](Self::new).
    #[inline]
    pub fn set(
        &mut self,
        index: usize,
        request: impl Into<OwnedRequest>,
    ) -> Result<OwnedBuffer, Rejected<OwnedRequest, RejectReason>> {
        let request = request.into();
        self.inner.bytes = None;
        let Inner {
            requests, built, ..
        } = &mut *self.inner;
        if let (Some(place), Some(built)) = (requests.get_mut(index), built) {
            return match built.put(index, &request) {
                Ok(()) => Ok(mem::replace(place, request).buffer),
                Err(reason) => Err(Rejected::new(reason, request)),
            };
        }
        let len = self.len();
        let reason = RejectReason::NoRequest { index, len };
        Err(Rejected::new(reason, request))
    }

    /// Takes a request out, which becomes a send without bytes.
    pub(crate) fn take(&mut self, index: usize) -> Option<OwnedRequest> {
        let blank = Outgoing::send(OwnedBuffer::empty()).into();
        self.inner.bytes = None;
        let Inner {
            requests, built, ..
        } = &mut *self.inner;
        let place = requests.get_mut(index)?;
        // Before it is taken: what is built names no memory that the chain does not have.
        built.as_mut()?.put(index, &blank).ok()?;
        Some(mem::replace(place, blank))
    }

    /// A request; `None` if the chain has no such request.
    #[must_use]
    pub fn request(&self, index: usize) -> Option<&OwnedRequest> {
        self.inner.requests.get(index)
    }

    /// The bytes in the range of a request's buffer, to fill them; `None` if the chain has no such request.
    #[must_use]
    pub fn bytes_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let request = self.inner.requests.get_mut(index)?;
        Some(&mut request.buffer)
    }

    /// Sets the range of its requests that is started: all of them unless this is called.
    ///
    /// So a chain that is longer than the send queue can be started part by part.
    ///
    /// # Errors
    ///
    /// [`verbs_core::Error::OutOfBounds`]: the range ends after the end of the chain. It is not
    /// changed.
    pub fn set_range(&mut self, range: impl RangeBounds<usize>) -> Result<()> {
        let range = within(range, self.len())?;
        self.inner.range = range;
        self.inner.bytes = None;
        self.inner.done = 0;
        Ok(())
    }

    /// The range of its requests that is started.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.inner.range.clone()
    }

    /// How many requests of its [range](Self::range) succeeded when it was last in flight, from the first
    /// on.
    ///
    /// It is the length of the range if the outcome was a success. After a
    /// [work error](crate::TransportError::Work), it is also the index in the range of the request
    /// that failed. If the chain was [aborted](crate::TransportError::Aborted), at least this many
    /// succeeded: a request that was carried out but not acknowledged counts as failed.
    #[must_use]
    pub const fn done(&self) -> usize {
        self.inner.done
    }

    /// Drops the buffers of all its requests, which become sends without bytes: as of a [blank](Self::blank) chain.
    ///
    /// A chain that is kept for later keeps the memory of its slices registered until then.
    pub fn clear(&mut self) {
        *self = Self::blank(u16::try_from(self.len()).unwrap_or(u16::MAX));
    }

    /// Converts into its requests, with their buffers.
    #[must_use]
    pub fn into_requests(self) -> Vec<OwnedRequest> {
        self.inner.requests
    }

    /// The bytes of the requests in its range.
    #[inline]
    pub(crate) fn bytes(&mut self) -> u64 {
        let Inner {
            requests,
            range,
            bytes,
            ..
        } = &mut *self.inner;
        *bytes.get_or_insert_with(|| {
            let started = requests.get(range.clone()).unwrap_or_default().iter();
            started.map(|request| request.buffer.len() as u64).sum()
        })
    }

    /// Its requests for the driver, and the range that is to be posted; `None` if that is empty.
    #[inline]
    pub(crate) fn built(
        &mut self,
    ) -> Option<(&mut RequestChain<WorkRequest<'static>>, Range<usize>)> {
        let range = self.inner.range.clone();
        let built = self.inner.built.as_mut()?;
        (!range.is_empty()).then_some((&mut built.chain, range))
    }

    /// Whether a queue pair of this protection domain takes all its requests, by the needs that all of
    /// them have. If not, it takes some of them, perhaps: they are to be checked one by one.
    #[inline]
    pub(crate) fn is_admitted(&self, pd: PdTag, admit: impl FnOnce(&Needs) -> bool) -> bool {
        self.inner.built.as_ref().is_some_and(|built| {
            let is_of = built.domains == Domains::One(pd) || built.domains == Domains::None;
            is_of && admit(&built.needs)
        })
    }

    /// Builds the requests of its range for this protection domain, in which all of their buffers can be posted.
    pub(crate) fn build_for(&mut self, pd: PdTag) -> Result<(), RejectReason> {
        let Inner {
            requests,
            built: Some(built),
            range,
            ..
        } = &mut *self.inner
        else {
            return Ok(());
        };
        // Those of the others, and of a range that is not all.
        built.domains = Domains::Several;
        let all = requests.len();
        for index in range.clone() {
            if let Some(request) = requests.get(index) {
                let element = request.buffer.element(pd, request.op.is_inline())?;
                built.put_element(index, request, element)?;
            }
        }
        if *range == (0..all) {
            built.domains = Domains::One(pd);
        }
        Ok(())
    }

    /// It was posted: unless a request [stops](Self::stopped_at) it, all succeed.
    #[inline]
    pub(crate) fn posted(&mut self) {
        self.inner.done = self.inner.range.len();
    }

    /// This request of its range is the first that did not succeed; `None` for the last.
    pub(crate) fn stopped_at(&mut self, place: Option<usize>) {
        self.inner.done = self.in_range(place);
    }

    /// This request of its range; `None` for the last.
    pub(crate) fn in_flight(&self, place: Option<usize>) -> Option<&OwnedRequest> {
        self.request(self.inner.range.start + self.in_range(place))
    }

    fn in_range(&self, place: Option<usize>) -> usize {
        let last = self.inner.range.len().saturating_sub(1);
        place.map_or(last, |place| place.min(last))
    }
}

impl Built {
    /// `None` if there are no requests.
    fn of(requests: &[OwnedRequest]) -> Result<Option<Self>, RejectReason> {
        let len = requests.len();
        if len == 0 {
            return Ok(None);
        }
        // Before any memory is allocated for them.
        let chain = (len <= OwnedChain::MAX_LEN).then(|| of_any(len));
        let Some(Ok(chain)) = chain else {
            let asked = u32::try_from(len).unwrap_or(u32::MAX);
            let max = u16::MAX.into();
            return Err(RejectReason::BatchTooLong { asked, max });
        };
        let mut built = Self {
            chain,
            needs: Needs::default(),
            domains: Domains::None,
        };
        for (index, request) in requests.iter().enumerate() {
            built.put(index, request)?;
        }
        Ok(Some(built))
    }

    /// Puts a request in its place, unless that fails.
    #[inline]
    fn put(&mut self, index: usize, request: &OwnedRequest) -> Result<(), RejectReason> {
        let (element, domain) = request.buffer.element_and_domain(request.op.is_inline())?;
        self.put_element(index, request, element)?;
        if let Some(domain) = domain {
            self.domains = match self.domains {
                Domains::None => Domains::One(domain),
                Domains::One(one) if one == domain => return Ok(()),
                _ => Domains::Several,
            };
        }
        Ok(())
    }

    #[inline]
    fn put_element(
        &mut self,
        index: usize,
        request: &OwnedRequest,
        mut element: Sge,
    ) -> Result<(), RejectReason> {
        let elements = slice::from_mut(&mut element);
        let needs = request.op.needs(elements, false);
        let mut place = MaybeUninit::uninit();
        let built = request.op.build(elements, 0, &mut place)?;
        self.needs.add(&needs);
        if put_request(&mut self.chain, index, built) {
            return Ok(());
        }
        let len = self.chain.len();
        Err(RejectReason::NoRequest { index, len })
    }
}

impl fmt::Debug for OwnedChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedChain")
            .field("len", &self.len())
            .field("range", &self.range())
            .field("done", &self.done())
            .finish()
    }
}
