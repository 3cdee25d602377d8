//! The settings of datagram endpoints, and their defaults.

use std::time::Duration;

use verbs_core::{
    CompletionChannel, CompletionQueue, DatagramQueuePair, Grh, ProtectionDomain, QKey,
};

use super::endpoint::Datagrams;
use super::engine::DatagramEngine;
use crate::buffer::BufferPool;
use crate::error::{Error, Result};
use crate::waiting::PollStrategy;

/// Builder for a datagram endpoint, from [`Datagrams::builder`]. All settings are optional.
///
/// It is a plain value: it can be kept in a struct and cloned, and any number of endpoints can be
/// built from it.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct DatagramsBuilder {
    pd: ProtectionDomain,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_inline_data: u32,
    max_handles: u32,
    port_num: Option<u8>,
    gid_index: Option<u8>,
    pkey_index: Option<u16>,
    qkey: Option<QKey>,
    sl: u8,
    traffic_class: u8,
    timeout: Option<Duration>,
    strategy: PollStrategy,
}

impl Datagrams {
    /// Starts to build an endpoint. All settings are optional.
    pub fn builder(pd: &ProtectionDomain) -> DatagramsBuilder {
        DatagramsBuilder::new(pd.clone())
    }
}

impl DatagramsBuilder {
    const fn new(pd: ProtectionDomain) -> Self {
        Self {
            pd,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_inline_data: 0,
            max_handles: 256,
            port_num: None,
            gid_index: None,
            pkey_index: None,
            qkey: None,
            sl: 0,
            traffic_class: 0,
            timeout: None,
            strategy: PollStrategy::SpinThenYield,
        }
    }

    verbs_core::builder_setters! {
        /// How many sends can be in flight at once; 64 unless set.
        max_send_wr: plain u32,
        /// How many buffers there are for received datagrams, whether posted, not taken yet, or still
        /// in use; 64 unless set.
        max_recv_wr: plain u32,
        /// Datagrams of at most this many bytes are sent inline; 0 unless set. The processor copies
        /// them into the send queue, so the device does not read their memory. Those of
        /// [`SharedSlice`](crate::SharedSlice)s are never inline: the processor may not be able to
        /// read them.
        max_inline_data: plain u32,
        /// How many address handles are kept for later datagrams; 256 unless set. One is created
        /// for each destination port. If there are more ports, the least recently used handle is
        /// dropped.
        max_handles: plain u32,
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
        /// The key of the datagrams that it accepts; a random one unless set.
        qkey: option QKey,
        /// The service level, 0 to 15; 0 unless set.
        sl: plain u8,
        /// The GRH's traffic class, on RoCE v2 four times the DSCP; 0 unless set.
        traffic_class: plain u8,
        /// How long [`send_to`](Datagrams::send_to) waits for room; forever unless set. A device
        /// makes room as it sends, unless it fails.
        timeout: option Duration,
        /// How a wait passes the time between polls that find no completion; spin, then yield,
        /// unless set.
        strategy: plain PollStrategy,
    }

    /// The protection domain of the endpoints.
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
    ///   [`DatagramQueuePairBuilder::build`](verbs_core::DatagramQueuePairBuilder::build), and of
    ///   registering memory for `max_recv_wr` datagrams.
    pub fn build(&self) -> Result<Datagrams> {
        let context = self.pd.context();
        let completion_channel = match self.strategy {
            PollStrategy::Notify { .. } => Some(CompletionChannel::create(context)?),
            PollStrategy::Spin | PollStrategy::SpinThenYield => None,
        };
        Ok(Datagrams {
            engine: self.engine(completion_channel.as_ref())?,
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

    /// Creates an endpoint that does not wait, for layers that wait in their own way.
    ///
    /// It has a completion queue of its own, whose events are on this completion channel, if there is
    /// one.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    pub fn engine(&self, events: Option<&CompletionChannel>) -> Result<DatagramEngine> {
        let cq = &self.queue(events)?;
        let capacities = [self.max_send_wr, self.max_recv_wr];
        let qp = DatagramQueuePair::builder(&self.pd, cq, cq)
            .max_send_wr(self.max_send_wr)
            .max_recv_wr(self.max_recv_wr)
            .max_inline_data(self.max_inline_data)
            .port_num(self.port_num)
            .gid_index(self.gid_index)
            .pkey_index(self.pkey_index)
            .qkey(self.qkey)
            .sl(self.sl)
            .traffic_class(self.traffic_class)
            .build()?;
        let block_len = Grh::LEN + qp.max_payload() as usize;
        // A pool has at least one block.
        let blocks = self.max_recv_wr.max(1) as usize;
        let pool = BufferPool::new(&self.pd, block_len, blocks)?;
        let (inline, handles) = (self.max_inline_data, self.max_handles as usize);
        DatagramEngine::new(qp, cq, pool, capacities, inline, handles)
    }
}
