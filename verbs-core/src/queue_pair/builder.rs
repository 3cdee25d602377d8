//! Making queue pairs: each setting, its default, and the checks before the call of C.
#![expect(unsafe_code, reason = "creates an `ibv_qp`")]

use std::ffi::c_int;
use std::ptr;

use verbs_sys::{ibv_create_qp, ibv_qp, ibv_qp_init_attr, ibv_qp_type};

use super::choices::{Config, everything};
use super::config::{AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, PacketSequenceNumber};
use super::depth::depth;
use super::receives::{OwnReceives, Receives, SharedReceives};
use super::{PreparedQueuePair, Qp, QpCap, QpType, QueuePair};
use crate::builder_setters;
use crate::completion::CompletionQueue;
use crate::context::Context;
use crate::device_attr::DeviceAttr;
use crate::error::causes::{self, Call};
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::memory::AccessFlags;
use crate::mtu::MaximumTransferUnit;
use crate::path::{LocalPath, Route};
use crate::protection_domain::ProtectionDomain;
use crate::ret;
use crate::shared_receive_queue::SharedReceiveQueue;

/// Builder for a queue pair, from [`QueuePair::builder`].
///
/// It is a plain value: it can be kept in a struct and cloned, and any number of queue pairs can be
/// built from it.
///
/// ```no_run
/// # fn main() -> verbs_core::Result<()> {
/// use verbs_core::{CompletionQueue, Context, QueuePair, QueuePairBuilder};
///
/// struct Server {
///     queue_pairs: QueuePairBuilder,
/// }
///
/// let context = Context::first_active()?;
/// let pd = context.alloc_pd()?;
/// let cq = CompletionQueue::create(&context, 64)?;
/// let server = Server {
///     queue_pairs: QueuePair::builder(&pd, &cq, &cq).max_send_wr(32),
/// };
/// let (first, second) = (server.queue_pairs.build()?, server.queue_pairs.build()?);
/// # Ok(())
/// # }
/// ```
// Not made by a macro that tracks in the type what is set: such a type can't be written down, and each
// optional setter has a twin.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
#[doc(alias = "ibv_qp_init_attr")]
pub struct QueuePairBuilder<R = OwnReceives> {
    pd: ProtectionDomain,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    settings: Settings,
    receives: R,
}

/// Values of the setters.
#[derive(Clone, Copy, Debug)]
struct Settings {
    qp_type: QpType,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    sq_sig_all: bool,
    route: Route,
    qp_access_flags: Option<AccessFlags>,
    path_mtu: Option<MaximumTransferUnit>,
    sq_psn: Option<PacketSequenceNumber>,
    max_rd_atomic: Option<u8>,
    max_dest_rd_atomic: Option<u8>,
    min_rnr_timer: MinRnrTimer,
    timeout: AckTimeout,
    retry_cnt: MaxAckRetries,
    rnr_retry: MaxRnrRetries,
}

impl QueuePair {
    /// Starts to build a queue pair: a reliable connection (RC) unless another
    /// [type](QueuePairBuilder::qp_type) is set.
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
        QueuePairBuilder {
            pd: pd.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            settings: Settings {
                qp_type: QpType::Rc,
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
                sq_sig_all: false,
                route: Route::new(),
                qp_access_flags: None,
                path_mtu: None,
                sq_psn: None,
                max_rd_atomic: None,
                max_dest_rd_atomic: None,
                min_rnr_timer: MinRnrTimer::default(),
                timeout: AckTimeout::default(),
                retry_cnt: MaxAckRetries::default(),
                rnr_retry: MaxRnrRetries::default(),
            },
            receives: OwnReceives::new(),
        }
    }
}

impl<R: Receives> QueuePairBuilder<R> {
    /// The queue pair takes its receives from a shared receive queue (C: `srq`).
    ///
    /// They complete on the queue pair's `recv_cq`. The queue pair then has no receive queue of its own:
    /// it has no `post_receive`, and `max_recv_wr` and `max_recv_sge` have no effect. It keeps the
    /// shared receive queue alive.
    ///
    /// ```no_run
    /// # fn main() -> verbs_core::Result<()> {
    /// use verbs_core::{CompletionQueue, Context, QueuePair, SharedReceiveQueue};
    ///
    /// let context = Context::first_active()?;
    /// let pd = context.alloc_pd()?;
    /// let cq = CompletionQueue::create(&context, 64)?;
    /// let srq = SharedReceiveQueue::create(&pd, 64)?;
    /// let prepared = QueuePair::builder(&pd, &cq, &cq).srq(&srq).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn srq(self, srq: &SharedReceiveQueue) -> QueuePairBuilder<SharedReceives> {
        QueuePairBuilder {
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            settings: self.settings,
            receives: SharedReceives::new(srq),
        }
    }

    builder_setters! {
        in [settings.];
        /// Reliable or unreliable; [`QpType::Rc`] unless set.
        qp_type: plain QpType,
        /// How many work requests the send queue has room for; 16 unless set. The driver may grant more:
        /// see [`cap`](PreparedQueuePair::cap).
        max_send_wr: plain u32,
        /// How many receives the receive queue has room for; 16 unless set. The driver may grant more.
        max_recv_wr: plain u32,
        /// How many elements a send, write or read can have; 1 unless set.
        max_send_sge: plain u32,
        /// How many elements a receive can have; 1 unless set.
        max_recv_sge: plain u32,
        /// How many bytes one request can post inline; 0 unless set.
        max_inline_data: plain u32,
        /// Whether every request of the send queue is signalled, even an `unsignaled` one; `false`
        /// unless set.
        sq_sig_all: plain bool,
    }

    builder_setters! {
        in [settings.route.];
        /// The number of the port; unless set, that of the first ACTIVE one, of those that have a GID if packets
        /// need one.
        port_num: option u8,
        /// The index of this side's GID (C: `sgid_index`); that of the best GID unless set. On
        /// InfiniBand, setting it adds a GRH.
        ///
        /// The best GID is one of RoCE v2 rather than v1, routable rather than link-local, and of IPv4 rather than
        /// IPv6. If the peer's GID is of the other kind, and this side has one of that kind, too, it is used in the
        /// path to the peer.
        gid_index: option u8,
        /// The index of the P_Key in the port's table; that of the first one with full membership unless set.
        ///
        /// If the port is a full member of no partition, it is the first P_Key of any. Both sides must be of the
        /// same partition: in a fabric with several, set it.
        pkey_index: option u16,
    }

    builder_setters! {
        in [settings.];
        /// The peer's access to regions that also permit it; all that the device supports unless
        /// set.
        qp_access_flags: option AccessFlags,
        /// The path MTU; the smaller of both ports' active MTUs unless set.
        path_mtu: option MaximumTransferUnit,
        /// The number of this side's first packet; random unless set.
        sq_psn: option PacketSequenceNumber,
        /// How many reads and atomics this side may have in flight at once; the device's limit unless
        /// set. If the peer's `max_dest_rd_atomic` is smaller, that is used.
        max_rd_atomic: option u8,
        /// How many reads and atomics of the peer this side serves at once; the device's limit
        /// unless set.
        ///
        /// On some devices all queue pairs share what it takes
        /// ([`max_res_rd_atom`](crate::DeviceAttr::max_res_rd_atom)). If too little is left there, the handshake
        /// falls back to as few as the peer's `max_rd_atomic`, and then to fewer, which it logs as a warning: the
        /// connection breaks if the peer has more in flight. A number that was set is not changed: the handshake
        /// fails. Set a small one if a device has many queue pairs.
        max_dest_rd_atomic: option u8,
        /// How long the peer waits when no receive is posted here; code 12, 0.64 ms, unless set.
        min_rnr_timer: plain MinRnrTimer,
        /// How long the device waits for an acknowledgement; code 14, 67 ms, unless set.
        timeout: plain AckTimeout,
        /// How many times the device resends a request that is not acknowledged; 6 unless set.
        retry_cnt: plain MaxAckRetries,
        /// How many times the device resends a message when the peer has no receive posted; 7,
        /// forever, unless set.
        rnr_retry: plain MaxRnrRetries,
    }

    builder_setters! {
        in [settings.route.];
        /// The service level, 0 to 15; 0 unless set.
        sl: plain u8,
        /// Which of this side's LIDs to send from, if the port has several; 0 unless set.
        src_path_bits: plain u8,
        /// The highest rate to send at, as a code of `enum ibv_rate`; 0, the port's own, unless set.
        #[doc(alias = "ibv_rate")]
        static_rate: plain u8,
        /// The GRH's traffic class, on RoCE v2 four times the DSCP; 0 unless set.
        ///
        /// The DSCP chooses the class of the packets in switches, such as one that loses none.
        traffic_class: plain u8,
        /// The GRH's flow label, 20 bits; 0 unless set.
        flow_label: plain u32,
        /// The GRH's hop limit; 64 unless set.
        hop_limit: plain u8,
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
        let settings = &self.settings;
        let context = pd.context();
        let device = context.query_device()?;
        // With a shared receive queue there is no receive queue to size.
        let own = |capacity| if srq.is_some() { 0 } else { capacity };
        let cap = QpCap {
            max_send_wr: settings.max_send_wr,
            max_recv_wr: own(settings.max_recv_wr),
            max_send_sge: settings.max_send_sge,
            max_recv_sge: own(settings.max_recv_sge),
            max_inline_data: settings.max_inline_data,
        };
        check_capacities(cap, &device)?;
        let config = self.config(&device)?;
        let path = config.path(context)?;
        let qp_type = settings.qp_type.as_raw();
        let queues = (send_cq, recv_cq, srq);
        let (qp, cap) = create(qp_type, pd, queues, cap, settings.sq_sig_all)?;
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
    pub(super) fn config(&self, device: &DeviceAttr) -> Result<Config> {
        let settings = &self.settings;
        settings.route.check()?;
        let (ask, serve) = match settings.qp_type {
            QpType::Rc => (device.max_qp_init_rd_atom(), device.max_qp_rd_atom()),
            QpType::Uc => (0, 0),
        };
        Ok(Config {
            qp_type: settings.qp_type,
            route: settings.route,
            sq_psn: settings.sq_psn,
            path_mtu: settings.path_mtu,
            qp_access_flags: settings
                .qp_access_flags
                .unwrap_or_else(|| everything(settings.qp_type, device)),
            max_rd_atomic: depth("max_rd_atomic", settings.max_rd_atomic, ask)?,
            max_dest_rd_atomic: depth("max_dest_rd_atomic", settings.max_dest_rd_atomic, serve)?,
            is_served_as_set: settings.max_dest_rd_atomic.is_some(),
            max_sge_rd: device.max_sge_rd(),
            min_rnr_timer: settings.min_rnr_timer,
            timeout: settings.timeout,
            retry_cnt: settings.retry_cnt,
            rnr_retry: settings.rnr_retry,
        })
    }

    /// The queue pair with its parents, and where its receives come from.
    pub(super) fn keep(&self, qp: Handle<ibv_qp>, cap: QpCap, config: Config) -> (Qp, R) {
        let qp = Qp {
            qp,
            cap,
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

/// The objects a queue pair is made of.
pub(crate) struct Parents<'b> {
    pub(crate) pd: &'b ProtectionDomain,
    pub(crate) send_cq: &'b CompletionQueue,
    pub(crate) recv_cq: &'b CompletionQueue,
    pub(crate) srq: Option<&'b SharedReceiveQueue>,
}

/// Creates an `ibv_qp` of any type.
pub(crate) fn create(
    qp_type: ibv_qp_type,
    pd: &ProtectionDomain,
    (send_cq, recv_cq, srq): (
        &CompletionQueue,
        &CompletionQueue,
        Option<&SharedReceiveQueue>,
    ),
    cap: QpCap,
    sq_sig_all: bool,
) -> Result<(Handle<ibv_qp>, QpCap)> {
    let mut init = ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: send_cq.as_ptr(),
        recv_cq: recv_cq.as_ptr(),
        srq: srq.map_or(ptr::null_mut(), SharedReceiveQueue::as_ptr),
        cap: cap.as_raw(),
        qp_type,
        sq_sig_all: c_int::from(sq_sig_all),
    };
    // SAFETY: the PD and the queues are alive, and `init` is a local.
    let call = || unsafe { ibv_create_qp(pd.as_ptr(), &raw mut init) };
    match ret::non_null("ibv_create_qp", call) {
        Ok(qp) => {
            // SAFETY: the queue pair is new; the caller keeps its parents next to it.
            let qp = unsafe { Handle::new(qp) };
            Ok((qp, QpCap::from_raw(init.cap)))
        }
        // The one capacity whose limit is no attribute: try whether it works without.
        Err(error) => {
            let without = QpCap {
                max_inline_data: 0,
                ..cap
            };
            let works_without =
                || create(qp_type, pd, (send_cq, recv_cq, srq), without, false).is_ok();
            if cap.max_inline_data > 0 && works_without() {
                return Err(Error::Limit {
                    what: "max_inline_data",
                    asked: cap.max_inline_data.into(),
                    max: None,
                });
            }
            let device = pd.context().query_device().ok();
            let call = Call::Create {
                limit: ("max_qp", device.map(|device| device.max_qp())),
                settings: "max_send_wr, max_recv_wr, max_send_sge, max_recv_sge or max_inline_data",
            };
            Err(causes::explain(error, &call))
        }
    }
}

/// Rejects completion queues of another context.
pub(crate) fn check_completion_queues(
    context: &Context,
    send_cq: &CompletionQueue,
    recv_cq: &CompletionQueue,
) -> Result<()> {
    for (cq, child) in [
        (send_cq, "the send queue's CQ"),
        (recv_cq, "the receive queue's CQ"),
    ] {
        if !cq.context().is(context) {
            return Err(Error::ForeignContext { child });
        }
    }
    Ok(())
}

pub(crate) fn check_capacities(cap: QpCap, device: &DeviceAttr) -> Result<()> {
    let (max_wr, max_sge) = (device.max_qp_wr(), device.max_sge());
    Context::within("max_send_wr", cap.max_send_wr, max_wr)?;
    Context::within("max_recv_wr", cap.max_recv_wr, max_wr)?;
    Context::within("max_send_sge", cap.max_send_sge, max_sge)?;
    Context::within("max_recv_sge", cap.max_recv_sge, max_sge)
}
