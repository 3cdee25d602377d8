//! Owned C objects: the one RAII type under all the others.
//!
//! # The order in which things die
//!
//! C requires that children are destroyed before their parents: memory regions and queue pairs
//! before their protection domain, queue pairs before their completion queues and their shared receive
//! queue, completion queues before their channel, everything before the context. Here each object's struct declares its
//! [`Handle`] first and (clones of) its parents after it. Rust drops fields in that order, so the
//! order holds by construction.
//!
//! # Why verbs objects are `Send + Sync`
//!
//! "By default all the verbs objects are safe for multi-threaded access" (`ibv_alloc_td(3)`): a
//! provider locks inside. The exception are objects made in a thread domain. They come only from a
//! domain of [`ProtectionDomain::alloc_parent_domain`], whose caller promises that no two calls on them
//! run at the same time. They are still `Send`: no provider binds them to one thread.
//!
//! [`ProtectionDomain::alloc_parent_domain`]: crate::ProtectionDomain::alloc_parent_domain
#![expect(unsafe_code, reason = "owns C objects, whatever their type")]

use std::ffi::c_int;
use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ptr::NonNull;

use verbs_sys::{
    ibv_ah, ibv_close_device, ibv_comp_channel, ibv_context, ibv_cq, ibv_dealloc_mw,
    ibv_dealloc_pd, ibv_dealloc_td, ibv_dereg_mr, ibv_destroy_ah, ibv_destroy_comp_channel,
    ibv_destroy_cq, ibv_destroy_qp, ibv_destroy_srq, ibv_mr, ibv_mw, ibv_pd, ibv_qp, ibv_srq,
    ibv_td,
};

use super::destroy::Destroy;
use super::process::Process;
use super::{log, ret};
use crate::error::{Error, ErrorChain, Result};

/// A C object that one verb destroys.
///
/// # Safety
///
/// - `destroy` destroys the object.
/// - Objects of this type may be used by any thread, and by several threads at once, except as the
///   contract of [`alloc_parent_domain`](crate::ProtectionDomain::alloc_parent_domain) says.
pub(crate) unsafe trait Object {
    /// The object's name in the log.
    const NAME: &'static str;

    /// Destroys it.
    ///
    /// # Safety
    ///
    /// - `this` is alive.
    /// - It is not used afterwards, unless an error is returned.
    unsafe fn destroy(this: *mut Self) -> Result<()>;
}

/// Owns a C object, and destroys it when dropped, in the process that made it.
///
/// In a child that was forked after that, neither happens anything to the object, which is the parent's
/// still, nor is anything called that another library gave.
pub(crate) struct Handle<T: Object> {
    ptr: NonNull<T>,
    destroy: Destroy<T>,
    process: Process,
}

impl<T: Object> Handle<T> {
    /// Takes over an object.
    ///
    /// # Safety
    ///
    /// - `ptr` is alive, and is destroyed only by the handle.
    /// - Its parents live as long as the handle does.
    pub(crate) unsafe fn new(ptr: NonNull<T>) -> Self {
        // SAFETY: the caller promises that `ptr` is alive and its parents outlive the handle; the
        // verb of its type destroys it.
        unsafe { Self::foreign(ptr, Destroy::by_verb()) }
    }

    /// Takes over an object that another library made.
    ///
    /// # Safety
    ///
    /// - As for [`new`](Self::new).
    /// - `destroy` destroys this object, and nothing else does.
    pub(crate) unsafe fn foreign(ptr: NonNull<T>, destroy: Destroy<T>) -> Self {
        let process = Process::current();
        Self {
            ptr,
            destroy,
            process,
        }
    }

    /// The C object; alive as long as `self` is.
    #[inline]
    pub(crate) const fn as_ptr(&self) -> *mut T {
        self.ptr.as_ptr()
    }

    /// Whether it was made by this process: in another, its object is not to be touched.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    /// Destroys the object, and returns the result.
    pub(crate) fn close(self) -> Result<()> {
        // SAFETY: `self` is not dropped.
        unsafe { ManuallyDrop::new(self).destroy() }
    }

    /// # Safety
    ///
    /// `self` is not used again.
    unsafe fn destroy(&mut self) -> Result<()> {
        let destroy = self.destroy.take();
        if !self.is_of_this_process() {
            #[expect(clippy::mem_forget, reason = "what it owns is the parent's, too")]
            mem::forget(destroy);
            return Err(Error::OtherProcess { object: T::NAME });
        }
        match destroy {
            Some(destroy) => destroy(self.ptr),
            // SAFETY: `new` got a living object, and `self` is its only owner.
            None => unsafe { T::destroy(self.ptr.as_ptr()) },
        }
    }
}

impl<T: Object> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: `close` does not come here, so this is its end.
        let result = unsafe { self.destroy() };
        match result {
            Ok(()) | Err(Error::OtherProcess { .. }) => {}
            Err(error) => log::error(format_args!(
                "leaked a {}: {}",
                T::NAME,
                ErrorChain::new(&error)
            )),
        }
    }
}

impl<T: Object> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.ptr).finish()
    }
}

// SAFETY: `Object` promises it.
unsafe impl<T: Object> Send for Handle<T> {}
// SAFETY: `Object` promises it.
unsafe impl<T: Object> Sync for Handle<T> {}

macro_rules! objects {
    ($($c:ident $name:literal $destroy:ident $convention:ident),* $(,)?) => {$(
        // SAFETY: the verb is the one that ends this type, and `ibv_alloc_td(3)` promises
        // multi-threaded access (see the module's documentation).
        unsafe impl Object for $c {
            const NAME: &'static str = $name;

            unsafe fn destroy(this: *mut Self) -> Result<()> {
                // SAFETY: the caller hands over a living object.
                let code: c_int = unsafe { $destroy(this) };
                ret::$convention(stringify!($destroy), code)
            }
        }
    )*};
}

objects! {
    ibv_context "device context" ibv_close_device minus_one,
    ibv_pd "protection domain" ibv_dealloc_pd errno,
    ibv_td "thread domain" ibv_dealloc_td errno,
    ibv_ah "address handle" ibv_destroy_ah errno,
    ibv_mr "memory region" ibv_dereg_mr errno,
    ibv_mw "memory window" ibv_dealloc_mw errno,
    ibv_comp_channel "completion channel" ibv_destroy_comp_channel errno,
    ibv_cq "completion queue" ibv_destroy_cq errno,
    ibv_qp "queue pair" ibv_destroy_qp errno,
    ibv_srq "shared receive queue" ibv_destroy_srq errno,
}
