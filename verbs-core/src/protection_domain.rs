//! Protection domains: which regions and queue pairs work together.
#![expect(unsafe_code, reason = "owns an `ibv_pd`")]

use std::sync::Arc;

use verbs_sys::{ibv_alloc_pd, ibv_pd};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::macros::man;
use crate::ret;

/// A protection domain (PD): memory regions and queue pairs work together only within one.
///
/// Cloning is cheap and shares the PD. It is deallocated when the last clone, and the last object made
/// from it, has been dropped.
#[doc = man!("ibv_alloc_pd")]
#[derive(Clone, Debug)]
#[doc(alias = "ibv_pd")]
pub struct ProtectionDomain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pd: Handle<ibv_pd>,
    context: Context,
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// The provider's errno, most often `ENOMEM`.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        // SAFETY: `self` keeps the `ibv_context` open for the whole call.
        let pd = unsafe { ibv_alloc_pd(self.as_ptr()) };
        let pd = ret::non_null("ibv_alloc_pd", pd)?;
        // SAFETY: it is new, and the context is kept next to it.
        let pd = unsafe { Handle::new(pd) };
        let context = self.clone();
        Ok(ProtectionDomain {
            inner: Arc::new(Inner { pd, context }),
        })
    }
}

impl ProtectionDomain {
    /// The device context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The `ibv_pd`, for verbs this crate does not wrap. It lives as long as `self` does.
    #[must_use]
    pub fn as_ptr(&self) -> *mut ibv_pd {
        self.inner.pd.as_ptr()
    }

    /// Deallocates it and returns the driver's answer, which dropping only logs.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while clones or objects made from it exist: dropping the last of them
    /// deallocates it. Otherwise the provider's errno.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn close(self) -> Result<()> {
        let Some(Inner { pd, context }) = Arc::into_inner(self.inner) else {
            let object = "the protection domain";
            return Err(Error::InUse { object });
        };
        let closed = pd.close();
        drop(context);
        closed
    }
}
