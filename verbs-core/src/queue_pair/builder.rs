//! Making queue pairs: each setting, its default, and the checks before the call of C.

use verbs_sys::ibv_qp;

use super::create::{Parents, check_capacities, check_completion_queues, create};
use super::depth::depth;
use super::extended::SendOpsFlags;
use super::receives::{OwnReceives, Receives, SharedReceives};
use super::settings::{Config, everything};
use super::timers::{AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, PacketSequenceNumber};
use super::{PreparedQueuePair, Qp, QpCap, QueuePair};
use crate::codes::{MaximumTransferUnit, QpType};
use crate::completion::CompletionQueue;
use crate::device::DeviceAttr;
use crate::domain::ProtectionDomain;
use crate::error::{Error, Result};
use crate::ffi::handle::Handle;
use crate::memory::AccessFlags;
use crate::path::{LocalPath, Route};
use crate::shared_receive_queue::SharedReceiveQueue;

/// Settings of a queue pair, from [`QueuePair::builder`].
///
/// They are a plain value: it can be kept in a struct, changed and cloned, and any number of queue pairs can be
/// built from it.
///
/// ```no_run
/// # fn main() -> verbs_core::Result<()> {
/// use verbs_core::{CompletionQueue, Context, QueuePair};
/// use verbs_core::queue_pair::QueuePairConfig;
///
/// struct Server {
///     queue_pairs: QueuePairConfig,
/// }
///
/// let context = Context::first_active()?;
/// let pd = context.alloc_pd()?;
/// let cq = CompletionQueue::create(&context, 64)?;
/// let mut server = Server {
///     queue_pairs: QueuePair::builder(&pd, &cq, &cq).max_send_wr(32).config(),
/// };
/// let (first, second) = (server.queue_pairs.build()?, server.queue_pairs.build()?);
/// server.queue_pairs.max_inline_data = 64;
/// let third = server.queue_pairs.build()?;
/// # Ok(())
/// # }
/// ```
#[derive(bon::Builder, Clone, Debug)]
#[builder(
    builder_type(name = QueuePairBuilder, doc {
        /// Builder for a queue pair, from [`QueuePair::builder`].
        ///
        /// Each setting is optional, and can be set once. The settings of a [`QueuePairConfig`] can be changed, and
        /// many queue pairs built from them: [`config`](Self::config) returns one.
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
pub struct QueuePairConfig<R = OwnReceives> {
    /// Protection domain of the queue pair.
    #[builder(start_fn)]
    pub pd: ProtectionDomain,
    /// Completion queue of sends, writes, reads and atomics.
    #[builder(start_fn)]
    pub send_cq: CompletionQueue,
    /// Completion queue of receives.
    #[builder(start_fn)]
    pub recv_cq: CompletionQueue,
    #[builder(start_fn)]
    receives: R,
    /// Reliable or unreliable; [`QpType::Rc`] unless set.
    #[builder(default = QpType::Rc, setters(option_fn(vis = "")))]
    pub qp_type: QpType,
    /// How many work requests the send queue has room for; 16 unless set. The driver may grant more:
    /// see [`cap`](PreparedQueuePair::cap).
    #[builder(default = 16, setters(option_fn(vis = "")))]
    pub max_send_wr: u32,
    /// How many receives the receive queue has room for; 16 unless set. The driver may grant more.
    #[builder(default = 16, setters(option_fn(vis = "")))]
    pub max_recv_wr: u32,
    /// How many elements a send, write or read can have; 1 unless set.
    #[builder(default = 1, setters(option_fn(vis = "")))]
    pub max_send_sge: u32,
    /// How many elements a receive can have; 1 unless set.
    #[builder(default = 1, setters(option_fn(vis = "")))]
    pub max_recv_sge: u32,
    /// How many bytes one request can post inline; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub max_inline_data: u32,
    /// Whether every request of the send queue is signalled, even an `unsignaled` one; `false`
    /// unless set.
    #[builder(default = false, setters(option_fn(vis = "")))]
    pub sq_sig_all: bool,
    /// The requests that a [`QueuePairEx`](super::QueuePairEx) of it can post; it is no such queue pair unless set.
    #[builder(default = SendOpsFlags::empty(), setters(option_fn(vis = "")))]
    pub send_ops_flags: SendOpsFlags,
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
    /// The peer's access to regions that also permit it; all that the device supports unless
    /// set.
    #[builder(default = None, with = |value: impl Into<Option<AccessFlags>>| value.into(), setters(option_fn(vis = "")))]
    pub qp_access_flags: Option<AccessFlags>,
    /// The path MTU; the smaller of both ports' active MTUs unless set.
    #[builder(default = None, with = |value: impl Into<Option<MaximumTransferUnit>>| value.into(), setters(option_fn(vis = "")))]
    pub path_mtu: Option<MaximumTransferUnit>,
    /// The number of this side's first packet; random unless set.
    #[builder(default = None, with = |value: impl Into<Option<PacketSequenceNumber>>| value.into(), setters(option_fn(vis = "")))]
    pub sq_psn: Option<PacketSequenceNumber>,
    /// How many reads and atomics this side may have in flight at once; the device's limit unless
    /// set. If the peer's `max_dest_rd_atomic` is smaller, that is used.
    #[builder(default = None, with = |value: impl Into<Option<u8>>| value.into(), setters(option_fn(vis = "")))]
    pub max_rd_atomic: Option<u8>,
    /// How many reads and atomics of the peer this side serves at once; the device's limit
    /// unless set.
    ///
    /// On some devices all queue pairs share what it takes
    /// ([`max_res_rd_atom`](crate::device::DeviceAttr::max_res_rd_atom)). If too little is left there, the handshake
    /// falls back to as few as the peer's `max_rd_atomic`, and then to fewer, which it logs as a warning: the
    /// connection breaks if the peer has more in flight. A number that was set is not changed: the handshake
    /// fails. Set a small one if a device has many queue pairs.
    #[builder(default = None, with = |value: impl Into<Option<u8>>| value.into(), setters(option_fn(vis = "")))]
    pub max_dest_rd_atomic: Option<u8>,
    /// How long the peer waits when no receive is posted here; code 12, 0.64 ms, unless set.
    #[builder(default, setters(option_fn(vis = "")))]
    pub min_rnr_timer: MinRnrTimer,
    /// How long the device waits for an acknowledgement; code 14, 67 ms, unless set.
    #[builder(default, setters(option_fn(vis = "")))]
    pub timeout: AckTimeout,
    /// How many times the device resends a request that is not acknowledged; 6 unless set.
    #[builder(default, setters(option_fn(vis = "")))]
    pub retry_cnt: MaxAckRetries,
    /// How many times the device resends a message when the peer has no receive posted; 7,
    /// forever, unless set.
    #[builder(default, setters(option_fn(vis = "")))]
    pub rnr_retry: MaxRnrRetries,
    /// The service level, 0 to 15; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub sl: u8,
    /// Which of this side's LIDs to send from, if the port has several; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub src_path_bits: u8,
    /// The highest rate to send at, as a code of `enum ibv_rate`; 0, the port's own, unless set.
    #[doc(alias = "ibv_rate")]
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub static_rate: u8,
    /// The GRH's traffic class, on RoCE v2 four times the DSCP; 0 unless set.
    ///
    /// The DSCP chooses the class of the packets in switches, such as one that loses none.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub traffic_class: u8,
    /// The GRH's flow label, 20 bits; 0 unless set.
    #[builder(default = 0, setters(option_fn(vis = "")))]
    pub flow_label: u32,
    /// The GRH's hop limit; 64 unless set.
    #[builder(default = 64, setters(option_fn(vis = "")))]
    pub hop_limit: u8,
}

impl QueuePair {
    /// Starts to build a queue pair: a reliable connection (RC) unless another
    /// [type](QueuePairConfig::qp_type) is set.
    ///
    /// Sends, writes, reads and atomics complete on `send_cq`, receives on `recv_cq`. Both may be the
    /// same queue.
    ///
    /// The defaults work on InfiniBand and on RoCE. The port is the first ACTIVE one. If packets need a
    /// GID, it is the best one of the port's table: RoCE v2 rather than v1, routable rather than link-local,
    /// and IPv4 rather than IPv6.
    ///
    /// ```no_run
    /// # fn main() -> verbs_core::Result<()> {
    /// use verbs_core::{CompletionQueue, Context, QueuePair};
    ///
    /// let context = Context::first_active()?;
    /// let pd = context.alloc_pd()?;
    /// let cq = CompletionQueue::create(&context, 64)?;
    /// let prepared = QueuePair::builder(&pd, &cq, &cq).max_send_wr(32).build()?;
    /// let for_the_peer = prepared.endpoint().to_bytes();
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_qp_init_attr")]
    pub fn builder(
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
    ) -> QueuePairBuilder {
        let receives = OwnReceives::new();
        QueuePairConfig::with_defaults(pd.clone(), send_cq.clone(), recv_cq.clone(), receives)
    }
}

impl<S: queue_pair_builder::IsComplete> QueuePairBuilder<OwnReceives, S> {
    /// Creates a queue pair and moves it to `INIT`.
    ///
    /// # Errors
    ///
    /// As [`QueuePairConfig::build`].
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<PreparedQueuePair> {
        self.config().build()
    }

    /// The settings, with a shared receive queue: as [`QueuePairConfig::srq`].
    #[must_use]
    pub fn srq(self, srq: &SharedReceiveQueue) -> QueuePairConfig<SharedReceives> {
        self.config().srq(srq)
    }
}

impl<R: Receives> QueuePairConfig<R> {
    /// The queue pair takes its receives from a shared receive queue (C: `srq`).
    ///
    /// They complete on the queue pair's `recv_cq`. The queue pair then has no receive queue of its own:
    /// it has no `post_receive`, and `max_recv_wr` and `max_recv_sge` have no effect. It keeps the
    /// shared receive queue alive.
    ///
    /// ```no_run
    /// # fn main() -> verbs_core::Result<()> {
    /// use verbs_core::{CompletionQueue, Context, QueuePair};
    /// use verbs_core::shared_receive_queue::SharedReceiveQueue;
    ///
    /// let context = Context::first_active()?;
    /// let pd = context.alloc_pd()?;
    /// let cq = CompletionQueue::create(&context, 64)?;
    /// let srq = SharedReceiveQueue::create(&pd, 64)?;
    /// let prepared = QueuePair::builder(&pd, &cq, &cq).srq(&srq).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn srq(self, srq: &SharedReceiveQueue) -> QueuePairConfig<SharedReceives> {
        QueuePairConfig {
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            qp_type: self.qp_type,
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline_data: self.max_inline_data,
            sq_sig_all: self.sq_sig_all,
            send_ops_flags: self.send_ops_flags,
            port_num: self.port_num,
            gid_index: self.gid_index,
            pkey_index: self.pkey_index,
            qp_access_flags: self.qp_access_flags,
            path_mtu: self.path_mtu,
            sq_psn: self.sq_psn,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            receives: SharedReceives::new(srq),
        }
    }

    /// Creates a queue pair and moves it to `INIT`.
    ///
    /// # Errors
    ///
    /// - [`Error::Limit`] for a capacity above the device's limit.
    /// - [`Error::OutOfRange`] for a number that its field cannot hold, a `path_mtu` above the port's, or
    ///   a `pkey_index` past the end of the port's table.
    /// - [`Error::NoActivePort`], [`Error::PortNotActive`], [`Error::UnknownPort`],
    ///   [`Error::EmptyGid`] or [`Error::NoGid`] if there is no such port or GID.
    /// - [`Error::ForeignContext`] for a queue of another context.
    /// - The errno for anything else.
    #[doc(alias = "ibv_create_qp")]
    pub fn build(&self) -> Result<PreparedQueuePair<R>> {
        let Parents {
            pd,
            send_cq,
            recv_cq,
            srq,
        } = self.parents()?;
        let context = pd.context();
        let device = context.query_device()?;
        // With a shared receive queue there is no receive queue to size.
        let own = |capacity| if srq.is_some() { 0 } else { capacity };
        let cap = QpCap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: own(self.max_recv_wr),
            max_send_sge: self.max_send_sge,
            max_recv_sge: own(self.max_recv_sge),
            max_inline_data: self.max_inline_data,
        };
        check_capacities(cap, &device)?;
        let config = self.chosen(&device)?;
        let path = config.path(context)?;
        let qp_type = self.qp_type.as_raw();
        let queues = (send_cq, recv_cq, srq);
        let (qp, cap) = create(
            qp_type,
            pd,
            queues,
            cap,
            self.sq_sig_all,
            self.send_ops_flags,
        )?;
        self.prepare(qp, cap, config, path)
    }

    /// Its parents, of one context.
    pub(super) fn parents(&self) -> Result<Parents<'_>> {
        let Self {
            pd,
            send_cq,
            recv_cq,
            receives,
            ..
        } = self;
        let context = pd.context();
        check_completion_queues(context, send_cq, recv_cq)?;
        let srq = receives.shared();
        if srq.is_some_and(|srq| !srq.pd().context().is(context)) {
            return Err(Error::ForeignContext {
                child: "the shared receive queue",
            });
        }
        Ok(Parents {
            pd,
            send_cq,
            recv_cq,
            srq,
        })
    }

    /// The choices that outlive the builder, checked.
    pub(super) fn chosen(&self, device: &DeviceAttr) -> Result<Config> {
        let route = Route {
            port_num: self.port_num,
            gid_index: self.gid_index,
            pkey_index: self.pkey_index,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
        };
        route.check()?;
        let (ask, serve) = match self.qp_type {
            QpType::Rc => (device.max_qp_init_rd_atom(), device.max_qp_rd_atom()),
            QpType::Uc => (0, 0),
        };
        Ok(Config {
            qp_type: self.qp_type,
            route,
            sq_psn: self.sq_psn,
            path_mtu: self.path_mtu,
            qp_access_flags: self
                .qp_access_flags
                .unwrap_or_else(|| everything(self.qp_type, device)),
            max_rd_atomic: depth("max_rd_atomic", self.max_rd_atomic, ask)?,
            max_dest_rd_atomic: depth("max_dest_rd_atomic", self.max_dest_rd_atomic, serve)?,
            is_served_as_set: self.max_dest_rd_atomic.is_some(),
            max_sge_rd: device.max_sge_rd(),
            min_rnr_timer: self.min_rnr_timer,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
        })
    }

    /// The queue pair with its parents, and where its receives come from.
    pub(super) fn keep(&self, qp: Handle<ibv_qp>, cap: QpCap, config: Config) -> (Qp, R) {
        let qp = Qp {
            qp,
            cap,
            send_ops_flags: self.send_ops_flags.bits(),
            config: Box::new(config),
            send_cq: self.send_cq.clone(),
            recv_cq: self.recv_cq.clone(),
            pd: self.pd.clone(),
        };
        (qp, self.receives.clone())
    }

    /// Moves the queue pair to `INIT`.
    pub(super) fn prepare(
        &self,
        qp: Handle<ibv_qp>,
        cap: QpCap,
        config: Config,
        path: LocalPath,
    ) -> Result<PreparedQueuePair<R>> {
        let psn = config.psn();
        let (qp, receives) = self.keep(qp, cap, config);
        qp.prepare(&path)?;
        Ok(PreparedQueuePair {
            qp,
            receives,
            path,
            psn,
        })
    }
}
