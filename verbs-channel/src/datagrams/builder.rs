//! The settings of datagram endpoints, and their defaults.

use std::time::Duration;

use verbs_core::completion::{CompletionChannel, Grh};
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::path::QKey;
use verbs_core::{CompletionQueue, ProtectionDomain};

use super::endpoint::Datagrams;
use super::engine::DatagramEngine;
use crate::buffer::BufferPool;
use crate::error::{Error, Result};
use crate::waiting::PollStrategy;

/// Settings of a datagram endpoint, from [`Datagrams::builder`].
///
/// They are a plain value: it can be kept in a struct, changed and cloned, and any number of endpoints can be
/// built from it.
#[derive(bon::Builder, Clone, Debug)]
#[builder(
    builder_type(name = DatagramsBuilder, doc {
        /// Builder for a datagram endpoint, from [`Datagrams::builder`].
        ///
        /// Each setting is optional, and can be set once; one whose default is computed takes a value or an
        /// `Option`. To change settings, or to build several endpoints from them, use a [`DatagramsConfig`], from
        /// [`config`](Self::config).
    }),
    start_fn(name = with_defaults, vis = ""),
    finish_fn(name = config, doc {
        /// The settings, to keep or change them, or to build several endpoints.
    }),
    derive(Clone, Debug),
    on(_, required),
    on(_, setters(doc(default(skip)))),
)]
#[non_exhaustive]
pub struct DatagramsConfig {
    #[builder(start_fn)]
    pd: ProtectionDomain,
    /// How many sends can be in flight at once; 64 unless set.
    #[builder(default = 64, setters(option_fn(vis = "")))]
    pub max_send_wr: u32,
    /// How many buffers there are for received datagrams, whether posted, not taken yet, or still
    /// in use; 64 unless set.
    #[builder(default = 64, setters(option_fn(vis = "")))]
    pub max_recv_wr: u32,
    /// Datagrams of at most this many bytes are sent inline; 0 unless set. The processor copies
    /// them into the send queue, so the device does not read their memory. Those of
    /// [`SharedSlice`](crate::buffer::SharedSlice)s are never inline: the processor may not be able to
    /// read them.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub max_inline_data: u32,
    /// How many address handles are kept for later datagrams; 256 unless set. One is created
    /// for each destination port. If there are more ports, the least recently used handle is
    /// dropped.
    #[builder(default = 256, setters(option_fn(vis = "")))]
    pub max_handles: u32,
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
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub comp_vector: u32,
    /// The key of the datagrams that it accepts; a random one unless set.
    #[builder(default = None, with = |value: impl Into<Option<QKey>>| value.into(), setters(option_fn(vis = "")))]
    pub qkey: Option<QKey>,
    /// The service level, 0 to 15; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub sl: u8,
    /// The GRH's traffic class, on RoCE v2 four times the DSCP; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub traffic_class: u8,
    /// How long [`send_to`](Datagrams::send_to) waits for room; forever unless set. A device
    /// makes room as it sends, unless it fails.
    #[builder(default = None, with = |value: impl Into<Option<Duration>>| value.into(), setters(option_fn(vis = "")))]
    pub timeout: Option<Duration>,
    /// How a wait passes the time between polls that find no completion; spin, then yield,
    /// unless set.
    #[builder(default, setters(option_fn(vis = "")))]
    pub strategy: PollStrategy,
}

impl Datagrams {
    /// Starts to build an endpoint. All settings are optional.
    pub fn builder(pd: &ProtectionDomain) -> DatagramsBuilder {
        DatagramsConfig::with_defaults(pd.clone())
    }
}

impl From<&Self> for DatagramsConfig {
    fn from(config: &Self) -> Self {
        config.clone()
    }
}

impl<S: datagrams_builder::IsComplete> From<DatagramsBuilder<S>> for DatagramsConfig {
    fn from(builder: DatagramsBuilder<S>) -> Self {
        builder.config()
    }
}

impl<S: datagrams_builder::IsComplete> DatagramsBuilder<S> {
    /// Creates the endpoint: as [`DatagramsConfig::build`].
    ///
    /// # Errors
    ///
    /// Those of [`DatagramsConfig::build`].
    pub fn build(self) -> Result<Datagrams> {
        self.config().build()
    }
}

impl DatagramsConfig {
    /// The protection domain of the endpoints.
    #[doc(hidden)]
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Creates the endpoint. It can send and receive at once.
    ///
    /// # Errors
    ///
    /// - [`Error::Capacity`]: a completion queue cannot have that many entries.
    /// - [`Error::Core`]: those of
    ///   [`DatagramQueuePairConfig::build`](verbs_core::datagram::DatagramQueuePairConfig::build), and of
    ///   registering memory for `max_recv_wr` datagrams.
    pub fn build(&self) -> Result<Datagrams> {
        let context = self.pd.context();
        let completion_channel = match self.strategy {
            PollStrategy::Notify { .. } => Some(CompletionChannel::create(context)?),
            PollStrategy::Spin | PollStrategy::SpinThenYield => None,
        };
        Ok(Datagrams {
            engine: DatagramEngine::create(self, completion_channel.as_ref())?,
            completion_channel,
            strategy: self.strategy,
            timeout: self.timeout,
            is_armed: false,
            sent: Vec::with_capacity(self.max_send_wr as usize),
        })
    }

    /// A completion queue with room for everything that can be in flight.
    fn queue(&self, channel: Option<&CompletionChannel>) -> Result<CompletionQueue> {
        let (max_send_wr, max_recv_wr) = (self.max_send_wr, self.max_recv_wr);
        let entries = max_send_wr.saturating_add(max_recv_wr).max(1);
        let cq = CompletionQueue::builder(self.pd.context(), entries)
            .channel(channel)
            .comp_vector(self.comp_vector)
            .build();
        cq.map_err(|error| match error {
            verbs_core::Error::Limit { max: Some(max), .. } => Error::Capacity {
                channels: 1,
                max_send_wr,
                max_recv_wr,
                shared_receives: 0,
                max_cqe: u32::try_from(max).unwrap_or(u32::MAX),
            },
            error => error.into(),
        })
    }
}

impl DatagramEngine {
    /// Creates an endpoint that does not wait, for layers that wait in their own way.
    ///
    /// It has a completion queue of its own, whose events are on this completion channel, if there is
    /// one.
    ///
    /// # Errors
    ///
    /// As [`DatagramsConfig::build`].
    pub fn create(config: &DatagramsConfig, events: Option<&CompletionChannel>) -> Result<Self> {
        let cq = &config.queue(events)?;
        let capacities = [config.max_send_wr, config.max_recv_wr];
        let qp = DatagramQueuePair::builder(&config.pd, cq, cq)
            .max_send_wr(config.max_send_wr)
            .max_recv_wr(config.max_recv_wr)
            .max_inline_data(config.max_inline_data)
            .port_num(config.port_num)
            .gid_index(config.gid_index)
            .pkey_index(config.pkey_index)
            .qkey(config.qkey)
            .sl(config.sl)
            .traffic_class(config.traffic_class)
            .build()?;
        let block_len = Grh::LEN + qp.max_payload() as usize;
        // A pool has at least one block.
        let blocks = config.max_recv_wr.max(1) as usize;
        let pool = BufferPool::new(&config.pd, block_len, blocks)?;
        let (inline, handles) = (config.max_inline_data, config.max_handles as usize);
        Self::new(qp, cq, pool, capacities, inline, handles)
    }
}
