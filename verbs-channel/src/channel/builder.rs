//! The settings of channels, and their defaults.

use std::sync::Arc;
use std::time::Duration;

use verbs_core::completion::CompletionChannel;
use verbs_core::queue_pair::QueuePairConfig;
use verbs_core::{
    AccessFlags, AckTimeout, CompletionQueue, MaxAckRetries, MaxRnrRetries, MaximumTransferUnit,
    MinRnrTimer, PreparedQueuePair, ProtectionDomain, QueuePair,
};

use crate::engine::{EngineLimits, Lender, MemberParts, Shares};
#[expect(unused_imports, reason = "named in documentation")]
use crate::error::RejectReason;
use crate::error::{Error, Result};
use crate::waiting::{PollStrategy, WaitConfig};

/// Settings of channels and groups, from [`Channel::builder`](crate::Channel::builder).
///
/// They are a plain value: it can be kept in a struct, changed and cloned, and any number of channels and
/// groups can be built from it.
///
/// ```no_run
/// # fn main() -> verbs_channel::Result<()> {
/// use verbs_channel::verbs_core::{Context, ProtectionDomain};
/// use verbs_channel::{Channel, ChannelConfig, PollStrategy};
///
/// struct Server {
///     channels: ChannelConfig,
/// }
///
/// impl Server {
///     fn new(pd: &ProtectionDomain, port_num: Option<u8>, sleeps: bool) -> Self {
///         let mut channels = Channel::builder(pd).port_num(port_num).max_recv_wr(256).config();
///         if sleeps {
///             channels.strategy = PollStrategy::Notify { after: 1000 };
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
#[derive(bon::Builder, Clone, Debug)]
#[builder(
    builder_type(name = ChannelBuilder, doc {
        /// Builder for channels and groups, from [`Channel::builder`](crate::Channel::builder).
        ///
        /// Each setting is optional, and can be set once; one whose default is computed takes a value or an
        /// `Option`. To change settings, or to build several channels or groups from them, use a
        /// [`ChannelConfig`], from [`config`](Self::config).
    }),
    start_fn(name = with_defaults, vis = "pub(crate)"),
    state_mod(vis = "pub(crate)"),
    finish_fn(name = config, doc {
        /// The settings, to keep or change them, or to build several channels and groups.
    }),
    derive(Clone, Debug),
    on(_, required),
    on(_, setters(doc(default(skip)))),
)]
#[non_exhaustive]
pub struct ChannelConfig {
    #[builder(start_fn)]
    pub(crate) pd: ProtectionDomain,
    /// How many sends, writes, reads and atomics can be in flight at once; 64 unless set.
    #[builder(default = 64, setters(option_fn(vis = "")))]
    pub max_send_wr: u32,
    /// How many receives can be in flight at once; 64 unless set.
    #[builder(default = 64, setters(option_fn(vis = "")))]
    pub max_recv_wr: u32,
    /// The budget of a group: how many requests can be in flight at once, in all queues of all of
    /// its channels together. Unless set, all queues can be full at once.
    ///
    /// The group's completion queue has this many entries (C: `cqe`), instead of
    /// `channels * (max_send_wr + max_recv_wr)`, where `channels` is the number that the
    /// [group](Self::group) is created for. The setting has no effect on a single
    /// channel, or if the total is at least that product. A total that is too small for one
    /// request in each queue is raised to `2 * channels`.
    ///
    /// Each queue of each channel has a share of `total / (4 * channels)` requests, which
    /// no other channel can use: at least one, and at most the depth of the queue. So the
    /// shares usually take up to half of the total. Each further channel adds the same shares to the total.
    /// The rest is common, first come, first served: a channel can fill its queues while others are
    /// idle. A request for which there is no room is rejected with [`RejectReason::Budget`], which
    /// [is backpressure](RejectReason::is_backpressure). In `verbs-async` it waits in the
    /// backlog.
    ///
    /// A request beyond its channel's share costs about 215 instructions more than one within it, without those of
    /// the driver. (`cargo xtask bench` counts them: `group_budget` has one of each, `group_two` none.)
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
    #[builder(default = None, with = |value: impl Into<Option<u32>>| value.into(), setters(option_fn(vis = "")))]
    pub in_flight: Option<u32>,
    /// How many elements a send, write or read can have; 4 unless set, and at least 1.
    #[builder(default = 4, setters(option_fn(vis = "")))]
    pub max_send_sge: u32,
    /// How many elements a receive can have; 4 unless set, and at least 1.
    #[builder(default = 4, setters(option_fn(vis = "")))]
    pub max_recv_sge: u32,
    /// How many bytes one request can send inline; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub max_inline_data: u32,
    /// The number of the port; unless set, that of the first ACTIVE one, of those that have a GID if packets
    /// need one.
    #[builder(default = None, with = |value: impl Into<Option<u8>>| value.into(), setters(option_fn(vis = "")))]
    pub port_num: Option<u8>,
    /// The index of this side's GID (C: `sgid_index`); that of the best GID unless set: of RoCE v2 rather than
    /// v1, routable rather than link-local, and of IPv4 rather than IPv6.
    #[builder(default = None, with = |value: impl Into<Option<u8>>| value.into(), setters(option_fn(vis = "")))]
    pub gid_index: Option<u8>,
    /// The index of the P_Key in the port's table; that of the first one with full membership unless set.
    ///
    /// If the port is a full member of no partition, it is the first P_Key of any. Both sides must be of the
    /// same partition: in a fabric with several, set it.
    #[builder(default = None, with = |value: impl Into<Option<u16>>| value.into(), setters(option_fn(vis = "")))]
    pub pkey_index: Option<u16>,
    /// Interrupt vector for the events of the completion queue, below
    /// [`num_comp_vectors`](verbs_core::Context::num_comp_vectors); 0 unless set.
    ///
    /// It chooses the processor that is interrupted, so that several groups that sleep can have one each.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub comp_vector: u32,
    /// The peer's access to regions that also permit it, and whose key it has; all that the device
    /// supports unless set.
    #[builder(default = None, with = |value: impl Into<Option<AccessFlags>>| value.into(), setters(option_fn(vis = "")))]
    pub qp_access_flags: Option<AccessFlags>,
    /// The path MTU; the smaller of both ports' active MTUs unless set.
    #[builder(default = None, with = |value: impl Into<Option<MaximumTransferUnit>>| value.into(), setters(option_fn(vis = "")))]
    pub path_mtu: Option<MaximumTransferUnit>,
    /// How many reads and atomics this side may have in flight at once; the device's limit unless set. If the
    /// peer's `max_dest_rd_atomic` is smaller, that is used. Further ones wait in the device.
    #[builder(default = None, with = |value: impl Into<Option<u8>>| value.into(), setters(option_fn(vis = "")))]
    pub max_rd_atomic: Option<u8>,
    /// How many reads and atomics of the peer this side serves at once; the device's limit unless set, or what
    /// is left of it where all queue pairs of the device share it.
    ///
    /// Set both to a small number, on both sides, if such a device has many channels: see
    /// [`QueuePairConfig::max_dest_rd_atomic`].
    #[builder(default = None, with = |value: impl Into<Option<u8>>| value.into(), setters(option_fn(vis = "")))]
    pub max_dest_rd_atomic: Option<u8>,
    /// How long the peer waits when no receive is posted here; code 12, 0.64 ms, unless set.
    #[builder(default, setters(option_fn(vis = "")))]
    pub min_rnr_timer: MinRnrTimer,
    /// How long the device waits for an acknowledgement (C: `timeout`); code 14, 67 ms, unless set.
    #[builder(default, setters(option_fn(vis = "")))]
    pub ack_timeout: AckTimeout,
    /// How many times the device resends a request that is not acknowledged; 6 unless set.
    #[builder(default, setters(option_fn(vis = "")))]
    pub retry_cnt: MaxAckRetries,
    /// How many times the device sends again when the peer has no receive posted; 7, forever,
    /// unless set.
    ///
    /// Soft-RoCE gives up when the time of `ack_timeout` and `retry_cnt` is over, even with 7: by default, after
    /// about half a second.
    #[builder(default, setters(option_fn(vis = "")))]
    pub rnr_retry: MaxRnrRetries,
    /// The service level, 0 to 15; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub sl: u8,
    /// The GRH's traffic class, on RoCE v2 four times the DSCP; 0 unless set.
    ///
    /// The DSCP chooses the class of the packets in switches, such as one that loses none.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub traffic_class: u8,
    /// How long an operation on borrowed buffers, the end of a scope and a transfer wait before the channel is
    /// aborted; forever unless set.
    ///
    /// The time of an operation counts from its post, and that of a [`Transfer`](crate::Transfer) from the call, which
    /// posts many. [`wait_success`](crate::Channel::wait_success) waits for the same time, but does not
    /// abort the channel. The timeout has no effect on an [`engine`](ChannelConfig::engine), nor on the
    /// channels of `verbs-async`.
    #[builder(default = None, with = |value: impl Into<Option<Duration>>| value.into(), setters(option_fn(vis = "")))]
    pub timeout: Option<Duration>,
    /// How long a failed scope waits for its operations in flight, and an aborted channel for its
    /// flushed requests; 1 s unless set.
    #[builder(default = Duration::from_secs(1), setters(option_fn(vis = "")))]
    pub drain_timeout: Duration,
    /// How soon the death of the peer's host is noticed; within 10 s unless set.
    ///
    /// TCP's keepalive detects it, and counts in whole seconds: less than 2 s is an error.
    /// With `None`, peers are not watched at all: it is not noticed either that a peer closes
    /// its channel or that its process ends.
    #[builder(default = Some(Duration::from_secs(10)), with = |value: impl Into<Option<Duration>>| value.into(), setters(option_fn(vis = "")))]
    pub peer_timeout: Option<Duration>,
    /// How many memory windows the channel, or all channels of a group together, have for
    /// [leases](crate::lease::Lease); none unless set.
    ///
    /// They are allocated when the channel or the group is created, unless the device has none of type 2. Without windows,
    /// each lease is a [registration](crate::lease::LeaseKind::Registration). A lease for which no window is free is rejected with
    /// [`RejectReason::NoWindow`].
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub lease_windows: u32,
    /// How long a window rests after 255 leases; 10 s unless set.
    ///
    /// A window has 256 keys, which are used in turn. After the rest it has one again that the peer had
    /// before. So this is the longest time by which a peer may be late: its request with a key of a lease that
    /// ended before that fails.
    #[builder(default = Duration::from_secs(10), setters(option_fn(vis = "")))]
    pub lease_rest: Duration,
    /// How a wait passes the time between polls that find no completion; spin, then yield,
    /// unless set.
    ///
    /// It has no effect on an [`engine`](ChannelConfig::engine), nor on the channels of `verbs-async`: there
    /// the layer above waits.
    #[builder(default, setters(option_fn(vis = "")))]
    pub strategy: PollStrategy,
}

impl From<&Self> for ChannelConfig {
    fn from(config: &Self) -> Self {
        config.clone()
    }
}

impl<S: channel_builder::IsComplete> From<ChannelBuilder<S>> for ChannelConfig {
    fn from(builder: ChannelBuilder<S>) -> Self {
        builder.config()
    }
}

impl ChannelConfig {
    /// The protection domain of the channels.
    #[doc(hidden)]
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// How `channels` channels share the budget of their group.
    fn shares(&self, channels: u32, max_recv_wr: u32) -> Shares {
        Shares::divide(self.in_flight, channels, [self.max_send_wr, max_recv_wr])
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
        let shares = self.shares(channels, max_recv_wr);
        let all = shares.total(channels).saturating_add(shared).max(1);
        let cq = CompletionQueue::builder(self.pd.context(), all)
            .channel(completion_channel)
            .comp_vector(self.comp_vector)
            .build();
        // Report the numbers that the capacity was computed from.
        cq.map_err(|error| match error {
            error if shares.are_of_a_budget() => error.into(),
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

    /// The parts of a channel of a group that has receives of its own.
    pub(crate) const fn member_parts(&self) -> MemberParts {
        MemberParts {
            capacities: [self.max_send_wr, self.max_recv_wr],
            peer_timeout: self.peer_timeout,
            claim: None,
        }
    }

    /// The lender of the leases on its channels.
    pub(crate) fn lender(&self) -> Result<Arc<Lender>> {
        Ok(Lender::new(&self.pd, self.lease_windows, self.lease_rest)?)
    }

    /// Limits of an engine that is created for `channels` channels.
    pub(crate) fn engine_limits(&self, channels: u32, max_recv_wr: u32) -> EngineLimits {
        EngineLimits {
            shares: self.shares(channels, max_recv_wr),
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
