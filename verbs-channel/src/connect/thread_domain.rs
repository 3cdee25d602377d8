//! Queue pairs that the driver need not lock.
//!
//! A [`Channel`](crate::Channel) that does not belong to a group has its queue pair to itself. So the
//! queue pair is created in a thread domain of its own, if the device has thread domains: the driver
//! posts without a lock then, and to a doorbell that nothing else rings.
//!
//! # Why this is sound
//!
//! The contract of
//! [`alloc_parent_domain`](verbs_core::ProtectionDomain::alloc_parent_domain) is that no two calls on
//! the objects of a thread domain run at the same time. Here:
//!
//! - *The thread domain has one object.* The parent domain is used for one queue pair, in this file. It
//!   is then reachable only through `QueuePair::pd`, and this crate gives no queue pair out:
//!   `Channel::pd` is the domain of the builder, in which regions are registered.
//! - *The queue pair has one owner at a time*, and each function that calls C with it needs that
//!   owner by value or mutably. These are a `PreparedChannel`, whose handshake consumes it; then a
//!   `Member` of an `Engine`, which posts (`Member::take`), queries (`Engine::probe`) and modifies
//!   it (`Engine::flush_at`) through `&mut Engine` only; then a `Closing`, if
//!   [`Engine::next_closing`](crate::engine::Engine::next_closing) handed it out, whose `destroy`
//!   consumes it. Functions that take `&Engine` or `&PreparedChannel`, and `Debug`, read numbers
//!   that never change, and do not call C.
//! - *Rust orders these calls.* To have it mutably or by value in another thread, it must have been sent
//!   there, or be in a mutex. Both order memory.
//! - *The completion queue is not in the thread domain.* It has its locks. So it can be armed by others
//!   (`Engine::cq`), and polled while a `Closing` is destroyed in another thread. Destroying a queue
//!   pair removes its completions under the lock of the completion queue, not under that of the queue
//!   pair, and so does polling.
//!
//! # What is not done
//!
//! - The channels of a group and of an engine, and with them those of `verbs-async`, are in no thread
//!   domain. A queue pair may be destroyed there, outside of the engine's lock, while the engine posts
//!   on others. That would be two calls on objects of one thread domain; and a thread domain for each
//!   channel would soon use up the doorbells of a device, of which there are some hundreds.
//! - The completion queue is not made for a single thread. The flag for that exists only for extended
//!   queues. With `ibv_poll_cq`, mlx5's provider locks the queue whether it has the flag or not.
#![expect(unsafe_code, reason = "creates a queue pair in a thread domain")]

use verbs_core::{CompletionQueue, PreparedQueuePair, ProtectionDomain};

use crate::channel::ChannelConfig;
use crate::error::Result;

/// A queue pair for a channel of its own: in a thread domain, if there are any.
pub(super) fn queue_pair(
    config: &ChannelConfig,
    cq: &CompletionQueue,
) -> Result<PreparedQueuePair> {
    if let Some(domain) = parent_domain(&config.pd)
        && let Ok(prepared) = config.queue_pair_in(&domain, cq)
    {
        return Ok(prepared);
    }
    // No loss but speed. If there is another reason, this fails for it.
    config.queue_pair(cq)
}

/// A parent domain with a thread domain of its own, if the device has one left.
fn parent_domain(pd: &ProtectionDomain) -> Option<ProtectionDomain> {
    let td = pd.context().alloc_td().ok()?;
    // SAFETY: one queue pair is created in it, of which no two calls run at the same time: see the
    // documentation of this file.
    unsafe { pd.alloc_parent_domain(&td) }.ok()
}
