//! An endpoint without waiting: posts, polls, and keeps what is in flight.
#![expect(unsafe_code, reason = "posts owned buffers")]

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use verbs_core::codes::WcOpcode;
use verbs_core::completion::Grh;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::Rejected;
use verbs_core::memory::Sge;
use verbs_core::path::{AddressHandle, DatagramEndpoint};
use verbs_core::work_request::DatagramWorkRequest;
use verbs_core::{
    CompletionQueue, PollSlot, ProtectionDomain, ReceiveWorkRequest, WorkCompletion, WorkError,
};

#[cfg(feature = "rdmacm")]
use super::close::Membership;
use super::close::{DatagramEnding, Held, Outgoing};
use super::datagram::Datagram;
use super::failure::DatagramFailure;
use super::handles::Handles;
use super::slots::Slots;
use crate::buffer::{BufferPool, OwnedBuffer, PdTag};
use crate::error::{DownReason, Error, Queue, RejectReason, Result};

/// A datagram endpoint for layers that wait in their own way: [`Datagrams`](super::Datagrams) and
/// the endpoint of verbs-async are built on it.
///
/// It does not wait, with one exception: [`send_to`](Self::send_to) creates an address handle if
/// there is none to the peer's port, which may block for about a second. [`path_to`](Self::path_to)
/// returns what is needed to create it elsewhere, and
/// [`add_handle`](Self::add_handle) adds it.
///
/// Its queues and its completion queue bound the operations in flight. Every operation has a slot,
/// which owns its buffer and a clone of its address handle until its completion has been polled, or
/// the queue pair has been destroyed.
#[derive(Debug)]
pub struct DatagramEngine {
    // `None` once it is down: the slots are empty then. Both are in `ending`, which is dropped with this.
    pub(super) qp: Option<Arc<DatagramQueuePair>>,
    pub(super) cq: CompletionQueue,
    pd_tag: PdTag,
    pub(super) endpoint: DatagramEndpoint,
    port_num: u8,
    max_payload: u32,
    /// The longest datagram that is sent inline.
    max_inline_data: u32,
    pub(super) sends: Slots<Outgoing>,
    pub(super) receives: Slots<OwnedBuffer>,
    pub(super) received: VecDeque<Datagram>,
    /// The buffers of datagrams that have left, and of receives that were ended. They are dropped by the layer above, when it holds no
    /// lock: that a block is free again wakes those that wait for it.
    pub(super) sent: Vec<OwnedBuffer>,
    /// Datagrams that have failed, until the queue pair has been restarted.
    pub(super) unsent: Vec<(Outgoing, Option<WorkError>)>,
    /// Failures that were not taken, the oldest first: at most one for each datagram that can be in flight.
    pub(super) failed: VecDeque<DatagramFailure>,
    /// Address handles that no later datagram uses. They are dropped by the layer above, when it holds no lock.
    pub(super) retired: Vec<Arc<AddressHandle>>,
    /// How often the queue pair was restarted since an operation has succeeded or a datagram has failed.
    pub(super) restarts: u32,
    pub(super) pool: BufferPool,
    pub(super) handles: Handles,
    #[cfg(feature = "rdmacm")]
    pub(super) memberships: Vec<Membership>,
    // How many there have been.
    #[cfg(feature = "rdmacm")]
    pub(super) joined: u64,
    pub(super) down: Option<DownReason>,
    ending: Option<DatagramEnding>,
    slots: [PollSlot; POLLS],
}

/// Completions that are polled at once.
pub(super) const POLLS: usize = 16;

impl DatagramEngine {
    pub(super) fn new(
        qp: DatagramQueuePair,
        cq: &CompletionQueue,
        pool: BufferPool,
        [max_send_wr, max_recv_wr]: [u32; 2],
        max_inline_data: u32,
        max_handles: usize,
    ) -> Result<Self> {
        let mut this = Self {
            pd_tag: PdTag::of(qp.pd()),
            endpoint: qp.endpoint(),
            port_num: qp.port_num(),
            max_payload: qp.max_payload(),
            // The driver should grant no less, but does not check it.
            max_inline_data: max_inline_data.min(qp.cap().max_inline_data),
            qp: Some(Arc::new(qp)),
            cq: cq.clone(),
            sends: Slots::new(max_send_wr, 0),
            receives: Slots::new(max_recv_wr, 1),
            received: VecDeque::with_capacity(max_recv_wr as usize),
            sent: Vec::with_capacity(max_send_wr as usize),
            unsent: Vec::new(),
            failed: VecDeque::new(),
            retired: Vec::new(),
            restarts: 0,
            pool,
            handles: Handles::new(max_handles),
            #[cfg(feature = "rdmacm")]
            memberships: Vec::new(),
            #[cfg(feature = "rdmacm")]
            joined: 0,
            down: None,
            ending: None,
            slots: [const { PollSlot::new() }; POLLS],
        };
        this.refill();
        match this.down {
            None => Ok(this),
            Some(reason) => Err(RejectReason::Down(reason).into()),
        }
    }

    /// The data that a peer needs to send to it.
    #[must_use]
    pub const fn endpoint(&self) -> DatagramEndpoint {
        self.endpoint
    }

    /// The length in bytes of the longest datagram that it can send: the MTU of its port.
    #[must_use]
    pub const fn max_payload(&self) -> u32 {
        self.max_payload
    }

    /// The number of the port that it sends from.
    #[must_use]
    pub const fn port_num(&self) -> u8 {
        self.port_num
    }

    /// The completion queue, to arm it, or to poll it for [`dispatch`](Self::dispatch).
    ///
    /// # Safety
    ///
    /// Through this queue and its clones:
    ///
    /// - nothing polls, unless all that is polled is given to [`dispatch`](Self::dispatch): the datagram whose
    ///   completion is lost would hold its buffer until the endpoint ends;
    /// - no other queue pair completes on it, and nothing makes it smaller: it would overrun.
    #[must_use]
    pub const unsafe fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// The same, for waits: they arm it.
    pub(super) const fn queue(&self) -> &CompletionQueue {
        &self.cq
    }

    /// The protection domain in which buffers are registered; an error if it is down.
    pub(super) fn pd(&self) -> Result<&ProtectionDomain> {
        match &self.qp {
            Some(qp) => Ok(qp.pd()),
            None => Err(self.is_down().into()),
        }
    }

    /// How many datagrams have been posted and not left yet.
    #[must_use]
    pub const fn sends_in_flight(&self) -> usize {
        self.sends.len()
    }

    /// Why it has failed; `None` while it works.
    #[must_use]
    pub const fn down_reason(&self) -> Option<DownReason> {
        self.down
    }

    /// How many more datagrams can be posted.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.sends.room()
    }

    /// How many datagrams have arrived, and were not taken.
    #[must_use]
    pub fn arrived(&self) -> usize {
        self.received.len()
    }

    /// Posts a datagram, unless there is no room. It does not poll for room.
    ///
    /// # Errors
    ///
    /// As [`Datagrams::try_send_to`](super::Datagrams::try_send_to).
    pub fn send_to(
        &mut self,
        peer: &DatagramEndpoint,
        buffer: OwnedBuffer,
    ) -> Result<(), Rejected<OwnedBuffer, Error>> {
        if let Err(reason) = self.check(peer, &buffer) {
            return Err(Rejected::new(reason.into(), buffer));
        }
        let Some(qp) = &self.qp else {
            return Err(Rejected::new(self.is_down().into(), buffer));
        };
        if self.sends.is_full() {
            return Err(Rejected::new(self.no_room().into(), buffer));
        }
        let handle = match self.handles.get(peer) {
            Some(handle) => handle,
            None => match self
                .attr_to(qp, peer)
                .and_then(|attr| qp.pd().create_ah(&attr))
            {
                Ok(handle) => {
                    let handle = Arc::new(handle);
                    drop(self.handles.insert(peer, Arc::clone(&handle)));
                    handle
                }
                Err(error) => return Err(Rejected::new(error.into(), buffer)),
            },
        };
        let peer = *peer;
        let wr_id = match self.sends.put(Outgoing {
            buffer,
            handle,
            peer,
        }) {
            Ok(wr_id) => wr_id,
            Err(outgoing) => return Err(Rejected::new(self.no_room().into(), outgoing.buffer)),
        };
        let Err(error) = self.post_send(wr_id) else {
            return Ok(());
        };
        let (reason, given) = match error {
            // The device may have it, until the queue pair is destroyed.
            RejectReason::Post(error) if error.posted() > 0 => {
                let given = self.end_with(DownReason::Post(error), wr_id);
                (self.is_down(), given)
            }
            reason => (reason, self.sends.take(wr_id).map(|send| send.buffer)),
        };
        Err(Rejected::new(reason.into(), given.unwrap_or_default()))
    }

    /// No room in the send queue.
    const fn no_room(&self) -> RejectReason {
        RejectReason::full(Queue::Send, self.sends.capacity())
    }

    /// Whether the buffer can be sent to the peer.
    fn check(&self, peer: &DatagramEndpoint, buffer: &OwnedBuffer) -> Result<(), RejectReason> {
        let (element, _) = self.element(buffer)?;
        let len = u64::from(element.length());
        let max = self.max_payload.min(peer.mtu().bytes());
        if len > max.into() {
            return Err(RejectReason::DatagramTooLong { len, max });
        }
        Ok(())
    }

    /// The part of a buffer that is sent, and whether it is sent inline.
    fn element(&self, buffer: &OwnedBuffer) -> Result<(Sge, bool), RejectReason> {
        match buffer.element(self.pd_tag, true) {
            Ok(sge) => {
                let inline = 1..=u64::from(self.max_inline_data);
                Ok((sge, inline.contains(&sge.length().into())))
            }
            // The processor may not be able to read it.
            Err(RejectReason::SharedInline) => Ok((buffer.element(self.pd_tag, false)?, false)),
            Err(reason) => Err(reason),
        }
    }

    fn post_send(&self, wr_id: u64) -> Result<(), RejectReason> {
        let (Some(qp), Some(outgoing)) = (&self.qp, self.sends.get(wr_id)) else {
            return Err(self.no_room());
        };
        let Outgoing {
            buffer,
            handle,
            peer,
        } = outgoing;
        let (mut element, is_inline) = self.element(buffer)?;
        let request = DatagramWorkRequest::to(&mut element, handle, peer).wr_id(wr_id);
        // So that the datagram can be answered.
        let mut request = request.immediate(self.endpoint.qkey().get());
        if is_inline {
            request = request.inline();
        }
        // SAFETY: the slot owns the buffer, and a clone of the handle, until the completion of this
        // `wr_id` is polled, or the queue pair is reset or destroyed; nothing accesses the buffer
        // meanwhile. The handle is of the queue pair's protection domain: it was made with it, or
        // `add_handle` has compared them. Inline data fits the granted `max_inline_data`, and is
        // memory that the processor can read. Only `restart` resets the queue pair, which has the
        // engine to itself, and its completion queue is this engine's.
        unsafe { qp.post_send(&mut request) }?;
        Ok(())
    }

    /// Polls until the queue is empty, a limited number of times, and posts receives again. Returns
    /// whether it was empty at last.
    pub fn drive(&mut self) -> bool {
        let mut is_empty = false;
        for _ in 0..MAX_POLLS {
            if self.qp.is_none() {
                return true;
            }
            let mut slots = mem::replace(&mut self.slots, [const { PollSlot::new() }; POLLS]);
            let polled = self.cq.poll(&mut slots).map(|completions| {
                self.dispatch_polled(completions.as_slice());
                completions.len()
            });
            self.slots = slots;
            match polled {
                Ok(0) => {
                    is_empty = true;
                    break;
                }
                Ok(_) => {}
                Err(error) => self.fail(DownReason::Poll(error)),
            }
        }
        self.refill();
        is_empty
    }

    /// Dispatches completions that a layer above has polled from the [`cq`](Self::cq), and posts
    /// receives again.
    ///
    /// # Safety
    ///
    /// - The completions were polled from this engine's [`cq`](Self::cq). An operation's buffer is
    ///   released when a completion with its `wr_id` is dispatched. If that completion is of
    ///   another queue, the device may still access the buffer.
    pub unsafe fn dispatch(&mut self, completions: &[WorkCompletion]) {
        self.dispatch_polled(completions);
    }

    fn dispatch_polled(&mut self, completions: &[WorkCompletion]) {
        let ended = completions.iter();
        let failures = ended.map(|completion| self.completed(completion));
        match failures.fold(None, Option::or) {
            Some(reason) => self.restart(reason),
            None => self.refill(),
        }
    }

    /// Ends the operation that has completed. Returns the reason if it has failed.
    pub(super) fn completed(&mut self, completion: &WorkCompletion) -> Option<DownReason> {
        let wr_id = completion.wr_id();
        let outgoing = self.sends.take(wr_id);
        let incoming = self.receives.take(wr_id);
        let (queue, error) = match (completion.result(), outgoing, incoming) {
            (Ok(_), Some(outgoing), _) => {
                self.restarts = 0;
                self.sent.push(outgoing.buffer);
                return None;
            }
            (Ok(success), None, Some(block)) => {
                self.restarts = 0;
                match Datagram::of(block, &success, self.endpoint.qkey()) {
                    Ok(datagram) => self.received.push_back(datagram),
                    // Its sender cannot be answered: it is dropped, and its block is posted again.
                    Err(block) => {
                        let rejected = self.post_block(block);
                        self.sent.extend(rejected);
                    }
                }
                return None;
            }
            // Not one of the pending operations: ignore it.
            (_, None, None) => return None,
            (Err(error), Some(outgoing), _) => {
                let error = error.for_opcode(WcOpcode::SEND);
                self.unsent.push((outgoing, Some(error)));
                (Queue::Send, error)
            }
            (Err(error), None, Some(block)) => {
                self.sent.push(block);
                (Queue::Receive, error.for_opcode(WcOpcode::RECV))
            }
        };
        Some(DownReason::Work { queue, error })
    }

    /// Whether it would post more receives if blocks were free.
    #[must_use]
    pub const fn needs_blocks(&self) -> bool {
        self.qp.is_some() && !self.receives.is_full()
    }

    /// Posts receives into all blocks that are free.
    pub(super) fn refill(&mut self) {
        while self.needs_blocks()
            && let Some(block) = self.pool.take()
        {
            let rejected = self.post_block(block.into());
            self.sent.extend(rejected);
        }
    }

    pub(super) fn post_block(&mut self, mut block: OwnedBuffer) -> Option<OwnedBuffer> {
        let Some(qp) = &self.qp else {
            return Some(block);
        };
        // Before an IPv4 header the device writes nothing: an earlier datagram's header must not be there.
        if let Some(header) = block.get_mut(..Grh::LEN) {
            header.fill(0);
        }
        let Ok(mut element) = block.element(self.pd_tag, false) else {
            return Some(block);
        };
        let wr_id = match self.receives.put(block) {
            Ok(wr_id) => wr_id,
            Err(block) => return Some(block),
        };
        let mut request = ReceiveWorkRequest::new(&mut element).wr_id(wr_id);
        // SAFETY: the slot owns the block until the completion of this `wr_id` is polled, or the queue
        // pair is reset or destroyed; nothing accesses it meanwhile. Only `restart` resets the queue pair,
        // which has the engine to itself, and its completion queue is this engine's.
        if let Err(error) = unsafe { qp.post_receive(&mut request) } {
            self.fail(DownReason::Post(error));
        }
        None
    }

    /// Moves the buffers of datagrams that have left, and of receives that were ended, to the end of
    /// `sent`: they are to be dropped without a lock. With room in `sent`, nothing is allocated.
    pub fn take_sent(&mut self, sent: &mut Vec<OwnedBuffer>) {
        sent.append(&mut self.sent);
    }

    /// Takes the endpoint down for this reason, unless it is down. Operations in flight are ended
    /// by the [`ending`](Self::take_ending).
    pub fn fail(&mut self, reason: DownReason) {
        self.down.get_or_insert(reason);
        if let Some(qp) = self.qp.take() {
            let held = Held {
                qp,
                sends: self.sends.take_all(),
                receives: self.receives.take_all(),
                #[cfg(feature = "rdmacm")]
                memberships: mem::take(&mut self.memberships),
            };
            let handles = mem::take(&mut self.handles);
            self.ending = Some(DatagramEnding::new(held, handles));
        }
    }

    /// The queue pair and the buffers in flight of an endpoint that has gone down: to be destroyed
    /// without a lock, where it may block for a while. It is returned once, and not while the queue pair is
    /// in use by [`memberships`](Self::memberships). After a post of unknown outcome, the queue pair has been
    /// destroyed already: the ending has only the error, if that failed.
    pub fn take_ending(&mut self) -> Option<DatagramEnding> {
        self.ending.take_if(|ending| !ending.is_in_use())
    }

    /// Takes the endpoint down after a post of unknown outcome, and destroys the queue pair. Returns the
    /// buffer of that post: the device has no access to it any more. If the driver refuses, it is
    /// leaked with the others, and the ending has the error. While the queue pair is in use, it is released with
    /// the others later.
    fn end_with(&mut self, reason: DownReason, wr_id: u64) -> Option<OwnedBuffer> {
        let at = self.sends.position(wr_id);
        self.fail(reason);
        let ending = self.ending.as_mut().filter(|ending| !ending.is_in_use())?;
        let (mut sends, receives) = ending.end()?;
        let given = at.map(|at| sends.remove(at).buffer);
        let others = sends.into_iter().map(|outgoing| outgoing.buffer);
        self.sent.extend(others.chain(receives));
        given
    }

    pub(super) const fn is_down(&self) -> RejectReason {
        match self.down {
            Some(reason) => RejectReason::Down(reason),
            None => RejectReason::GONE,
        }
    }
}

impl Drop for DatagramEngine {
    fn drop(&mut self) {
        // The slots are not dropped before the queue pair is destroyed.
        self.fail(DownReason::Closed);
        drop(self.take_ending());
    }
}

/// How many polls that find completions are made at a time.
const MAX_POLLS: usize = 16;
