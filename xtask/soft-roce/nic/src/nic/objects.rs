//! Verbs for protection domains, memory, completion queues and shared receive queues (chapter 11).

use super::{DomainId, Nic};
use crate::completion::{Completion, CompletionQueue, CompletionQueueId};
use crate::error::{Result, invalid};
use crate::memory::{Access, Registered, WindowKind};
use crate::request::ReceiveRequest;
use crate::shared_receive::{ReceiveQueue, SharedReceiveId, SharedReceiveQueue};

/// Protection domains and memory (11.2). Each is refused as C's verb is: with its errno, and having
/// changed nothing.
impl Nic {
    /// Allocates a protection domain (`ibv_alloc_pd`).
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there are `max_domains`.
    pub fn alloc_pd(&mut self) -> Result<DomainId> {
        let max = self.card.profile.max_domains;
        self.domains.insert(max, |_| ()).map(DomainId)
    }

    /// Deallocates a protection domain (`ibv_dealloc_pd`).
    ///
    /// # Errors
    ///
    /// `EBUSY` if something belongs to it.
    pub fn dealloc_pd(&mut self, domain: DomainId) -> Result<()> {
        self.domains.destroy(domain.0)
    }

    /// Registers memory (`ibv_reg_mr_iova`), which gets the addresses from `iova` on; returns its `lkey`, and
    /// its `rkey`, which is 0 if no peer has access.
    ///
    /// # Errors
    ///
    /// `EINVAL` for no bytes, addresses that wrap, or access that does not go together; `ENOMEM` if there are
    /// `max_keys`.
    pub fn reg_mr(
        &mut self,
        domain: DomainId,
        memory: Registered,
        iova: u64,
        access: Access,
    ) -> Result<(u32, u32)> {
        self.domains.find(domain.0)?;
        let tag = self.random.byte();
        let (keys, profile) = (&mut self.card.memory, &self.card.profile);
        let registered = keys.register(domain, memory, iova, access, tag, profile);
        registered.inspect(|_| self.domains.count(domain.0, 1))
    }

    /// Deregisters memory (`ibv_dereg_mr`), by its `lkey`. The card does not touch it after that.
    ///
    /// # Errors
    ///
    /// `EINVAL` while a window is bound to it.
    pub fn dereg_mr(&mut self, lkey: u32) -> Result<()> {
        let domain = self.card.memory.deregister(lkey)?;
        self.domains.count(domain.0, -1);
        Ok(())
    }

    /// Allocates a memory window (`ibv_alloc_mw`), and returns its `rkey`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there are `max_keys`.
    pub fn alloc_mw(&mut self, domain: DomainId, kind: WindowKind) -> Result<u32> {
        self.domains.find(domain.0)?;
        let tag = self.random.byte();
        let max = self.card.profile.max_keys;
        let allocated = self.card.memory.allocate_window(domain, kind, tag, max);
        allocated.inspect(|_| self.domains.count(domain.0, 1))
    }

    /// Deallocates a memory window (`ibv_dealloc_mw`), by any `rkey` that it has had, as they differ in their tags; that
    /// ends the access that it gave.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is none with this key.
    pub fn dealloc_mw(&mut self, rkey: u32) -> Result<()> {
        let domain = self.card.memory.deallocate_window(rkey)?;
        self.domains.count(domain.0, -1);
        Ok(())
    }
}

/// Completion queues (11.2, 11.4).
impl Nic {
    /// Makes a completion queue (`ibv_create_cq`) with room for at least `capacity` completions.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a capacity of 0 or more than `max_cqe`; `ENOMEM` if there are `max_completion_queues`.
    pub fn create_cq(&mut self, capacity: u32) -> Result<CompletionQueueId> {
        let profile = &self.card.profile;
        if capacity == 0 || capacity > profile.max_cqe {
            return Err(invalid(
                "a completion queue has room for 1 to max_cqe completions",
            ));
        }
        let queue = CompletionQueue {
            capacity: profile.capacity(capacity),
            ..CompletionQueue::default()
        };
        let max = profile.max_completion_queues;
        let number = self.card.completion_queues.insert(max, |_| queue);
        number.map(CompletionQueueId)
    }

    /// Changes the capacity (`ibv_resize_cq`).
    ///
    /// # Errors
    ///
    /// `EINVAL` for less than what is in the queue.
    pub fn resize_cq(&mut self, cq: CompletionQueueId, capacity: u32) -> Result<()> {
        let profile = &self.card.profile;
        let made = profile.capacity(capacity);
        let is_possible = capacity > 0 && capacity <= profile.max_cqe;
        let queue = self.card.completion_queues.find_mut(cq.0)?;
        if !is_possible || usize::try_from(made).is_ok_and(|made| made < queue.entries.len()) {
            return Err(invalid(
                "the completions in the queue need more room, or it is more than max_cqe",
            ));
        }
        queue.capacity = made;
        Ok(())
    }

    /// The capacity that a queue really has.
    #[must_use]
    pub fn cq_capacity(&self, cq: CompletionQueueId) -> Option<u32> {
        let queue = self.card.completion_queues.get(cq.0);
        queue.map(|queue| queue.capacity)
    }

    /// Destroys a completion queue (`ibv_destroy_cq`).
    ///
    /// # Errors
    ///
    /// `EBUSY` while a queue pair uses it.
    pub fn destroy_cq(&mut self, cq: CompletionQueueId) -> Result<()> {
        self.card.completion_queues.destroy(cq.0).map(drop)
    }

    /// Takes the oldest completion (`ibv_poll_cq`).
    pub fn poll_cq(&mut self, cq: CompletionQueueId) -> Option<Completion> {
        let (completion, slots) = self
            .card
            .completion_queues
            .get_mut(cq.0)?
            .entries
            .pop_front()?;
        if slots > 0 {
            let number = completion.queue_pair;
            if let Some(found) = self.queue_pairs.get_mut(number) {
                found.release(&completion, slots);
            }
        }
        Some(completion)
    }

    /// Asks for an event at the next completion (`ibv_req_notify_cq`), or the next that is solicited or failed.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no such queue.
    pub fn req_notify_cq(&mut self, cq: CompletionQueueId, solicited_only: bool) -> Result<()> {
        let queue = self.card.completion_queues.find_mut(cq.0)?;
        queue.arm(solicited_only);
        Ok(())
    }
}

/// Shared receive queues (10.2.9, 11.2).
impl Nic {
    /// Makes a shared receive queue (`ibv_create_srq`).
    ///
    /// # Errors
    ///
    /// `EINVAL` for more than `max_srq_wr` or `max_srq_sge`, or no room; `ENOMEM` if there are too many.
    pub fn create_srq(
        &mut self,
        domain: DomainId,
        max_wr: u32,
        max_sge: u32,
        limit: u32,
    ) -> Result<SharedReceiveId> {
        self.domains.find(domain.0)?;
        let profile = &self.card.profile;
        if max_wr == 0 || max_wr > profile.max_srq_wr || max_sge > profile.max_srq_sge {
            return Err(invalid(
                "a shared receive queue has room for 1 to max_srq_wr receives of up to max_srq_sge",
            ));
        }
        let queue = ReceiveQueue::new(profile.capacity(max_wr), max_sge.max(1));
        check_limit(limit, queue.max_wr)?;
        let shared = SharedReceiveQueue {
            domain,
            queue,
            limit,
        };
        let max = profile.max_shared_receive_queues;
        let number = self.card.shared_receives.insert(max, |_| shared)?;
        self.domains.count(domain.0, 1);
        Ok(SharedReceiveId(number))
    }

    /// Arms the limit, or changes the capacity (`ibv_modify_srq`).
    ///
    /// # Errors
    ///
    /// `EINVAL` for a limit above the capacity, or a capacity below what is posted.
    pub fn modify_srq(
        &mut self,
        srq: SharedReceiveId,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<()> {
        let profile = &self.card.profile;
        let shared = self.card.shared_receives.find_mut(srq.0)?;
        let made = max_wr.map_or(shared.queue.max_wr, |max_wr| profile.capacity(max_wr));
        let is_too_small =
            usize::try_from(made).is_ok_and(|made| made < shared.queue.waiting.len());
        if max_wr.is_some_and(|max_wr| max_wr == 0 || max_wr > profile.max_srq_wr) || is_too_small {
            return Err(invalid(
                "the receives in the queue need more room, or it is more than max_srq_wr",
            ));
        }
        let limit = limit.unwrap_or(shared.limit);
        check_limit(limit, made)?;
        (shared.queue.max_wr, shared.limit) = (made, limit);
        Ok(())
    }

    /// Capacity, elements and limit (`ibv_query_srq`).
    #[must_use]
    pub fn query_srq(&self, srq: SharedReceiveId) -> Option<(u32, u32, u32)> {
        let shared = self.card.shared_receives.get(srq.0)?;
        Some((shared.queue.max_wr, shared.queue.max_sge, shared.limit))
    }

    /// Destroys a shared receive queue (`ibv_destroy_srq`); what is posted vanishes.
    ///
    /// # Errors
    ///
    /// `EBUSY` while a queue pair uses it.
    pub fn destroy_srq(&mut self, srq: SharedReceiveId) -> Result<()> {
        let destroyed = self.card.shared_receives.destroy(srq.0)?;
        self.domains.count(destroyed.domain.0, -1);
        Ok(())
    }

    /// Posts a receive to a shared queue (`ibv_post_srq_recv`).
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue is full, `EINVAL` for too many elements.
    pub fn post_srq_receive(
        &mut self,
        srq: SharedReceiveId,
        request: ReceiveRequest,
    ) -> Result<()> {
        let shared = self.card.shared_receives.find_mut(srq.0)?;
        shared.queue.post(request, shared.queue.max_wr)
    }
}

fn check_limit(limit: u32, capacity: u32) -> Result<()> {
    match limit <= capacity {
        true => Ok(()),
        false => Err(invalid("the limit is above the queue's capacity")),
    }
}
