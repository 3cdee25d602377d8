//! The settings of channels, and their defaults.

use std::time::Duration;

use verbs_core::{
    AccessFlags, AckTimeout, CompletionChannel, CompletionQueue, MaxAckRetries, MaxRnrRetries,
    MaximumTransferUnit, MinRnrTimer, PreparedQueuePair, ProtectionDomain, QueuePair,
};

use crate::engine::{EngineLimits, Made};
use crate::error::Result;

/// What to do between polls that find no completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PollStrategy {
    /// Spin: the shortest latency, for a thread with a core of its own.
    Spin,
    /// Spin for some microseconds, then yield the processor between polls.
    #[default]
    SpinThenYield,
    /// Spin for this many polls, then sleep until the completion channel has an event.
    Notify {
        /// Empty polls before the first sleep.
        after: u32,
    },
}

/// How operations wait, and how long. Can be changed at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitConfig {
    pub(crate) strategy: PollStrategy,
    pub(crate) timeout: Option<Duration>,
    pub(crate) drain_timeout: Duration,
}

/// How soon the death of a peer's host is noticed; `None` if no peer is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerTimeout(pub(crate) Option<Duration>);

impl Default for PeerTimeout {
    fn default() -> Self {
        Self(Some(Duration::from_secs(10)))
    }
}

/// The settings of a channel, kept for [`reset`](crate::Channel::reset).
#[derive(Clone, Debug, bon::Builder)]
#[builder(
    start_fn(name = of, vis = "pub(crate)"),
    finish_fn(name = into_config, vis = "pub(crate)"),
    state_mod(name = channel_builder, vis = "pub"),
    builder_type(
        name = ChannelBuilder,
        vis = "pub",
        doc {
            /// Builder for a channel or a group, from [`Channel::builder`](crate::Channel::builder).
        }
    )
)]
pub(crate) struct Config {
    #[builder(start_fn)]
    pub(crate) pd: ProtectionDomain,
    /// Sends, writes, reads and atomics in flight at once; 64 unless set.
    #[builder(default = 64)]
    pub(crate) max_send_wr: u32,
    /// Receives in flight at once; 64 unless set.
    #[builder(default = 64)]
    pub(crate) max_recv_wr: u32,
    /// Elements in a send, write or read; 4 unless set.
    #[builder(default = 4)]
    max_send_sge: u32,
    /// Elements in a receive; 4 unless set.
    #[builder(default = 4)]
    max_recv_sge: u32,
    /// Bytes that can be posted inline; 0 unless set.
    #[builder(default)]
    max_inline_data: u32,
    /// The port; the first ACTIVE one unless set.
    port_num: Option<u8>,
    /// The index of this side's GID (C: `sgid_index`); the best one unless set.
    gid_index: Option<u8>,
    /// The index of the P_Key in the port's table; 0 unless set.
    #[builder(default)]
    pkey_index: u16,
    /// What the peer may do with regions that permit it and whose key it has; everything that the
    /// device supports unless set.
    qp_access_flags: Option<AccessFlags>,
    /// The path MTU; the smaller of both ports' active MTU unless set.
    path_mtu: Option<MaximumTransferUnit>,
    /// How long the peer waits when no receive is posted here; code 12, 0.64 ms, unless set.
    #[builder(default)]
    min_rnr_timer: MinRnrTimer,
    /// How long the device waits for an acknowledgement (C: `timeout`); code 14, 67 ms, unless set.
    #[builder(default)]
    ack_timeout: AckTimeout,
    /// The device's retries when nothing is acknowledged; 6 unless set.
    #[builder(default)]
    retry_cnt: MaxAckRetries,
    /// The device's retries when the peer has no receive posted; 7, forever, unless set.
    #[builder(default)]
    rnr_retry: MaxRnrRetries,
    /// The service level, 0 to 15; 0 unless set.
    #[builder(default)]
    sl: u8,
    /// The GRH's traffic class; 0 unless set.
    #[builder(default)]
    traffic_class: u8,
    /// How long an operation on borrowed buffers, and the end of a scope, wait before the channel is
    /// aborted; forever unless set.
    timeout: Option<Duration>,
    /// How long a failed scope waits for its operations in flight, and an aborted channel for its
    /// flushes; 1 s unless set.
    #[builder(default = Duration::from_secs(1))]
    drain_timeout: Duration,
    /// How soon the death of the peer's host is noticed; 10 s unless set. TCP's keepalive detects it,
    /// which counts in whole seconds and needs at least 2. With `None` no peer is watched: a peer that
    /// closes its channel, or whose process ends, is not noticed either.
    #[builder(
        default,
        with = |timeout: impl Into<Option<Duration>>| PeerTimeout(timeout.into())
    )]
    pub(crate) peer_timeout: PeerTimeout,
    /// What to do between polls that find no completion; spin, then yield, unless set.
    #[builder(default)]
    strategy: PollStrategy,
}

impl Config {
    /// A completion queue with room for everything that can be in flight on so many channels, and its
    /// completion channel if the strategy sleeps.
    pub(crate) fn queue(
        &self,
        channels: u32,
    ) -> Result<(CompletionQueue, Option<CompletionChannel>)> {
        let context = self.pd.context();
        let completion_channel = match self.strategy {
            PollStrategy::Notify { .. } => Some(CompletionChannel::create(context)?),
            PollStrategy::Spin | PollStrategy::SpinThenYield => None,
        };
        let cq = self.queue_on(channels, completion_channel.as_ref())?;
        Ok((cq, completion_channel))
    }

    pub(crate) fn queue_on(
        &self,
        channels: u32,
        completion_channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue> {
        let each = self.max_send_wr.saturating_add(self.max_recv_wr).max(1);
        let cq = CompletionQueue::builder(self.pd.context(), each.saturating_mul(channels))
            .channel(completion_channel)
            .build()?;
        Ok(cq)
    }

    /// A prepared queue pair on a completion queue.
    pub(crate) fn queue_pair(&self, cq: &CompletionQueue) -> Result<PreparedQueuePair> {
        let prepared = QueuePair::builder(&self.pd, cq, cq)
            .max_send_wr(self.max_send_wr)
            .max_recv_wr(self.max_recv_wr)
            .max_send_sge(self.max_send_sge)
            .max_recv_sge(self.max_recv_sge)
            .max_inline_data(self.max_inline_data)
            .port_num(self.port_num)
            .gid_index(self.gid_index)
            .pkey_index(self.pkey_index)
            .qp_access_flags(self.qp_access_flags)
            .path_mtu(self.path_mtu)
            .min_rnr_timer(self.min_rnr_timer)
            .timeout(self.ack_timeout)
            .retry_cnt(self.retry_cnt)
            .rnr_retry(self.rnr_retry)
            .sl(self.sl)
            .traffic_class(self.traffic_class)
            .build()?;
        Ok(prepared)
    }

    /// What its channels are created with.
    pub(crate) const fn made(&self) -> Made {
        Made {
            capacities: [self.max_send_wr, self.max_recv_wr],
            peer_timeout: self.peer_timeout.0,
        }
    }

    /// What an engine for so many channels is created with.
    pub(crate) const fn limits(&self, max_channels: u32) -> EngineLimits {
        EngineLimits {
            max_channels,
            drain_timeout: self.drain_timeout,
            peer_timeout: self.peer_timeout.0,
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
