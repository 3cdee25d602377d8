//! Verbs for queue pairs, and for what is posted to them (chapter 11).

use std::net::Ipv6Addr;

use super::Nic;
use crate::address::AddressVector;
use crate::error::{Result, busy, invalid};
use crate::memory::Access;
use crate::packet::{Psn, Transport};
use crate::queue_pair::{
    AttributeMask, QueuePair, QueuePairAttributes, QueuePairOptions, QueuePairState,
};
use crate::request::{ReceiveRequest, SendRequest};

/// Queue pairs (11.2, 11.4).
impl Nic {
    /// Makes a queue pair (`ibv_create_qp`), and returns its number.
    ///
    /// # Errors
    ///
    /// `EINVAL` for capacities that the device has not, `ENOMEM` if there are `max_queue_pairs`.
    pub fn create_qp(&mut self, options: &QueuePairOptions) -> Result<u32> {
        self.domains.find(options.domain.0)?;
        for cq in [options.send_cq, options.recv_cq] {
            self.card.completion_queues.find(cq.0)?;
        }
        if let Some(srq) = options.shared_receives {
            self.card.shared_receives.find(srq.0)?;
        }
        let options = options.fitted(&self.card.profile)?;
        let profile = &self.card.profile;
        let make = |number| Box::new(QueuePair::new(number, options));
        let number = self.queue_pairs.insert(profile.max_queue_pairs, make)?;
        self.count(&options, 1);
        Ok(number)
    }

    /// Counts a queue pair among the users of the objects that it was made with.
    fn count(&mut self, options: &QueuePairOptions, change: i32) {
        self.domains.count(options.domain.0, change);
        for cq in [options.send_cq, options.recv_cq] {
            self.card.completion_queues.count(cq.0, change);
        }
        if let Some(srq) = options.shared_receives {
            self.card.shared_receives.count(srq.0, change);
        }
    }

    /// Changes a queue pair (`ibv_modify_qp`).
    ///
    /// # Errors
    ///
    /// `EINVAL` for a transition that does not exist, attributes that are missing or do not belong to it, or
    /// values that the device has not; `ENOMEM` if all queue pairs together remember too many reads and atomics.
    pub fn modify_qp(
        &mut self,
        number: u32,
        attributes: &QueuePairAttributes,
        mask: AttributeMask,
    ) -> Result<()> {
        let found = self.queue_pairs.find_mut(number)?;
        found.modify(&mut self.card, attributes, mask)?;
        self.wake(number);
        Ok(())
    }

    /// Takes a new queue pair to RTS with usual attributes: an MTU of 1024, all access, seven retries after
    /// 67 ms each, sixteen reads and atomics. `own_psn` is what it sends first, `peer` the queue pair at the
    /// end of `path`, and `peer_psn` what that one sends first. A datagram queue pair gets the `Q_Key` `peer`.
    ///
    /// # Errors
    ///
    /// Those of [`modify_qp`](Self::modify_qp).
    pub fn connect(
        &mut self,
        number: u32,
        path: AddressVector,
        own_psn: Psn,
        peer: u32,
        peer_psn: Psn,
    ) -> Result<()> {
        use QueuePairState::{Init, Rtr, Rts};
        let transport = self.queue_pairs.find(number)?.options.transport;
        let rd_atomic = self.card.profile.max_qp_rd_atom.min(16);
        let mut attributes = QueuePairAttributes {
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            port: 1,
            qkey: peer,
            path,
            path_mtu: self.card.profile.max_mtu.min(1024),
            dest_qp_num: peer,
            rq_psn: peer_psn.get(),
            sq_psn: own_psn.get(),
            max_dest_rd_atomic: rd_atomic,
            max_rd_atomic: rd_atomic,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QueuePairAttributes::default()
        };
        for state in [Init, Rtr, Rts] {
            attributes.state = state;
            let needed = AttributeMask::needed(transport, state);
            self.modify_qp(number, &attributes, needed)?;
        }
        Ok(())
    }

    /// All attributes (`ibv_query_qp`).
    #[must_use]
    pub fn query_qp(&self, number: u32) -> Option<QueuePairAttributes> {
        self.queue_pairs.get(number).map(|found| found.query())
    }

    /// The options of a queue pair, with the capacities that it really has.
    #[must_use]
    pub fn qp_options(&self, number: u32) -> Option<&QueuePairOptions> {
        self.queue_pairs.get(number).map(|found| &found.options)
    }

    /// Destroys a queue pair (`ibv_destroy_qp`): what is posted vanishes, and no packet reaches it any more.
    ///
    /// # Errors
    ///
    /// `EBUSY` while it is attached to a multicast group.
    pub fn destroy_qp(&mut self, number: u32) -> Result<()> {
        self.queue_pairs.find(number)?;
        if self.groups.have(number) {
            return Err(busy("the queue pair is attached to a multicast group"));
        }
        let mut ended = self.queue_pairs.destroy(number)?;
        ended.reset(&mut self.card);
        let options = ended.options;
        self.count(&options, -1);
        self.ready.retain(|ready| *ready != number);
        if self.card.profile.destroy_removes_completions {
            for cq in [options.send_cq, options.recv_cq] {
                if let Some(queue) = self.card.completion_queues.get_mut(cq.0) {
                    queue.forget(number);
                }
            }
        }
        Ok(())
    }

    /// Posts a request to the send queue (`ibv_post_send`). The card reads what is to be sent between now and
    /// the completion.
    ///
    /// # Errors
    ///
    /// `EINVAL` before RTS, or for a request that this queue pair was not made for; `ENOMEM` if the queue is
    /// full. All else fails in the completion.
    pub fn post_send(&mut self, number: u32, request: SendRequest) -> Result<()> {
        let found = self.queue_pairs.find_mut(number)?;
        found.post_send(&mut self.card, request)?;
        self.wake(number);
        Ok(())
    }

    /// Whether [`post_send`](Self::post_send) would take a request after `ahead` others, for those that post
    /// all requests or none.
    ///
    /// # Errors
    ///
    /// Those of `post_send`.
    pub fn check_send(&self, number: u32, request: &SendRequest, ahead: usize) -> Result<()> {
        let found = self.queue_pairs.find(number)?;
        found.check_send(request, ahead).map(|_| ())
    }

    /// Posts a receive (`ibv_post_recv`). The card writes to its elements between now and the completion.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a queue pair with a shared receive queue, or too many elements; `ENOMEM` if the queue is
    /// full.
    pub fn post_receive(&mut self, number: u32, request: ReceiveRequest) -> Result<()> {
        let found = self.queue_pairs.find_mut(number)?;
        found.post_receive(&mut self.card, request)?;
        // In ERR it is flushed, perhaps later.
        self.schedule(number);
        Ok(())
    }

    /// Attaches a datagram queue pair to a multicast group (`ibv_attach_mcast`). Its own datagrams to the
    /// group come back to it, too.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a GID that is none of a group or a queue pair that is not for datagrams; `ENOMEM` if there
    /// are too many groups, or members.
    pub fn attach_mcast(&mut self, number: u32, group: Ipv6Addr) -> Result<()> {
        if self.queue_pairs.find(number)?.options.transport != Transport::Ud {
            return Err(invalid("only datagram queue pairs are in multicast groups"));
        }
        self.groups.attach(group, number, &self.card.profile)
    }

    /// Detaches a queue pair from a multicast group (`ibv_detach_mcast`).
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not attached.
    pub fn detach_mcast(&mut self, number: u32, group: Ipv6Addr) -> Result<()> {
        self.queue_pairs.find(number)?;
        self.groups.detach(group, number)
    }
}
