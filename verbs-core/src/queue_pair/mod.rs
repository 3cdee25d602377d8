//! Queue pairs: from a builder, over a handshake, to a connection.

// First: rustdoc lists the methods of a queue pair in the order of the modules.
mod builder;
pub(crate) mod post;
pub(crate) mod post_chain;

mod attr;
#[cfg(feature = "rdmacm")]
mod cm;
pub(crate) mod create;
mod data_in_order;
mod depth;
mod destroyed;
mod endpoint;
pub(crate) mod extended;
pub(crate) mod from_raw;
mod raw;
mod receives;
mod settings;
mod timers;

use std::fmt;

use verbs_sys::ibv_qp;

pub use attr::{MigState, QpAttr, QpCap};
pub use builder::{QueuePairBuilder, QueuePairConfig};
pub use data_in_order::{DataInOrder, WrOpcode};
pub use destroyed::DestroyedQueuePair;
pub use endpoint::{QueuePairEndpoint, QueuePairEndpointBuilder};
pub use extended::{QueuePairEx, SendOpsFlags, SendQueue, WorkRequestBatch};
pub(crate) use raw::RawQp;
pub use receives::{OwnReceives, Receives, SharedReceives};
pub use timers::{AckTimeout, MaxAckRetries, MaxRnrRetries, MinRnrTimer, PacketSequenceNumber};

use crate::codes::macros::man;
use crate::codes::{MaximumTransferUnit, QpState, QpType};
use crate::completion::CompletionQueue;
use crate::domain::ProtectionDomain;
use crate::error::{EndpointError, ErrorChain, Rejected, Result};
use crate::ffi::handle::Handle;
use crate::ffi::log;
use crate::path::LocalPath;
use crate::shared_receive_queue::SharedReceiveQueue;
use settings::Config;

/// A queue pair (QP) that is not connected yet: in `INIT`.
///
/// Send its [`endpoint`](Self::endpoint) to the peer, receive the peer's, and call
/// [`handshake`](Self::handshake). Post receives before that: the peer may send as soon as it is
/// connected.
///
/// ```no_run
/// use std::io::{Read, Write};
///
/// use verbs_core::{PreparedQueuePair, QueuePair, QueuePairEndpoint, ReceiveWorkRequest, ScatterElement};
///
/// fn connect(
///     prepared: PreparedQueuePair,
///     inbox: &mut ScatterElement<'_>,
///     mut stream: impl Read + Write,
/// ) -> Result<QueuePair, Box<dyn std::error::Error>> {
///     // Sound if the caller does not access `inbox` until the completion has been polled.
///     unsafe { prepared.post_receive(&mut ReceiveWorkRequest::new(inbox))? };
///     stream.write_all(&prepared.endpoint().to_bytes())?;
///     let mut bytes = [0; QueuePairEndpoint::BYTES];
///     stream.read_exact(&mut bytes)?;
///     let connected = prepared.handshake(&QueuePairEndpoint::from_bytes(&bytes)?)?;
///     // Send only when the peer is connected, too.
///     stream.write_all(&[1])?;
///     stream.read_exact(&mut [0])?;
///     Ok(connected)
/// }
/// ```
///
/// `R` is where its receives come from, as in [`QueuePair`].
#[derive(Debug)]
#[doc(alias = "ibv_qp")]
pub struct PreparedQueuePair<R = OwnReceives> {
    qp: Qp,
    // After `qp`: dropped later.
    receives: R,
    path: LocalPath,
    psn: PacketSequenceNumber,
}

/// A connected queue pair (QP), of type RC unless UC was [chosen](QueuePairConfig::qp_type): in `RTS`.
///
/// Work requests are posted with its `post_*` functions. Their completions come out of its completion
/// queues. After a failed work request it is in `ERR`: [`reset`](Self::reset) prepares it again.
///
/// Dropping it destroys it. Once it is destroyed, the device does not access the buffers that were
/// posted on it. If the driver fails to destroy it, [`close`](Self::close) returns the error, but a
/// drop only logs it. Completions of its requests may still be in the completion queues (soft-RoCE
/// leaves them there).
///
/// `R` is where its receives come from: the queue pair's own receive queue ([`OwnReceives`], the
/// default), or a [`SharedReceiveQueue`] ([`SharedReceives`], chosen with
/// [`QueuePairConfig::srq`]). A queue pair on a shared receive queue has no `post_receive`.
#[doc = man!("ibv_create_qp")]
#[derive(Debug)]
#[doc(alias = "ibv_qp")]
pub struct QueuePair<R = OwnReceives> {
    qp: Qp,
    // After `qp`: dropped later.
    receives: R,
    max_msg_sz: u32,
    local: QueuePairEndpoint,
    remote: QueuePairEndpoint,
}

/// A queue pair in any of its states.
struct Qp {
    qp: Handle<ibv_qp>,
    cap: QpCap,
    // `SendOpsFlags`; 0 if it is no extended one.
    send_ops_flags: u64,
    config: Box<Config>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    pd: ProtectionDomain,
}

impl<R> PreparedQueuePair<R> {
    /// The data that the peer needs to connect.
    #[must_use]
    pub fn endpoint(&self) -> QueuePairEndpoint {
        let Self { qp, path, psn, .. } = self;
        let config = &qp.config;
        QueuePairEndpoint::chosen(qp.number(), *psn, path, config)
    }

    /// Connects to the peer's endpoint. The peer must do the same with the endpoint of this side.
    ///
    /// Before the first send, wait until the peer has done so: until then its device does not answer,
    /// and a send fails when its [retries](MaxAckRetries) are used up. On RoCE the kernel looks up the
    /// peer's GID during this call, which takes about a second if no host answers.
    ///
    /// # Errors
    ///
    /// - [`Error::NeedsRdmaCm`](crate::Error::NeedsRdmaCm) on iWARP.
    /// - [`Error::Endpoint`](crate::Error::Endpoint) if this side's port needs an address that the peer's endpoint lacks, or
    ///   the peer's queue pair is of another [type](QpType).
    /// - [`Error::GidRemoved`](crate::Error::GidRemoved) and [`Error::PkeyRemoved`](crate::Error::PkeyRemoved) if what
    ///   was chosen is not in its port's table any more. At another index it is used there.
    /// - [`Error::Transition`](crate::Error::Transition) if there is no path to the peer's GID, or one of the values was rejected.
    ///   It names both GIDs.
    /// - The errno for anything else.
    ///
    /// The error carries the queue pair. It is in `INIT` again, unless the device refuses that, which is logged. Posted
    /// receives may have been discarded without completions.
    #[doc(alias = "ibv_modify_qp")]
    #[expect(clippy::result_large_err, reason = "gives back what it was called on")]
    pub fn handshake(self, remote: &QueuePairEndpoint) -> Result<QueuePair<R>, Rejected<Self>> {
        match self.connect(remote) {
            Ok(local) => Ok(QueuePair {
                qp: self.qp,
                receives: self.receives,
                max_msg_sz: self.path.max_msg_sz,
                local,
                remote: *remote,
            }),
            Err(error) => {
                // Half-way connected: back to where it was, as far as the device still can.
                if self.qp.state().is_ok_and(|state| state != QpState::INIT) {
                    let back = self.qp.prepare(&self.path);
                    if let Err(error) = back {
                        let (qp, error) = (&self.qp, ErrorChain::new(&error));
                        log::error(format_args!("cannot prepare {qp:?} again: {error}"));
                    }
                }
                Err(Rejected::new(error, self))
            }
        }
    }

    /// The longest message in bytes: see [`QueuePair::max_msg_sz`].
    #[must_use]
    pub const fn max_msg_sz(&self) -> u32 {
        self.path.max_msg_sz
    }

    /// Connects it. Returns this side's endpoint, as it is for this peer.
    fn connect(&self, remote: &QueuePairEndpoint) -> Result<QueuePairEndpoint> {
        let context = self.qp.pd.context();
        context.device().check_handshake()?;
        let config = &self.qp.config;
        let (ours, theirs) = (config.qp_type, remote.qp_type());
        if ours != theirs {
            return Err(EndpointError::QpType { ours, theirs }.into());
        }
        let route = &config.route;
        let path = route.toward(remote.gid(), self.path, context);
        let to_peer = route.attr_to(context, &path, remote.lid(), remote.gid())?;
        let pkey_index = route.pkey_index(context, &path)?;
        let mut local = QueuePairEndpoint::chosen(self.qp.number(), self.psn, &path, config);
        let mut receive = QpAttr::new()
            .with_qp_state(QpState::RTR)
            .with_ah_attr(to_peer)
            .with_path_mtu(negotiated_mtu(&local, remote))
            .with_dest_qp_num(remote.qp_num())
            .with_rq_psn(remote.psn());
        if pkey_index != path.pkey_index {
            receive = receive.with_pkey_index(pkey_index);
        }
        let mut send = QpAttr::new()
            .with_qp_state(QpState::RTS)
            .with_sq_psn(local.psn());
        if ours == QpType::Rc {
            receive = receive
                .with_max_dest_rd_atomic(local.max_dest_rd_atomic())
                .with_min_rnr_timer(config.min_rnr_timer);
            send = send
                .with_timeout(config.timeout)
                .with_retry_cnt(config.retry_cnt)
                .with_rnr_retry(config.rnr_retry)
                .with_max_rd_atomic(local.depth_to(remote));
        }
        local.serve(self.qp.receive_from(&receive, remote)?);
        self.qp.modify(&send)?;
        Ok(local)
    }
}

impl<R> QueuePair<R> {
    /// This side's endpoint: the one that [`PreparedQueuePair::endpoint`] returned, but with a GID of the same kind
    /// as the peer's if no [`gid_index`](QueuePairConfig::gid_index) was set, and
    /// with the number of reads and atomics that it serves.
    #[must_use]
    pub const fn endpoint(&self) -> &QueuePairEndpoint {
        &self.local
    }

    /// The peer's endpoint, to which this queue pair is connected.
    #[must_use]
    pub const fn remote_endpoint(&self) -> &QueuePairEndpoint {
        &self.remote
    }

    /// How many reads and atomics may be in flight at once: the smaller of this side's
    /// `max_rd_atomic` and the peer's `max_dest_rd_atomic`.
    ///
    /// If it is 0, a read or an atomic never completes: the device waits forever to begin it, and no
    /// timeout or retry count ends that wait. The peer can cause this, so check the value before you
    /// post one. It is always 0 on an unreliable connection ([`QpType::Uc`]), which has no reads or
    /// atomics.
    #[must_use]
    pub fn max_rd_atomic(&self) -> u8 {
        self.local.depth_to(&self.remote)
    }

    /// The longest message that its port carries, in bytes: the limit on the total of one send,
    /// write or read.
    ///
    /// If the driver reports no limit, it is 2 GiB, the limit of the transport. Drivers do not check
    /// it: see [`post`](Self::post).
    #[inline]
    #[must_use]
    pub const fn max_msg_sz(&self) -> u32 {
        self.max_msg_sz
    }

    /// How many elements one read can have: the smaller of the queue pair's
    /// [`max_send_sge`](QpCap::max_send_sge) and the device's limit for reads, which is 1 on many iWARP
    /// devices.
    #[must_use]
    #[doc(alias = "max_sge_rd")]
    pub fn max_read_sge(&self) -> u32 {
        let max = self.qp.cap.max_send_sge;
        match self.qp.config.max_sge_rd {
            0 => max,
            of_device => max.min(of_device),
        }
    }

    /// The path MTU: how many bytes of a message travel in one packet.
    ///
    /// It is the smaller of the two endpoints' MTUs.
    #[must_use]
    pub fn path_mtu(&self) -> MaximumTransferUnit {
        negotiated_mtu(&self.local, &self.remote)
    }

    /// Moves it to `ERR`: everything that is posted completes with
    /// [`WR_FLUSH_ERR`](crate::codes::WcStatus::WR_FLUSH_ERR).
    ///
    /// To get all buffers back, call this, and poll until each posted request has completed.
    ///
    /// # Errors
    ///
    /// The errno. This fails only if the device itself has failed.
    #[doc(alias = "IBV_QPS_ERR")]
    pub fn to_error(&self) -> Result<()> {
        let error = QpAttr::new().with_qp_state(QpState::ERR);
        self.qp.raw().modify_plainly(&error)
    }

    /// Moves it to `RESET` and prepares it again with the same settings, to be connected anew.
    ///
    /// Posted requests are discarded without completions. When this has returned, the device does not
    /// access their buffers. Earlier completions may still be in the completion queues, with the same
    /// `qp_num`: poll them first. The number of the first packet is a new random one, unless it was set
    /// in the builder.
    ///
    /// ```no_run
    /// use verbs_core::{PollSlot, PreparedQueuePair, QueuePair};
    ///
    /// fn again(failed: QueuePair) -> Result<PreparedQueuePair, Box<dyn std::error::Error>> {
    ///     let mut slots = [const { PollSlot::new() }; 16];
    ///     for cq in [failed.send_cq(), failed.recv_cq()] {
    ///         while !cq.poll(&mut slots)?.is_empty() {}
    ///     }
    ///     Ok(failed.reset()?)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`QueuePairConfig::build`] for a port or a GID that no longer exists, otherwise the
    /// errno. The error carries the queue pair.
    #[doc(alias = "IBV_QPS_RESET")]
    #[expect(clippy::result_large_err, reason = "gives back what it was called on")]
    pub fn reset(self) -> Result<PreparedQueuePair<R>, Rejected<Self>> {
        let again = || {
            let path = self.qp.config.path(self.pd().context())?;
            self.qp.prepare(&path)?;
            Ok(path)
        };
        match again() {
            Ok(path) => Ok(PreparedQueuePair {
                psn: self.qp.config.psn(),
                qp: self.qp,
                receives: self.receives,
                path,
            }),
            Err(error) => Err(Rejected::new(error, self)),
        }
    }
}

fn negotiated_mtu(local: &QueuePairEndpoint, remote: &QueuePairEndpoint) -> MaximumTransferUnit {
    local.path_mtu().min(remote.path_mtu())
}

macro_rules! in_each_state {
    ($($qp:ident)*) => {$(
        impl<R> $qp<R> {
            /// The queue pair's number, 24 bits.
            #[must_use]
            pub fn qp_num(&self) -> u32 {
                self.qp.number()
            }

            /// The type of its connection: reliable or unreliable.
            #[must_use]
            pub const fn qp_type(&self) -> QpType {
                self.qp.config.qp_type
            }

            /// Its capacities, as the driver granted them.
            #[must_use]
            pub const fn cap(&self) -> QpCap {
                self.qp.cap
            }

            /// Queries the queue pair's attributes, including its state.
            ///
            /// # Errors
            ///
            /// The errno.
            #[doc = man!("ibv_query_qp")]
            #[doc(alias = "ibv_query_qp")]
            pub fn query(&self) -> Result<QpAttr> {
                self.qp.query()
            }

            /// Changes those attributes of the queue pair, such as its state, that are set in
            /// `attr`.
            ///
            /// # Errors
            ///
            /// [`Error::Transition`](crate::Error::Transition), which names attributes that were missing or not allowed, or the
            /// GIDs between which there is no path. Otherwise the errno.
            #[doc = man!("ibv_modify_qp")]
            #[doc(alias = "ibv_modify_qp")]
            pub fn modify(&self, attr: &QpAttr) -> Result<()> {
                self.qp.modify(attr)
            }

            /// The queue on which its sends, writes, reads and atomics complete.
            #[must_use]
            pub const fn send_cq(&self) -> &CompletionQueue {
                &self.qp.send_cq
            }

            /// The queue on which its receives complete.
            #[must_use]
            pub const fn recv_cq(&self) -> &CompletionQueue {
                &self.qp.recv_cq
            }

            /// The protection domain it belongs to.
            #[must_use]
            pub const fn pd(&self) -> &ProtectionDomain {
                &self.qp.pd
            }

            /// The `ibv_qp`, for verbs this crate does not wrap. It lives as long as `self` does.
            #[must_use]
            pub fn as_ptr(&self) -> *mut ibv_qp {
                self.qp.qp.as_ptr()
            }

            /// Destroys the queue pair and returns the driver's error, which a drop would only log.
            ///
            /// # Errors
            ///
            /// The errno. The device may still access the buffers of posted requests.
            #[doc = man!("ibv_destroy_qp")]
            #[doc(alias = "ibv_destroy_qp")]
            pub fn close(self) -> Result<()> {
                self.qp.close()
            }
        }

        impl $qp<SharedReceives> {
            /// The shared receive queue that its receives are taken from.
            #[must_use]
            pub const fn srq(&self) -> &SharedReceiveQueue {
                self.receives.srq()
            }
        }
    )*};
}

in_each_state! { PreparedQueuePair QueuePair }

impl Qp {
    fn number(&self) -> u32 {
        self.raw().number()
    }

    /// To `INIT`, through `RESET`.
    fn prepare(&self, path: &LocalPath) -> Result<()> {
        self.modify(&QpAttr::new().with_qp_state(QpState::RESET))?;
        let init = QpAttr::new()
            .with_qp_state(QpState::INIT)
            .with_pkey_index(path.pkey_index)
            .with_port_num(path.port_num)
            .with_qp_access_flags(self.config.qp_access_flags);
        self.modify(&init)
    }

    fn raw(&self) -> RawQp<'_> {
        RawQp {
            qp: &self.qp,
            qp_type: self.config.qp_type.as_raw(),
            context: self.pd.context(),
        }
    }

    fn modify(&self, attr: &QpAttr) -> Result<()> {
        self.raw().modify(attr)
    }

    fn state(&self) -> Result<QpState> {
        self.raw().state()
    }

    fn query(&self) -> Result<QpAttr> {
        self.raw().query()
    }

    fn close(self) -> Result<()> {
        let context = self.pd.context().clone();
        context.unless_removed(self.destroy(()).0)
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("qp_num", &format_args!("{:#x}", self.number()))
            .field("cap", &self.cap)
            .finish_non_exhaustive()
    }
}
