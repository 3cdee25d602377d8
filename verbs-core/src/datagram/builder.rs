//! Making queue pairs for datagrams: each setting, its default, and the checks before C is called.
#![expect(
    unsafe_code,
    reason = "the list of attachments has the pointer of its queue pair"
)]

use verbs_sys::{IBV_QPT_UD, ibv_qp};

use super::DatagramQueuePair;
use super::attachments::Attached;
use crate::completion::CompletionQueue;
use crate::domain::ProtectionDomain;
use crate::error::Result;
use crate::ffi::handle::Handle;
use crate::path::{LocalPath, QKey, Route};
use crate::queue_pair::create::{check_capacities, check_completion_queues, create};
use crate::queue_pair::{QpCap, SendOpsFlags};

/// Settings of a queue pair for datagrams, from [`DatagramQueuePair::builder`].
///
/// They are a plain value: it can be kept in a struct, changed and cloned, and any number of queue pairs can be
/// built from it.
#[derive(bon::Builder, Clone, Debug)]
#[builder(
    builder_type(name = DatagramQueuePairBuilder, doc {
        /// Builder for a queue pair for datagrams, from [`DatagramQueuePair::builder`].
        ///
        /// Each setting is optional, and can be set once. To change settings, or to build several queue pairs from
        /// them, use a [`DatagramQueuePairConfig`], from [`config`](Self::config).
    }),
    start_fn(name = with_defaults, vis = ""),
    finish_fn(name = config, doc {
        /// The settings, to keep or change them, or to build several queue pairs.
    }),
    derive(Clone, Debug),
    on(_, required),
    on(_, setters(doc(default(skip)))),
)]
#[doc(alias = "ibv_qp_init_attr")]
#[non_exhaustive]
pub struct DatagramQueuePairConfig {
    /// Protection domain of the queue pair.
    #[builder(start_fn)]
    pub pd: ProtectionDomain,
    /// Completion queue of sends.
    #[builder(start_fn)]
    pub send_cq: CompletionQueue,
    /// Completion queue of receives.
    #[builder(start_fn)]
    pub recv_cq: CompletionQueue,
    /// How many sends the send queue has room for; 16 unless set. The driver may grant more.
    #[builder(default = 16, setters(option_fn(vis = "")))]
    pub max_send_wr: u32,
    /// How many receives the receive queue has room for; 16 unless set. The driver may grant more.
    #[builder(default = 16, setters(option_fn(vis = "")))]
    pub max_recv_wr: u32,
    /// How many elements a send can have; 1 unless set.
    #[builder(default = 1, setters(option_fn(vis = "")))]
    pub max_send_sge: u32,
    /// How many elements a receive can have; 1 unless set.
    #[builder(default = 1, setters(option_fn(vis = "")))]
    pub max_recv_sge: u32,
    /// How many bytes one send can post inline; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub max_inline_data: u32,
    /// Whether every send is signalled, even an `unsignaled` one; `false` unless set.
    #[builder(default = false, setters(option_fn(vis = "")))]
    pub sq_sig_all: bool,
    /// The requests that a [`QueuePairEx`](crate::queue_pair::QueuePairEx) of it can post; it is no such queue pair
    /// unless set.
    #[builder(default = SendOpsFlags::empty(), setters(option_fn(vis = "")))]
    pub send_ops_flags: SendOpsFlags,
    /// The key that it accepts datagrams with; a random one unless set.
    #[builder(default = None, with = |value: impl Into<Option<QKey>>| value.into(), setters(option_fn(vis = "")))]
    pub qkey: Option<QKey>,
    /// The number of the port; unless set, that of the first ACTIVE one, of those that have a GID if packets
    /// need one.
    #[builder(default = None, with = |value: impl Into<Option<u8>>| value.into(), setters(option_fn(vis = "")))]
    pub port_num: Option<u8>,
    /// The index of this side's GID (C: `sgid_index`); that of the best GID unless set. On
    /// InfiniBand, setting it adds a GRH.
    ///
    /// The best GID is one of RoCE v2 rather than v1, routable rather than link-local, and of IPv4 rather than
    /// IPv6. If the peer's GID is of the other kind, and this side has one of that kind, too, it is used in the
    /// path to the peer.
    #[builder(default = None, with = |value: impl Into<Option<u8>>| value.into(), setters(option_fn(vis = "")))]
    pub gid_index: Option<u8>,
    /// The index of the P_Key in the port's table; that of the first one with full membership unless set.
    ///
    /// If the port is a full member of no partition, it is the first P_Key of any. Both sides must be of the
    /// same partition: in a fabric with several, set it.
    #[builder(default = None, with = |value: impl Into<Option<u16>>| value.into(), setters(option_fn(vis = "")))]
    pub pkey_index: Option<u16>,
    /// The service level, 0 to 15; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub sl: u8,
    /// Which of this side's LIDs to send from, if the port has several; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub src_path_bits: u8,
    /// The highest rate to send at, as a code of `enum ibv_rate`; 0, the port's own, unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub static_rate: u8,
    /// The GRH's traffic class, on RoCE v2 four times the DSCP; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub traffic_class: u8,
    /// The GRH's flow label, 20 bits; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub flow_label: u32,
    /// The GRH's hop limit; 64 unless set.
    #[builder(default = 64, setters(option_fn(vis = "")))]
    pub hop_limit: u8,
}

impl DatagramQueuePair {
    /// Starts to build a queue pair for datagrams.
    ///
    /// Sends complete on `send_cq`, receives on `recv_cq`. Both may be the same queue.
    ///
    /// The defaults work on InfiniBand and on RoCE, as those of
    /// [`QueuePair::builder`](crate::QueuePair::builder) do.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_qp_init_attr")]
    pub fn builder(
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
    ) -> DatagramQueuePairBuilder {
        DatagramQueuePairConfig::with_defaults(pd.clone(), send_cq.clone(), recv_cq.clone())
    }
}

impl<S: datagram_queue_pair_builder::IsComplete> DatagramQueuePairBuilder<S> {
    /// Creates a queue pair that can send and receive: in `RTS`.
    ///
    /// # Errors
    ///
    /// As [`DatagramQueuePairConfig::build`].
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<DatagramQueuePair> {
        self.config().build()
    }
}

impl DatagramQueuePairConfig {
    /// Creates a queue pair that can send and receive: in `RTS`.
    ///
    /// Datagrams that arrive before the first receive is posted are dropped.
    ///
    /// # Errors
    ///
    /// - [`Error::Limit`](crate::Error::Limit) for a capacity above the device's limit.
    /// - [`Error::OutOfRange`](crate::Error::OutOfRange) for a number that its field cannot hold, or a
    ///   `pkey_index` after the end of the port's table.
    /// - [`Error::NoActivePort`](crate::Error::NoActivePort) and similar errors if there is no such
    ///   port or GID.
    /// - [`Error::ForeignContext`](crate::Error::ForeignContext) for a completion queue of another
    ///   context.
    /// - The errno for anything else.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn build(&self) -> Result<DatagramQueuePair> {
        let (pd, send_cq, recv_cq) = self.parents()?;
        let context = pd.context();
        let cap = QpCap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline_data: self.max_inline_data,
        };
        check_capacities(cap, &context.query_device()?)?;
        let path = self.local_path()?;
        let (qp, cap) = create(
            IBV_QPT_UD,
            pd,
            (send_cq, recv_cq, None),
            cap,
            self.sq_sig_all,
            self.send_ops_flags,
        )?;
        self.start(qp, cap, path)
    }

    /// Checks the numbers, and chooses this side's end of the paths.
    pub(super) fn local_path(&self) -> Result<LocalPath> {
        let route = self.route();
        route.check()?;
        route.local(self.pd.context())
    }

    const fn route(&self) -> Route {
        Route {
            port_num: self.port_num,
            gid_index: self.gid_index,
            pkey_index: self.pkey_index,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
        }
    }

    /// The parents: protection domain, send and receive queue's CQ, of one context.
    pub(super) fn parents(
        &self,
    ) -> Result<(&ProtectionDomain, &CompletionQueue, &CompletionQueue)> {
        check_completion_queues(self.pd.context(), &self.send_cq, &self.recv_cq)?;
        Ok((&self.pd, &self.send_cq, &self.recv_cq))
    }

    /// Moves the queue pair to `RTS`.
    pub(super) fn start(
        &self,
        qp: Handle<ibv_qp>,
        cap: QpCap,
        path: LocalPath,
    ) -> Result<DatagramQueuePair> {
        // SAFETY: `attached` is dropped before the handle.
        let attached = unsafe { Attached::new(qp.as_ptr()) };
        let qp = DatagramQueuePair {
            attached,
            qp,
            cap,
            send_ops_flags: self.send_ops_flags.bits(),
            path,
            route: self.route(),
            qkey: self.qkey.unwrap_or_else(QKey::random),
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
            pd: self.pd.clone(),
        };
        qp.start()?;
        Ok(qp)
    }
}
