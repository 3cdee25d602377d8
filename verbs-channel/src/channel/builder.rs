//! The settings of channels, and their defaults.

use std::time::Duration;

use verbs_core::{
    AccessFlags, AckTimeout, CompletionChannel, CompletionQueue, MaxAckRetries, MaxRnrRetries,
    MaximumTransferUnit, MinRnrTimer, PreparedQueuePair, ProtectionDomain, QueuePair,
    QueuePairConfig,
};

use crate::engine::{EngineLimits, MemberLimits, Shares};
#[expect(unused_imports, reason = "named in documentation")]
use crate::error::RejectReason;
use crate::error::{Error, Result};
use crate::waiting::{PollStrategy, WaitConfig};

/// Builder for channels and groups, from [`Channel::builder`](crate::Channel::builder). All settings
/// are optional.
///
/// It is a plain value: it can be kept in a struct and cloned, and any number of channels and groups
/// can be built from it.
///
/// ```no_run
/// # fn main() -> verbs_channel::Result<()> {
/// use std::time::Duration;
/// use verbs_channel::verbs_core::{Context, ProtectionDomain};
/// use verbs_channel::{Channel, ChannelBuilder, PollStrategy};
///
/// struct Server {
///     channels: ChannelBuilder,
/// }
///
/// impl Server {
///     fn new(pd: &ProtectionDomain, port_num: Option<u8>, sleeps: bool) -> Self {
///         let mut channels = Channel::builder(pd).port_num(port_num).max_recv_wr(256);
///         if sleeps {
///             channels = channels.strategy(PollStrategy::Notify { after: 1000 });
///         }
///         Self { channels }
///     }
/// }
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// let server = Server::new(&pd, None, true);
/// let (first, second) = (server.channels.build()?, server.channels.build()?);
/// let group = server.channels.group(100)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` or another of its last calls"]
pub struct ChannelBuilder {
    pub(crate) pd: ProtectionDomain,
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) in_flight: Option<u32>,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    port_num: Option<u8>,
    gid_index: Option<u8>,
    pkey_index: Option<u16>,
    qp_access_flags: Option<AccessFlags>,
    path_mtu: Option<MaximumTransferUnit>,
    max_rd_atomic: Option<u8>,
    max_dest_rd_atomic: Option<u8>,
    min_rnr_timer: MinRnrTimer,
    ack_timeout: AckTimeout,
    retry_cnt: MaxAckRetries,
    rnr_retry: MaxRnrRetries,
    sl: u8,
    traffic_class: u8,
    timeout: Option<Duration>,
    drain_timeout: Duration,
    peer_timeout: Option<Duration>,
    strategy: PollStrategy,
}

impl ChannelBuilder {
    verbs_core::builder_setters! {
        /// How many sends, writes, reads and atomics can be in flight at once; 64 unless set.
        max_send_wr: plain u32,
        /// How many receives can be in flight at once; 64 unless set.
        max_recv_wr: plain u32,
        /// The budget of a group: how many requests can be in flight at once, in all queues of all of
        /// its channels together. Unless set, all queues can be full at once.
        ///
        /// The group's completion queue has this many entries (C: `cqe`), instead of
        /// `max_channels * (max_send_wr + max_recv_wr)`. The setting has no effect on a single
        /// channel, or if the total is at least that product. A total that is too small for one
        /// request in each queue is raised to `2 * max_channels`.
        ///
        /// Each queue of each channel has a share of `total / (4 * max_channels)` requests, which
        /// no other channel can use: at least one, and at most the depth of the queue. So the
        /// shares usually take up to half of the total. The rest is common, first come, first
        /// served: a channel can fill its queues while others are idle. A request for which there
        /// is no room is rejected with [`RejectReason::Budget`], which
        /// [is backpressure](RejectReason::is_backpressure). In `verbs-async` it waits in the
        /// backlog.
        ///
        /// A request beyond its channel's share costs more than twice as much as one within it: about 470
        /// instructions more, without those of the driver. (`cargo xtask bench` counts them:
        /// `group_budget`.)
        ///
        /// Receives count while they are posted, also on idle channels. So post few more receives to
        /// each channel than its share, or size the budget for them.
        ///
        /// In this process's memory, an idle channel takes less than 512 bytes, and 128 bytes for each
        /// request of its shares. Each request of the common room takes 128 bytes, once for the whole
        /// group. So a channel of the group below takes 1.5 KiB instead of 16.5 KiB. (`cargo test -p
        /// verbs-channel --lib idle_channel` measures it.) The device's own queues have their full depth in
        /// either case.
        ///
        /// ```no_run
        /// # fn main() -> verbs_channel::Result<()> {
        /// use verbs_channel::{Channel, verbs_core::Context};
        ///
        /// let pd = Context::first_active()?.alloc_pd()?;
        /// // 64 sends and 64 receives each: 524,288 entries without a budget.
        /// let group = Channel::builder(&pd).in_flight(32_767).group(4096)?;
        /// # Ok(())
        /// # }
        /// ```
        in_flight: option u32,
        /// How many elements a send, write or read can have; 4 unless set, and at least 1.
        max_send_sge: plain u32,
        /// How many elements a receive can have; 4 unless set, and at least 1.
        max_recv_sge: plain u32,
        /// How many bytes one request can send inline; 0 unless set.
        max_inline_data: plain u32,
        /// The number of the port; unless set, that of the first ACTIVE one, of those that have a GID if packets
        /// need one.
        port_num: option u8,
        /// The index of this side's GID (C: `sgid_index`); that of the best GID unless set: of RoCE v2 rather than
        /// v1, routable rather than link-local, and of IPv4 rather than IPv6.
        gid_index: option u8,
        /// The index of the P_Key in the port's table; that of the first one with full membership unless set.
        ///
        /// If the port is a full member of no partition, it is the first P_Key of any. Both sides must be of the
        /// same partition: in a fabric with several, set it.
        pkey_index: option u16,
        /// The peer's access to regions that also permit it, and whose key it has; all that the device
        /// supports unless set.
        qp_access_flags: option AccessFlags,
        /// The path MTU; the smaller of both ports' active MTUs unless set.
        path_mtu: option MaximumTransferUnit,
        /// How many reads and atomics this side may have in flight at once; the device's limit unless set. If the
        /// peer's `max_dest_rd_atomic` is smaller, that is used. Further ones wait in the device.
        max_rd_atomic: option u8,
        /// How many reads and atomics of the peer this side serves at once; the device's limit unless set, or what
        /// is left of it where all queue pairs of the device share it.
        ///
        /// Set both to a small number, on both sides, if such a device has many channels: see
        /// [`QueuePairConfig::max_dest_rd_atomic`].
        max_dest_rd_atomic: option u8,
        /// How long the peer waits when no receive is posted here; code 12, 0.64 ms, unless set.
        min_rnr_timer: plain MinRnrTimer,
        /// How long the device waits for an acknowledgement (C: `timeout`); code 14, 67 ms, unless set.
        ack_timeout: plain AckTimeout,
        /// How many times the device resends a request that is not acknowledged; 6 unless set.
        retry_cnt: plain MaxAckRetries,
        /// How many times the device sends again when the peer has no receive posted; 7, forever,
        /// unless set.
        ///
        /// Soft-RoCE gives up when the time of `ack_timeout` and `retry_cnt` is over, even with 7: by default, after
        /// about half a second.
        rnr_retry: plain MaxRnrRetries,
        /// The service level, 0 to 15; 0 unless set.
        sl: plain u8,
        /// The GRH's traffic class, on RoCE v2 four times the DSCP; 0 unless set.
        ///
        /// The DSCP chooses the class of the packets in switches, such as one that loses none.
        traffic_class: plain u8,
        /// How long an operation on borrowed buffers, the end of a scope and a transfer wait before the channel is
        /// aborted; forever unless set.
        ///
        /// The time of an operation counts from its post, and that of a [`Transfer`](crate::Transfer) from the call, which
        /// posts many. [`wait_success`](crate::Channel::wait_success) waits for the same time, but does not
        /// abort the channel. The timeout has no effect on an [`engine`](Self::engine), nor on the
        /// channels of `verbs-async`.
        timeout: option Duration,
        /// How long a failed scope waits for its operations in flight, and an aborted channel for its
        /// flushed requests; 1 s unless set.
        drain_timeout: plain Duration,
        /// How soon the death of the peer's host is noticed; within 10 s unless set.
        ///
        /// TCP's keepalive detects it, and counts in whole seconds: less than 2 s is an error.
        /// With `None`, peers are not watched at all: it is not noticed either that a peer closes
        /// its channel or that its process ends.
        peer_timeout: option Duration,
        /// How a wait passes the time between polls that find no completion; spin, then yield,
        /// unless set.
        ///
        /// It has no effect on an [`engine`](Self::engine), nor on the channels of `verbs-async`: there
        /// the layer above waits.
        strategy: plain PollStrategy,
    }
}

impl From<&Self> for ChannelBuilder {
    fn from(builder: &Self) -> Self {
        builder.clone()
    }
}

impl ChannelBuilder {
    /// The defaults.
    pub(crate) fn new(pd: ProtectionDomain) -> Self {
        Self {
            pd,
            max_send_wr: 64,
            max_recv_wr: 64,
            in_flight: None,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 0,
            port_num: None,
            gid_index: None,
            pkey_index: None,
            qp_access_flags: None,
            path_mtu: None,
            max_rd_atomic: None,
            max_dest_rd_atomic: None,
            min_rnr_timer: MinRnrTimer::default(),
            ack_timeout: AckTimeout::default(),
            retry_cnt: MaxAckRetries::default(),
            rnr_retry: MaxRnrRetries::default(),
            sl: 0,
            traffic_class: 0,
            timeout: None,
            drain_timeout: Duration::from_secs(1),
            peer_timeout: Some(Duration::from_secs(10)),
            strategy: PollStrategy::default(),
        }
    }

    /// The protection domain of the channels.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// How `channels` channels share the budget of their group; `None` if each has all of its
    /// queues.
    fn shares(&self, channels: u32, max_recv_wr: u32) -> Option<Shares> {
        let depths = [self.max_send_wr, max_recv_wr];
        Shares::divide(self.in_flight?, channels, depths)
    }

    /// A completion queue with room for everything that can be in flight on `channels` channels,
    /// and its completion channel if the strategy sleeps.
    pub(crate) fn queue(
        &self,
        channels: u32,
    ) -> Result<(CompletionQueue, Option<CompletionChannel>)> {
        let completion_channel = self.completion_channel()?;
        let cq = self.queue_on(channels, completion_channel.as_ref())?;
        Ok((cq, completion_channel))
    }

    /// A completion channel, if the strategy sleeps.
    pub(crate) fn completion_channel(&self) -> Result<Option<CompletionChannel>> {
        Ok(match self.strategy {
            PollStrategy::Notify { .. } => Some(CompletionChannel::create(self.pd.context())?),
            PollStrategy::Spin | PollStrategy::SpinThenYield => None,
        })
    }

    pub(crate) fn queue_on(
        &self,
        channels: u32,
        completion_channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue> {
        self.queue_with(channels, self.max_recv_wr, 0, completion_channel)
    }

    /// The same, with room for other receives of each channel, and for those that all share.
    pub(crate) fn queue_with(
        &self,
        channels: u32,
        max_recv_wr: u32,
        shared: u32,
        completion_channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue> {
        if let Some(timeout) = self.peer_timeout
            && timeout < Duration::from_secs(2)
        {
            return Err(Error::PeerTimeout(timeout));
        }
        if channels == 0 {
            return Err(Error::Core(verbs_core::Error::OutOfRange {
                what: "max_channels",
                value: 0,
                min: 1,
                max: u64::MAX,
            }));
        }
        let shares = self.shares(channels, max_recv_wr);
        let all = match shares {
            Some(shares) => shares.total(channels),
            None => {
                let each = self.max_send_wr.saturating_add(max_recv_wr).max(1);
                each.saturating_mul(channels)
            }
        };
        let all = all.saturating_add(shared);
        let cq = CompletionQueue::builder(self.pd.context(), all)
            .channel(completion_channel)
            .build();
        // Report the numbers that the capacity was computed from.
        cq.map_err(|error| match error {
            error if shares.is_some() => error.into(),
            verbs_core::Error::Limit { max: Some(max), .. } => Error::Capacity {
                channels,
                max_send_wr: self.max_send_wr,
                max_recv_wr,
                shared_receives: shared,
                max_cqe: u32::try_from(max).unwrap_or(u32::MAX),
            },
            error => error.into(),
        })
    }

    /// A prepared queue pair on a completion queue.
    pub(crate) fn queue_pair(&self, cq: &CompletionQueue) -> Result<PreparedQueuePair> {
        self.queue_pair_in(&self.pd, cq)
    }

    /// A prepared queue pair in this domain: the builder's, or a parent domain of it.
    pub(crate) fn queue_pair_in(
        &self,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
    ) -> Result<PreparedQueuePair> {
        Ok(self.queue_pairs(pd, cq).build()?)
    }

    /// Builds the queue pairs of its channels, in this domain.
    pub(crate) fn queue_pairs(
        &self,
        pd: &ProtectionDomain,
        cq: &CompletionQueue,
    ) -> QueuePairConfig {
        QueuePair::builder(pd, cq, cq)
            .max_send_wr(self.max_send_wr)
            .max_recv_wr(self.max_recv_wr)
            .max_send_sge(self.max_send_sge.max(1))
            .max_recv_sge(self.max_recv_sge.max(1))
            .max_inline_data(self.max_inline_data)
            .port_num(self.port_num)
            .gid_index(self.gid_index)
            .pkey_index(self.pkey_index)
            .qp_access_flags(self.qp_access_flags)
            .path_mtu(self.path_mtu)
            .max_rd_atomic(self.max_rd_atomic)
            .max_dest_rd_atomic(self.max_dest_rd_atomic)
            .min_rnr_timer(self.min_rnr_timer)
            .timeout(self.ack_timeout)
            .retry_cnt(self.retry_cnt)
            .rnr_retry(self.rnr_retry)
            .sl(self.sl)
            .traffic_class(self.traffic_class)
            .config()
    }

    /// The limits that its channels are created with.
    pub(crate) const fn member_limits(&self) -> MemberLimits {
        MemberLimits {
            capacities: [self.max_send_wr, self.max_recv_wr],
            peer_timeout: self.peer_timeout,
        }
    }

    /// Limits of an engine for `max_channels` channels.
    pub(crate) fn engine_limits(&self, max_channels: u32, max_recv_wr: u32) -> EngineLimits {
        EngineLimits {
            max_channels,
            shares: self.shares(max_channels, max_recv_wr),
            drain_timeout: self.drain_timeout,
            peer_timeout: self.peer_timeout,
        }
    }

    /// How operations wait on its channels.
    pub(crate) const fn waits(&self) -> WaitConfig {
        WaitConfig {
            strategy: self.strategy,
            timeout: self.timeout,
            drain_timeout: self.drain_timeout,
        }
    }
}
