//! Protection domains: which regions and queue pairs work together.
#![expect(unsafe_code, reason = "owns an `ibv_pd`")]

use std::ptr::NonNull;
use std::sync::Arc;

use verbs_sys::{ibv_alloc_parent_domain, ibv_alloc_pd, ibv_parent_domain_init_attr, ibv_pd};

use super::thread_domain::ThreadDomain;
use crate::codes::macros::man;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::ffi::handle::Handle;
use crate::ffi::{Destroy, ret};

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
    // The domains that a parent domain was made of.
    parts: Option<(ProtectionDomain, ThreadDomain)>,
    // Another library made it: it may be a parent domain, of a domain that is not known.
    #[cfg_attr(not(debug_assertions), expect(dead_code, reason = "for a check"))]
    is_foreign: bool,
    context: Context,
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// The errno, most often `ENOMEM`.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        // SAFETY: `self` keeps the `ibv_context` open for the whole call.
        let call = || unsafe { ibv_alloc_pd(self.as_ptr()) };
        let pd = ret::non_null("ibv_alloc_pd", call)?;
        // SAFETY: the object is new, and the context is kept next to it.
        let pd = unsafe { Handle::new(pd) };
        Ok(ProtectionDomain::with_parts(pd, None, false, self))
    }
}

impl ProtectionDomain {
    fn with_parts(
        pd: Handle<ibv_pd>,
        parts: Option<(Self, ThreadDomain)>,
        is_foreign: bool,
        context: &Context,
    ) -> Self {
        let context = context.clone();
        Self {
            inner: Arc::new(Inner {
                pd,
                parts,
                is_foreign,
                context,
            }),
        }
    }

    /// Allocates a parent domain: this domain, with a thread domain.
    ///
    /// Queue pairs and shared receive queues that are created with it post without the driver's locks.
    /// The regions of this domain work with these queue pairs. Completion queues are not affected.
    /// `verbs-channel` does all this for a channel that does not belong to a group.
    ///
    /// ```no_run
    /// # fn main() -> verbs_core::Result<()> {
    /// use verbs_core::{CompletionQueue, Context, QueuePair};
    ///
    /// let context = Context::first_active()?;
    /// let pd = context.alloc_pd()?;
    /// let cq = CompletionQueue::create(&context, 64)?;
    /// // Sound: `prepared` is the only object of this thread domain, and only one thread uses it.
    /// let domain = match context.alloc_td() {
    ///     Ok(td) => unsafe { pd.alloc_parent_domain(&td)? },
    ///     // The driver has none: all works the same, with its locks.
    ///     Err(_) => pd.clone(),
    /// };
    /// let prepared = QueuePair::builder(&domain, &cq, &cq).build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Safety
    ///
    /// The objects of a thread domain are all queue pairs and shared receive queues that are created
    /// with any of its parent domains or their clones.
    ///
    /// - No two calls on objects of one thread domain run at the same time. This concerns all
    ///   functions of these objects that call C: posts, `query`, `modify`, `handshake`, `reset`,
    ///   `close`, drops. Another thread may make the next call once the one before has returned, if
    ///   the two threads are synchronised by something that orders memory, such as a mutex.
    /// - Neither the returned domain nor an object created with it is given to code that may break this
    ///   rule.
    ///
    /// # Errors
    ///
    /// - [`Error::Unsupported`] if the driver has no parent domains.
    /// - [`Error::ForeignContext`] for a thread domain of another context.
    /// - The errno for anything else.
    #[doc = man!("ibv_alloc_parent_domain")]
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub unsafe fn alloc_parent_domain(&self, td: &ThreadDomain) -> Result<Self> {
        let context = self.context();
        if !td.context().is(context) {
            let child = "the thread domain";
            return Err(Error::ForeignContext { child });
        }
        let mut attr = ibv_parent_domain_init_attr {
            pd: self.root().as_ptr(),
            td: td.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the context is open, both domains are alive, and `attr` is a local.
        let call = || unsafe { ibv_alloc_parent_domain(context.as_ptr(), &raw mut attr) };
        let pd = ret::non_null("ibv_alloc_parent_domain", call)?;
        // SAFETY: the domain is new, and its parts are kept next to it.
        let pd = unsafe { Handle::new(pd) };
        let parts = Some((self.root().clone(), td.clone()));
        Ok(Self::with_parts(pd, parts, false, context))
    }

    /// The domain that a parent domain was made of; any other domain itself.
    fn root(&self) -> &Self {
        match &self.inner.parts {
            Some((root, _)) => root,
            None => self,
        }
    }

    /// Whether all domains are known whose regions work with the queue pairs of this one. Those that another
    /// library made are not.
    #[cfg(debug_assertions)]
    pub(crate) fn tells_regions(&self) -> bool {
        !self.root().inner.is_foreign
    }

    /// Whether the regions of this domain work with the queue pairs of `other`.
    ///
    /// That is so if the two are clones of one domain, parent domains of one domain, or a domain and its
    /// parent domain.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.root().inner, &other.root().inner)
    }

    /// Takes over a PD that another library made, such as `ibv_import_pd`.
    ///
    /// # Safety
    ///
    /// - `pd` is alive. If it has a thread domain: the contract of
    ///   [`alloc_parent_domain`](Self::alloc_parent_domain).
    /// - Nothing but `destroy` deallocates it. `destroy` does not panic.
    /// - If `destroy` does not deallocate it, it stays alive until `destroy` has been called.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`] if it belongs to another context. `destroy` is then dropped without
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
        Ok(Self::with_parts(pd, None, true, context))
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

    /// Deallocates the PD and returns the driver's error, which a drop would only log.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while clones or objects made from it exist: dropping the last of them
    /// deallocates it. Otherwise the errno.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn close(self) -> Result<()> {
        let Some(Inner {
            pd, parts, context, ..
        }) = Arc::into_inner(self.inner)
        else {
            let object = "the protection domain";
            return Err(Error::InUse { object });
        };
        let closed = pd.close();
        drop((parts, context));
        closed
    }
}

/// A number that two domains share if [`is`](ProtectionDomain::is) holds of them, and that no other domain
/// has while one of them exists.
#[must_use]
pub fn tag(pd: &ProtectionDomain) -> usize {
    pd.root().as_ptr().addr()
}
