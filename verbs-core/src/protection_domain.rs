//! Protection domains: which regions and queue pairs work together.
#![expect(unsafe_code, reason = "owns an `ibv_pd`")]

use std::ptr::NonNull;
use std::sync::Arc;

use verbs_sys::{ibv_alloc_pd, ibv_pd};

use crate::context::Context;
use crate::destroy::Destroy;
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
        Ok(ProtectionDomain::new(pd, self))
    }
}

impl ProtectionDomain {
    fn new(pd: Handle<ibv_pd>, context: &Context) -> Self {
        let context = context.clone();
        Self {
            inner: Arc::new(Inner { pd, context }),
        }
    }

    /// Takes over a PD that another library made, such as `ibv_import_pd`.
    ///
    /// # Safety
    ///
    /// - `pd` is alive, and was not made in a thread domain.
    /// - Nothing but `destroy` deallocates it.
    /// - If `destroy` does not deallocate it: it stays alive until `destroy` was called.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`] if it belongs to another context. `destroy` is dropped then without
    /// having been called.
    #[doc(alias = "ibv_import_pd")]
    pub unsafe fn from_raw(
        pd: NonNull<ibv_pd>,
        context: &Context,
        destroy: Destroy<ibv_pd>,
    ) -> Result<Self> {
        // SAFETY: the caller has a living PD, whose context is not changed.
        context.must_be(unsafe { (*pd.as_ptr()).context }, "the protection domain")?;
        // SAFETY: the caller hands it over, with what destroys it.
        let pd = unsafe { Handle::foreign(pd, destroy) };
        Ok(Self::new(pd, context))
    }

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

    /// Deallocates the PD and returns the driver's answer, which dropping only logs.
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
