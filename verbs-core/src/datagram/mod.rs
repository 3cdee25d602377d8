//! Datagrams (UD): one queue pair for any number of peers.

mod attachments;
pub(crate) mod builder;
mod from_raw;
pub(crate) mod multicast;
mod post;

use std::fmt;

use verbs_sys::{IBV_QPT_UD, ibv_qp};

pub use builder::{DatagramQueuePairBuilder, DatagramQueuePairConfig};
pub use multicast::Attachment;

use attachments::Attached;

use crate::codes::macros::man;
use crate::codes::{MaximumTransferUnit, QpState};
use crate::completion::CompletionQueue;
use crate::domain::ProtectionDomain;
use crate::error::{Rejected, Result};
use crate::ffi::handle::Handle;
use crate::path::{AddressHandle, AhAttr, DatagramEndpoint, LocalPath, QKey, Route};
use crate::queue_pair::{PacketSequenceNumber, QpAttr, QpCap, RawQp};

/// A queue pair for datagrams (UD): it sends to any other such queue pair, and receives from any.
///
/// There is no connection and no handshake: it can send and receive as soon as it is built. To send to
/// it, a peer makes an [`address_handle`](Self::address_handle) from its
/// [`endpoint`](Self::endpoint).
///
/// A datagram has at most [`max_payload`](Self::max_payload) bytes. It arrives once or not at all,
/// and in any order. Its send succeeds when it has left this side. It is dropped silently if the
/// receiver has no receive posted, or has another [`QKey`].
///
/// The device writes [`Grh::LEN`](crate::completion::Grh::LEN) bytes, 40, before each datagram into the receive's buffer: see
/// [`post_receive`](Self::post_receive).
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use verbs_core::{CompletionQueue, Context, PollSlot, ReceiveWorkRequest};
/// use verbs_core::completion::Grh;
/// use verbs_core::datagram::DatagramQueuePair;
/// use verbs_core::work_request::DatagramWorkRequest;
///
/// let context = Context::first_active()?;
/// let pd = context.alloc_pd()?;
/// let cq = CompletionQueue::create(&context, 16)?;
/// // Usually in two processes, which exchange their endpoints as bytes.
/// let left = DatagramQueuePair::builder(&pd, &cq, &cq).build()?;
/// let right = DatagramQueuePair::builder(&pd, &cq, &cq).build()?;
///
/// let hello = pd.reg_mr(b"hello".to_vec())?;
/// let mut inbox = pd.reg_mr(vec![0_u8; Grh::LEN + 64])?;
/// let mut room = inbox.scatter_element(..)?;
/// let mut message = hello.gather_element(..)?;
/// let to_right = left.address_handle(&right.endpoint())?;
///
/// // Sound: `inbox` is not accessed until the completion has been polled, and dropped later.
/// unsafe { right.post_receive(&mut ReceiveWorkRequest::new(&mut room).wr_id(1))? };
/// let mut request = DatagramWorkRequest::to(&mut message, &to_right, &right.endpoint()).wr_id(2);
/// // Sound: `hello` and `to_right` are dropped after the completion has been polled.
/// unsafe { left.post_send(&mut request)? };
///
/// let mut slots = [const { PollSlot::new() }; 4];
/// let mut in_flight = 2;
/// while in_flight > 0 {
///     for completion in cq.poll(&mut slots)? {
///         let success = completion.result()?;
///         in_flight -= 1;
///         if let Some(datagram) = success.datagram_in(&inbox) {
///             println!("{} bytes from {:#x}", datagram.len(), success.src_qp());
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[doc = man!("ibv_create_qp")]
#[doc(alias = "ibv_qp")]
#[doc(alias = "IBV_QPT_UD")]
pub struct DatagramQueuePair {
    // First: a queue pair that is attached to a group cannot be destroyed.
    attached: Attached,
    qp: Handle<ibv_qp>,
    cap: QpCap,
    // `SendOpsFlags`; 0 if it is no extended one.
    send_ops_flags: u64,
    path: LocalPath,
    route: Route,
    qkey: QKey,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    pd: ProtectionDomain,
}

impl DatagramQueuePair {
    /// The data that a peer needs to send to this queue pair.
    #[must_use]
    pub fn endpoint(&self) -> DatagramEndpoint {
        let gid = self.path.gid.map(|entry| entry.gid());
        DatagramEndpoint::chosen(
            (self.qp_num(), self.qkey),
            (self.path.lid, gid),
            self.path.active_mtu,
        )
    }

    /// The path from the queue pair's port to a peer's port, with the index at which this side's GID is now.
    ///
    /// # Errors
    ///
    /// [`Error::Endpoint`](crate::Error::Endpoint) if this side's port needs an address that the peer's
    /// endpoint lacks. [`Error::GidRemoved`](crate::Error::GidRemoved) if this side's GID is not in the port's table
    /// any more. Otherwise the errno of reading that table.
    pub fn path_to(&self, peer: &DatagramEndpoint) -> Result<AhAttr> {
        let context = self.pd.context();
        let path = self.route.toward(peer.gid(), self.path, context);
        self.route.attr_to(context, &path, peer.lid(), peer.gid())
    }

    /// The index at which this side's GID is now; `None` if datagrams have no GRH.
    ///
    /// If it has changed, the address handles made before have the old index: each send with one of them fails,
    /// and the queue pair with it. See [`restart`](Self::restart).
    ///
    /// # Errors
    ///
    /// Those of [`path_to`](Self::path_to) for this side's GID.
    #[doc(alias = "sgid_index")]
    pub fn gid_index(&self) -> Result<Option<u8>> {
        let index = |gid| self.pd.context().gid_index(gid);
        self.path.gid.as_ref().map(index).transpose()
    }

    /// Creates an address handle for a peer, by [`path_to`](Self::path_to) and
    /// [`create_ah`](ProtectionDomain::create_ah).
    ///
    /// It may block for about a second.
    ///
    /// # Errors
    ///
    /// Those of [`path_to`](Self::path_to) and [`create_ah`](ProtectionDomain::create_ah).
    #[doc(alias = "ibv_create_ah")]
    pub fn address_handle(&self, peer: &DatagramEndpoint) -> Result<AddressHandle> {
        self.pd.create_ah(&self.path_to(peer)?)
    }

    /// The length in bytes of the longest datagram that it can send or receive.
    ///
    /// It is the active MTU that the port had when the queue pair was built. A port with a smaller MTU drops
    /// longer datagrams: see [`DatagramEndpoint::mtu`].
    #[inline]
    #[must_use]
    pub const fn max_payload(&self) -> u32 {
        self.path.active_mtu.bytes()
    }

    /// The active MTU that the port had when the queue pair was built.
    #[must_use]
    pub const fn mtu(&self) -> MaximumTransferUnit {
        self.path.active_mtu
    }

    /// The number of the port that it sends from.
    #[must_use]
    pub const fn port_num(&self) -> u8 {
        self.path.port_num
    }

    /// The key of the datagrams that it accepts.
    #[must_use]
    pub const fn qkey(&self) -> QKey {
        self.qkey
    }

    /// The queue pair's number, 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.raw().number()
    }

    /// Its capacities, as the driver granted them.
    #[must_use]
    pub const fn cap(&self) -> QpCap {
        self.cap
    }

    /// Queries the queue pair's attributes, its state included.
    ///
    /// # Errors
    ///
    /// The errno.
    #[doc = man!("ibv_query_qp")]
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr> {
        self.raw().query()
    }

    /// Changes the queue pair's state or other attributes: those that are set in `attr`.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`](crate::Error::Transition), which names attributes that were missing or not
    /// allowed. Otherwise the errno.
    #[doc = man!("ibv_modify_qp")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr) -> Result<()> {
        self.raw().modify(attr)
    }

    /// Moves it to `ERR`: everything that is posted completes with
    /// [`WR_FLUSH_ERR`](crate::codes::WcStatus::WR_FLUSH_ERR).
    ///
    /// # Errors
    ///
    /// The errno. This fails only if the device itself has failed.
    #[doc(alias = "IBV_QPS_ERR")]
    pub fn to_error(&self) -> Result<()> {
        self.modify(&QpAttr::new().with_qp_state(QpState::ERR))
    }

    /// Moves it to `RESET`, and back to `RTS`, with the same number and key.
    ///
    /// Posted requests are discarded without completions. When this has returned, the device touches
    /// none of their buffers. Earlier completions may still be in the completion queues.
    ///
    /// # Errors
    ///
    /// Those of [`DatagramQueuePairConfig::build`] for a port or a GID that is gone, otherwise the errno.
    /// The error carries the queue pair.
    #[doc(alias = "IBV_QPS_RESET")]
    #[expect(clippy::result_large_err, reason = "gives back what it was called on")]
    pub fn reset(mut self) -> Result<Self, Rejected<Self>> {
        let path = self.route.local(self.pd.context());
        let again = path.and_then(|path| {
            self.path = path;
            self.start()
        });
        match again {
            Ok(()) => Ok(self),
            Err(error) => Err(Rejected::new(error, self)),
        }
    }

    /// Brings the queue pair back to `RTS` after a failed request, with the same number, key and GID.
    ///
    /// In [`SQE`](QpState::SQE), only the send queue was in error: then all receives stay posted, and this returns
    /// `true`. From any other state it goes through `RESET`: posted requests, receives included, are discarded
    /// without completions, and when this has returned, the device touches none of their buffers. Earlier
    /// completions may still be in the completion queues.
    ///
    /// # Errors
    ///
    /// [`Error::PkeyRemoved`](crate::Error::PkeyRemoved), otherwise the errno.
    #[doc(alias = "IBV_QPS_SQE")]
    pub fn restart(&self) -> Result<bool> {
        if self.raw().state()? == QpState::SQE {
            self.modify(&QpAttr::new().with_qp_state(QpState::RTS))?;
            return Ok(true);
        }
        self.start().map(|()| false)
    }

    /// The queue that its sends complete on.
    #[must_use]
    pub const fn send_cq(&self) -> &CompletionQueue {
        &self.send_cq
    }

    /// The queue that its receives complete on.
    #[must_use]
    pub const fn recv_cq(&self) -> &CompletionQueue {
        &self.recv_cq
    }

    /// The protection domain it belongs to.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The `ibv_qp`, for verbs this crate does not wrap. It lives as long as `self` does.
    #[inline]
    #[must_use]
    pub const fn as_ptr(&self) -> *mut ibv_qp {
        self.qp.as_ptr()
    }

    /// Destroys the queue pair and returns the driver's error, which a drop would only log.
    ///
    /// # Errors
    ///
    /// The errno. The device may still touch the buffers of posted requests then. `EBUSY` if the queue pair could
    /// not be detached from a multicast group, which is log.
    #[doc = man!("ibv_destroy_qp")]
    #[doc(alias = "ibv_destroy_qp")]
    pub fn close(self) -> Result<()> {
        let Self {
            attached,
            qp,
            send_cq,
            recv_cq,
            pd,
            ..
        } = self;
        drop(attached);
        let closed = pd.context().unless_removed(qp.close());
        drop((send_cq, recv_cq, pd));
        closed
    }

    fn raw(&self) -> RawQp<'_> {
        RawQp {
            qp: &self.qp,
            qp_type: IBV_QPT_UD,
            context: self.pd.context(),
        }
    }

    /// To `RTS`, through `RESET`.
    fn start(&self) -> Result<()> {
        let to = |state| QpAttr::new().with_qp_state(state);
        self.modify(&to(QpState::RESET))?;
        let pkey_index = self.route.pkey_index(self.pd.context(), &self.path)?;
        let init = to(QpState::INIT)
            .with_pkey_index(pkey_index)
            .with_port_num(self.path.port_num)
            .with_qkey(self.qkey.get());
        self.modify(&init)?;
        self.modify(&to(QpState::RTR))?;
        let psn = PacketSequenceNumber::random();
        self.modify(&to(QpState::RTS).with_sq_psn(psn))
    }
}

impl fmt::Debug for DatagramQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatagramQueuePair")
            .field("qp_num", &format_args!("{:#x}", self.qp_num()))
            .field("port_num", &self.path.port_num)
            .field("cap", &self.cap)
            .finish_non_exhaustive()
    }
}
