//! Probes: finds queue pairs that no longer answer, or do not flush.

use std::time::Instant;

use verbs_core::Error;
use verbs_core::codes::QpState;

use super::Engine;
use crate::error::DownReason;

impl Engine {
    /// Takes channels down whose operations in flight will not complete any more.
    ///
    /// There are two such cases: the device does not answer; or the queue pair is in `ERR`, and its
    /// requests have not been flushed for the drain timeout. If a shared receive queue does not answer, all channels
    /// are taken down.
    ///
    /// A layer that waits calls this now and then, for example ten times a second, with `now` of
    /// the same clock in all calls. A query may be slow. So each call queries the queue pairs of 16
    /// channels with operations in flight, and those of the rest only if one of them failed.
    #[doc(alias = "ibv_query_qp")]
    pub fn probe(&mut self, now: Instant) {
        self.replace_overtaken();
        self.end_failed_leases();
        if self.open > 0
            && let Some(error) = self.shared_error()
        {
            let reason = DownReason::Device(error.errno().unwrap_or(0));
            return self.fail_group(reason);
        }
        let (count, has_shared) = (self.flight.members.len(), self.shared.is_some());
        let (mut queries, mut is_gone, mut closed) = (0, false, false);
        for _ in 0..count {
            if queries >= PROBES && !is_gone {
                break;
            }
            self.probed = (self.probed + 1) % count.max(1);
            let Some(member) = self.flight.members.get_mut(self.probed) else {
                continue;
            };
            let answer = match member.qp() {
                // With shared receives, one that waits for messages has nothing in flight.
                Some(qp) if !member.credits.is_idle() || has_shared && member.down().is_none() => {
                    qp.query()
                }
                _ => {
                    member.in_error_since = None;
                    continue;
                }
            };
            queries += 1;
            let reason = match answer {
                Err(error) => {
                    is_gone = true;
                    DownReason::Device(error.errno().unwrap_or(0))
                }
                Ok(attr) if attr.qp_state() != QpState::ERR => {
                    member.in_error_since = None;
                    continue;
                }
                Ok(_) => {
                    let since = *member.in_error_since.get_or_insert(now);
                    if now.saturating_duration_since(since) < self.limits.drain_timeout {
                        continue;
                    }
                    DownReason::Unflushed
                }
            };
            let at = u32::try_from(self.probed).unwrap_or(u32::MAX);
            if let Err(error) = self.close(at, reason, false) {
                return self.destroy_all(DownReason::Poll(error));
            }
            closed = true;
        }
        if closed {
            self.dispatch_all();
            self.end_all_closed();
        }
    }

    /// The error of a query of the shared receive queue, if there is one and the driver can query it.
    fn shared_error(&self) -> Option<Error> {
        let error = self.shared.as_deref()?.srq.query().err()?;
        (!matches!(error, Error::Unsupported { .. })).then_some(error)
    }
}

/// Queue pairs that are queried at a time.
const PROBES: u32 = 16;
