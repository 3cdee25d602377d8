//! Thread domains: objects that the driver need not lock.
#![expect(unsafe_code, reason = "owns an `ibv_td`")]

use std::sync::Arc;

use verbs_sys::{ibv_alloc_td, ibv_td, ibv_td_init_attr};

use crate::codes::macros::man;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::ffi::handle::Handle;
use crate::ffi::ret;

/// A thread domain (TD): the driver does not lock the objects in it.
///
/// One thread at a time uses these objects. The driver may also give them a doorbell of their own.
/// A thread domain is used through a parent domain: see
/// [`ProtectionDomain::alloc_parent_domain`](crate::ProtectionDomain::alloc_parent_domain). Cloning
/// is cheap and shares the domain. It is deallocated when the last clone, and the last parent
/// domain made from it, has been dropped.
#[doc = man!("ibv_alloc_td")]
#[derive(Clone, Debug)]
#[doc(alias = "ibv_td")]
pub struct ThreadDomain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    td: Handle<ibv_td>,
    context: Context,
}

impl Context {
    /// Allocates a thread domain.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the driver has no thread domains, as with soft-RoCE. Otherwise the
    /// errno, for example if the device has no more doorbells.
    #[doc(alias = "ibv_alloc_td")]
    pub fn alloc_td(&self) -> Result<ThreadDomain> {
        let mut attr = ibv_td_init_attr::default();
        // SAFETY: `self` keeps the context open, and `attr` is a local.
        let call = || unsafe { ibv_alloc_td(self.as_ptr(), &raw mut attr) };
        let td = ret::non_null("ibv_alloc_td", call)?;
        // SAFETY: the object is new, and the context is kept next to it.
        let td = unsafe { Handle::new(td) };
        let context = self.clone();
        Ok(ThreadDomain {
            inner: Arc::new(Inner { td, context }),
        })
    }
}

impl ThreadDomain {
    /// The device context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// The `ibv_td`, for verbs this crate does not wrap. It lives as long as `self` does.
    #[must_use]
    pub fn as_ptr(&self) -> *mut ibv_td {
        self.inner.td.as_ptr()
    }

    /// Deallocates the domain and returns the driver's error, which a drop would only log.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while clones or parent domains made from it exist: dropping the last of
    /// them deallocates it. Otherwise the errno.
    #[doc(alias = "ibv_dealloc_td")]
    pub fn close(self) -> Result<()> {
        let Some(Inner { td, context }) = Arc::into_inner(self.inner) else {
            let object = "the thread domain";
            return Err(Error::InUse { object });
        };
        let closed = td.close();
        drop(context);
        closed
    }
}
