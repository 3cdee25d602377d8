//! Shared receive queues that another library made.
#![expect(unsafe_code, reason = "takes over an `ibv_srq`")]

use std::ptr::NonNull;

use verbs_sys::{ibv_srq, ibv_srq_attr};

use super::SharedReceiveQueue;
use crate::domain::ProtectionDomain;
use crate::error::{Error, Result};
use crate::ffi::Destroy;
use crate::ffi::handle::Handle;

impl SharedReceiveQueue {
    /// Takes over a queue that another library made, such as `mlx5dv_create_srq`.
    ///
    /// `granted` has its capacities, as C returned them; its limit is ignored.
    ///
    /// # Safety
    ///
    /// - `srq` is alive, its type is the basic one, and it belongs to `pd`.
    /// - `granted` has the capacities that the driver granted it.
    /// - Nothing but `destroy` destroys it. If `destroy` does not do so: once `destroy` has been
    ///   called, the device touches none of the buffers that were posted on it.
    /// - `destroy` does not panic.
    /// - The memory of receives that were posted on it by other means stays valid until they
    ///   complete, and the code that polls does not mistake their completions for its own.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`], [`Error::ForeignParent`] if it belongs to another context or domain.
    /// `destroy` is dropped then without having been called.
    #[doc(alias = "mlx5dv_create_srq")]
    pub unsafe fn from_raw(
        srq: NonNull<ibv_srq>,
        granted: ibv_srq_attr,
        pd: &ProtectionDomain,
        destroy: Destroy<ibv_srq>,
    ) -> Result<Self> {
        let child = "the shared receive queue";
        // SAFETY: the caller has a living queue, whose context is not changed.
        let context = unsafe { (*srq.as_ptr()).context };
        pd.context().must_be(context, child)?;
        // SAFETY: the caller has a living queue, whose domain is not changed.
        if unsafe { (*srq.as_ptr()).pd } != pd.as_ptr() {
            let parent = "protection domain";
            return Err(Error::ForeignParent { child, parent });
        }
        // SAFETY: the caller hands it over, with what destroys it.
        let srq = unsafe { Handle::foreign(srq, destroy) };
        Ok(Self::new(srq, granted, pd))
    }
}
