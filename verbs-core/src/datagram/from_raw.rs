//! Queue pairs for datagrams that another library made.
#![expect(unsafe_code, reason = "takes over an `ibv_qp`")]

use std::ptr::NonNull;

use verbs_sys::{ibv_qp, ibv_qp_cap};

use super::{DatagramQueuePair, DatagramQueuePairConfig};
use crate::error::Result;
use crate::ffi::Destroy;
use crate::ffi::handle::Handle;
use crate::queue_pair::QpCap;
use crate::queue_pair::create::Parents;
use crate::queue_pair::from_raw::check_parents;

impl DatagramQueuePair {
    /// Takes over a queue pair that another library made, such as `mlx5dv_create_qp`, and moves it
    /// to `RTS`, through `RESET`.
    ///
    /// `config` has its parents, its `QKey` and the settings of its paths. The configuration's
    /// capacities have no effect: `cap` is what the driver granted. See
    /// [objects made by other libraries](crate#objects-made-by-other-libraries).
    ///
    /// # Safety
    ///
    /// - `qp` is alive, and was made with the configuration's protection domain and completion queues,
    ///   and without a shared receive queue.
    /// - Its type is UD, or one that is modified and posted to like UD, such as the SRD of
    ///   `efadv_create_qp_ex`, which writes no GRH before a message.
    /// - If the configuration has `send_ops_flags`: it was created with all of them, by `ibv_create_qp_ex` or a
    ///   function of its provider that is like it.
    /// - `cap` has the capacities that the driver granted it.
    /// - Nothing but `destroy` destroys it. If `destroy` does not do so: once `destroy` has been
    ///   called, the device touches none of the buffers that were posted on it.
    /// - `destroy` does not panic.
    /// - It is modified, and posted to, by this type only, as far as the contract of
    ///   [`post_send`](Self::post_send) and [`post_receive`](Self::post_receive) depends on it.
    ///
    /// # Errors
    ///
    /// - [`Error::ForeignContext`](crate::Error::ForeignContext),
    ///   [`Error::ForeignParent`](crate::Error::ForeignParent) if its parents are others.
    /// - As [`DatagramQueuePairConfig::build`] for a setting, a port or a GID.
    ///
    /// In these cases `destroy` is dropped without having been called.
    ///
    /// - The errno if it cannot be moved to `RTS`. It has been destroyed then.
    #[doc(alias = "efadv_create_qp_ex")]
    pub unsafe fn from_raw(
        qp: NonNull<ibv_qp>,
        cap: ibv_qp_cap,
        config: &DatagramQueuePairConfig,
        destroy: Destroy<ibv_qp>,
    ) -> Result<Self> {
        let (pd, send_cq, recv_cq) = config.parents()?;
        let parents = Parents {
            pd,
            send_cq,
            recv_cq,
            srq: None,
        };
        // SAFETY: the caller has a living queue pair.
        unsafe { check_parents(qp, &parents) }?;
        let path = config.local_path()?;
        // SAFETY: the caller hands it over, with what destroys it; the configuration has its parents.
        let qp = unsafe { Handle::foreign(qp, destroy) };
        config.start(qp, QpCap::from_raw(cap), path)
    }
}
