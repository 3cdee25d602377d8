//! Queue pairs that a device which may be removed has refused to destroy.
//!
//! The kernel refuses calls before it destroys the queue pairs of a device that is removed. So an operation in flight
//! has not ended with the refusal: it is aborted when the kernel has [removed](verbs_core::Context::is_removed) the
//! device, and stuck if that does not happen within the drain timeout. Until then its member is closing. Whoever waits
//! looks between two borrows of the engine, since that reads a directory.

use std::time::Instant;

use verbs_core::{Context, Error};

use super::Engine;

impl Engine {
    /// Records that a queue pair could not be destroyed now.
    pub(super) fn refuse(&mut self, at: u32, error: Error) {
        self.refused.push((at, error));
    }

    /// The device, if it has refused to destroy a queue pair, and what is in flight there has not ended.
    #[inline]
    pub(crate) fn refusing_device(&self) -> Option<&Context> {
        (!self.refused.is_empty()).then(|| self.pd.context())
    }

    /// Ends what is in flight on such queue pairs, if the device is removed, or the drain timeout has passed since
    /// the first call.
    pub(crate) fn check_refused(&mut self, is_removed: bool, now: Instant) {
        if self.refused.is_empty() {
            return;
        }
        let since = *self.refused_since.get_or_insert(now);
        if is_removed || now.saturating_duration_since(since) >= self.limits.drain_timeout {
            self.end_refused(is_removed);
        }
    }

    /// The same without a wait.
    pub(super) fn end_refused_now(&mut self) {
        if let Some(device) = self.refusing_device() {
            let is_removed = device.is_removed();
            self.end_refused(is_removed);
        }
    }

    /// Ends what is in flight on such queue pairs: it is aborted, or stuck.
    fn end_refused(&mut self, is_removed: bool) {
        self.refused_since = None;
        while let Some((at, error)) = self.refused.pop() {
            let destroyed = if is_removed { Ok(()) } else { Err(error) };
            self.closed(at, destroyed);
        }
        self.dispatch_all();
        for at in 0..u32::try_from(self.flight.members.len()).unwrap_or(u32::MAX) {
            self.end_closed(at);
        }
        self.replace_overtaken();
    }

    /// Takes the outcome of a request on borrowed buffers that was rejected after the device may have got a part of it,
    /// and whose queue pair it refused to destroy then.
    pub(crate) fn end_half_borrowed(&mut self) {
        if let Some(id) = self.half_posted.take() {
            let _aborted = self.release(id);
        }
    }
}
