//! Queue pairs that another library made.
#![expect(unsafe_code, reason = "takes over an `ibv_qp`")]

use std::ptr::{self, NonNull};

use verbs_sys::{ibv_qp, ibv_qp_cap};

use super::create::Parents;
use super::{PreparedQueuePair, QpCap, QueuePair, QueuePairConfig, QueuePairEndpoint, Receives};
use crate::error::{Error, Result};
use crate::ffi::Destroy;
use crate::ffi::handle::Handle;
use crate::path::LocalPath;
use crate::shared_receive_queue::SharedReceiveQueue;

impl<R: Receives> PreparedQueuePair<R> {
    /// Takes over a queue pair that another library made, such as `mlx5dv_create_qp`, and moves it
    /// to `INIT`, through `RESET`.
    ///
    /// `config` has its parents, and the settings with which it is connected. The configuration's
    /// capacities have no effect: `cap` is what the driver granted. See
    /// [objects made by other libraries](crate#objects-made-by-other-libraries).
    ///
    /// # Safety
    ///
    /// - `qp` is alive, is of the configuration's [type](QueuePairConfig::qp_type), or is modified and posted to like
    ///   it, and was made with the configuration's protection domain and queues: without a shared receive queue if
    ///   the configuration has none.
    /// - If the configuration has `send_ops_flags`: it was created with all of them, by `ibv_create_qp_ex` or a
    ///   function of its provider that is like it.
    /// - `cap` has the capacities that the driver granted it.
    /// - Nothing but `destroy` destroys it. If `destroy` does not do so: once `destroy` has been
    ///   called, the device touches none of the buffers that were posted on it.
    /// - `destroy` does not panic.
    /// - It is modified, and posted to, by this type only, as far as the contract of
    ///   [`post`](QueuePair::post) depends on it.
    ///
    /// # Errors
    ///
    /// - [`Error::ForeignContext`] or [`Error::ForeignParent`] if its parents are not the
    ///   configuration's.
    ///   `destroy` is dropped then without having been called.
    /// - As [`QueuePairConfig::build`] for a setting, a port or a GID. `destroy` is dropped then
    ///   without having been called.
    /// - The errno if it cannot be moved to `INIT`. It has been destroyed then.
    #[doc(alias = "mlx5dv_create_qp")]
    #[doc(alias = "ibv_qp_ex_to_qp")]
    pub unsafe fn from_raw(
        qp: NonNull<ibv_qp>,
        cap: ibv_qp_cap,
        config: &QueuePairConfig<R>,
        destroy: Destroy<ibv_qp>,
    ) -> Result<Self> {
        let parents = config.parents()?;
        // SAFETY: the caller has a living queue pair.
        unsafe { check_parents(qp, &parents) }?;
        let context = parents.pd.context();
        let chosen = config.chosen(&context.query_device()?)?;
        let path = chosen.path(context)?;
        // SAFETY: the caller hands it over, with what destroys it; the configuration has its parents.
        let qp = unsafe { Handle::foreign(qp, destroy) };
        config.prepare(qp, QpCap::from_raw(cap), chosen, path)
    }
}

impl<R: Receives> QueuePair<R> {
    /// Takes over a queue pair that is connected already: in `RTS`.
    ///
    /// `local` and `remote` are the endpoints that it was connected with. As for
    /// [`PreparedQueuePair::from_raw`], `config` has its parents, and the settings of a later
    /// [`reset`](Self::reset).
    ///
    /// # Safety
    ///
    /// - The contract of [`PreparedQueuePair::from_raw`].
    /// - It is connected on the port of `local`, with the `max_rd_atomic` of `local`, and its peer
    ///   has at least the `max_dest_rd_atomic` of `remote`.
    /// - Every request that was posted on it earlier has completed before this call. Otherwise the
    ///   caller ignores the completion of that request, and keeps its buffers until the completion
    ///   has been polled.
    ///
    /// # Errors
    ///
    /// As [`PreparedQueuePair::from_raw`]; `destroy` is dropped then without having been called.
    pub unsafe fn from_raw(
        qp: NonNull<ibv_qp>,
        cap: ibv_qp_cap,
        config: &QueuePairConfig<R>,
        local: &QueuePairEndpoint,
        remote: &QueuePairEndpoint,
        destroy: Destroy<ibv_qp>,
    ) -> Result<Self> {
        let parents = config.parents()?;
        // SAFETY: the caller has a living queue pair.
        unsafe { check_parents(qp, &parents) }?;
        let context = parents.pd.context();
        let chosen = config.chosen(&context.query_device()?)?;
        let path = LocalPath::choose(context, Some(local.port_num()), chosen.route.gid_index)?;
        // SAFETY: the caller hands it over, with what destroys it; the configuration has its parents.
        let qp = unsafe { Handle::foreign(qp, destroy) };
        let (qp, receives) = config.keep(qp, QpCap::from_raw(cap), chosen);
        Ok(Self {
            qp,
            receives,
            max_msg_sz: path.max_msg_sz,
            local: *local,
            remote: *remote,
        })
    }
}

/// Rejects a queue pair of other parents than these.
///
/// # Safety
///
/// `qp` is alive.
pub(crate) unsafe fn check_parents(qp: NonNull<ibv_qp>, parents: &Parents<'_>) -> Result<()> {
    let (qp, child) = (qp.as_ptr(), "the queue pair");
    // SAFETY: the caller promises that `qp` is alive; its context is not changed.
    let its_context = unsafe { (*qp).context };
    parents.pd.context().must_be(its_context, child)?;
    // SAFETY: the caller promises that `qp` is alive; its domain is not changed.
    let its_pd = unsafe { (*qp).pd };
    // SAFETY: the caller promises that `qp` is alive; its send queue is not changed.
    let its_send_cq = unsafe { (*qp).send_cq };
    // SAFETY: the caller promises that `qp` is alive; its receive queue is not changed.
    let its_recv_cq = unsafe { (*qp).recv_cq };
    // SAFETY: the caller promises that `qp` is alive; its shared receive queue is not changed.
    let its_srq = unsafe { (*qp).srq };
    let srq = parents.srq.map(SharedReceiveQueue::as_ptr);
    for (is_it, parent) in [
        (its_pd == parents.pd.as_ptr(), "protection domain"),
        (its_send_cq == parents.send_cq.as_ptr(), "send queue's CQ"),
        (
            its_recv_cq == parents.recv_cq.as_ptr(),
            "receive queue's CQ",
        ),
        (
            its_srq == srq.unwrap_or(ptr::null_mut()),
            "shared receive queue, or none",
        ),
    ] {
        if !is_it {
            return Err(Error::ForeignParent { child, parent });
        }
    }
    Ok(())
}
