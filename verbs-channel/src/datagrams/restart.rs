//! Restarting the queue pair after a failed operation: the endpoint works on for other peers.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use verbs_core::codes::{Gid, QpState, WcStatus};
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::path::AddressHandle;
use verbs_core::{Error, PollSlot};

use super::engine::{DatagramEngine, POLLS};
use super::failure::{DatagramFailure, GidChange};
use crate::error::DownReason;

impl DatagramEngine {
    /// The oldest failure of a posted datagram that was not taken. Failures are kept for the most
    /// datagrams that can be in flight: further ones replace the oldest.
    #[must_use]
    pub fn take_failed(&mut self) -> Option<DatagramFailure> {
        self.failed.pop_front()
    }

    /// Forgets all address handles: the next datagram to each port makes a new one. They are among the
    /// [retired](Self::take_retired) ones.
    ///
    /// A layer that reads the device's events calls this after a
    /// [`GID_CHANGE`](verbs_core::device::EventType::GID_CHANGE).
    pub fn forget_all(&mut self) {
        self.retired.extend(self.handles.take_if(|_, _| true));
    }

    /// Takes the address handles that no later datagram uses, to be dropped without a lock. Datagrams in flight may
    /// need them: they hold clones.
    #[must_use = "they are dropped without a lock"]
    pub fn take_retired(&mut self) -> Vec<Arc<AddressHandle>> {
        mem::take(&mut self.retired)
    }

    /// Takes the endpoint down if the device does not answer. Restarts the queue pair if it is in `ERR`. Forgets
    /// the address handles with an index at which this side's GID is no more.
    ///
    /// A layer that waits calls this now and then, for example ten times a second.
    pub fn probe(&mut self, _now: Instant) {
        let Some(qp) = &self.qp else { return };
        match qp.query() {
            Ok(attr) if matches!(attr.qp_state(), QpState::ERR | QpState::SQE) => {
                self.restart(DownReason::Unflushed);
            }
            Ok(_) => self.retire_stale(),
            Err(error) => self.fail(DownReason::Device(error.errno().unwrap_or(0))),
        }
    }

    /// Forgets the handles with an index at which this side's GID is no more.
    pub(super) fn retire_stale(&mut self) {
        if let Some(qp) = &self.qp
            && !self.handles.is_empty()
        {
            let now = gid_index(qp);
            let stale = self
                .handles
                .take_if(|peer, handle| is_stale(peer, handle, now));
            self.retired.extend(stale);
        }
    }

    /// Brings the queue pair back after a failed operation. Operations in flight are lost, and
    /// receives are posted again. The endpoint goes down for this reason if that fails, or helps
    /// nothing.
    pub(super) fn restart(&mut self, reason: DownReason) {
        // First what has completed: a reset may remove it.
        self.drain();
        let Some(qp) = &self.qp else { return };
        let is_needed = match reason {
            DownReason::Work { error, .. } if error.status == WcStatus::WR_FLUSH_ERR => {
                // Others were flushed with it, and an earlier one of them has restarted it.
                let state = qp.query().map(|attr| attr.qp_state());
                !state.is_ok_and(|state| state == QpState::RTS)
            }
            _ => true,
        };
        // Each restart for a datagram is for one that the user has sent. Others may never end.
        self.restarts += 1;
        if !self.unsent.is_empty() {
            self.restarts = 0;
        }
        let keeps_receives = match is_needed {
            _ if self.restarts > MAX_RESTARTS => None,
            true => qp.restart().ok(),
            false => Some(true),
        };
        if keeps_receives == Some(false) {
            self.discard();
        }
        self.report();
        match keeps_receives {
            Some(_) => self.refill(),
            None => self.fail(reason),
        }
    }

    /// Takes back what the reset queue pair does not have any more.
    fn discard(&mut self) {
        self.drain();
        let sends = self.sends.take_all().into_iter();
        self.unsent.extend(sends.map(|outgoing| (outgoing, None)));
        for block in self.receives.take_all() {
            let rejected = self.post_block(block);
            self.sent.extend(rejected);
        }
    }

    /// Dispatches what is in the completion queue, without restarting for it.
    fn drain(&mut self) {
        let mut slots = [const { PollSlot::new() }; POLLS];
        for _ in 0..=self.cq.min_capacity() as usize / POLLS {
            match self.cq.poll(&mut slots) {
                Ok(completions) if !completions.is_empty() => {
                    for completion in completions.as_slice() {
                        let _failure = self.completed(completion);
                    }
                }
                // A queue that cannot be polled fails the next poll, too.
                _ => return,
            }
        }
    }

    /// Keeps the failures, and forgets the handles that they were sent with.
    fn report(&mut self) {
        if self.unsent.is_empty() {
            return;
        }
        let now = self.qp.as_deref().and_then(gid_index);
        for (outgoing, error) in self.unsent.drain(..) {
            let from = outgoing.handle.attr().as_raw().grh.sgid_index;
            let gid = match self.endpoint.gid() {
                Some(gid) if is_stale(outgoing.peer.gid(), &outgoing.handle, now) => {
                    let to = now.flatten();
                    Some(GidChange { gid, from, to })
                }
                _ => None,
            };
            if self.failed.len() >= self.sends.capacity() {
                let _oldest = self.failed.pop_front();
            }
            let peer = outgoing.peer;
            self.failed.push_back(DatagramFailure { peer, error, gid });
            self.sent.push(outgoing.buffer);
            self.retired.extend(self.handles.remove(&peer));
            self.retired.push(outgoing.handle);
        }
        let stale = self
            .handles
            .take_if(|peer, handle| is_stale(peer, handle, now));
        self.retired.extend(stale);
    }
}

/// The index at which this side's GID is now: none within if it is not in the table; `None` if that is not known,
/// or datagrams have no GRH.
fn gid_index(qp: &DatagramQueuePair) -> Option<Option<u8>> {
    match qp.gid_index() {
        Ok(index) => index.map(Some),
        Err(Error::GidRemoved { .. }) => Some(None),
        Err(_) => None,
    }
}

/// Whether the handle to a peer has an index at which this side's GID is no more. Those to multicast groups may have
/// another GID.
fn is_stale(peer: Option<Gid>, handle: &AddressHandle, now: Option<Option<u8>>) -> bool {
    let index = handle.attr().as_raw().grh.sgid_index;
    let is_own = peer.is_some_and(|gid| gid.raw()[0] != 0xff);
    is_own && now.is_some_and(|now| now != Some(index))
}

/// How often the queue pair is restarted in a row although no operation has succeeded or failed since.
const MAX_RESTARTS: u32 = 8;
