//! Protection domains.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use soft_nic::DomainId;

use crate::abi::context::ibv_context;
use crate::abi::object::ibv_pd;
use crate::device::Context;
use crate::errno::refused;

#[repr(C)]
pub(crate) struct ProtectionDomain {
    pd: ibv_pd,
    /// Address handles of the domain, which the card does not know.
    pub(crate) handles: AtomicUsize,
}

impl ProtectionDomain {
    /// The domain that a program has as C's, and its context.
    ///
    /// # Safety
    ///
    /// It came from `ibv_alloc_pd`, and is alive.
    pub(crate) unsafe fn of<'a>(pd: *mut ibv_pd) -> (&'a Self, &'a Context) {
        // SAFETY: the caller's domain is the beginning of a `ProtectionDomain`.
        let own = unsafe { &*pd.cast::<Self>() };
        // SAFETY: the context is open as long as the domain is alive.
        (own, unsafe { Context::of(own.pd.context) })
    }

    pub(crate) const fn id(&self) -> DomainId {
        DomainId(self.pd.handle)
    }

    pub(crate) const fn c_context(&self) -> *mut ibv_context {
        self.pd.context
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller has an open context.
    let own = unsafe { Context::of(context) };
    let allocated = own.card.verb("ibv_alloc_pd", |locked| {
        let id = locked.nic.alloc_pd().map_err(refused)?;
        own.domains(|domains| domains.push(id));
        Ok(id)
    });
    let made = allocated.map(|id| ProtectionDomain {
        pd: ibv_pd {
            context,
            handle: id.0,
        },
        handles: AtomicUsize::new(0),
    });
    own.made(made).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller has a domain that is alive.
    let (own, context) = unsafe { ProtectionDomain::of(pd) };
    let result = context.card.verb("ibv_dealloc_pd", |locked| {
        if own.handles.load(Ordering::Relaxed) > 0 {
            return Err(libc::EBUSY);
        }
        locked.nic.dealloc_pd(own.id()).map_err(refused)?;
        context.domains(|domains| domains.retain(|id| *id != own.id()));
        Ok(())
    });
    // SAFETY: `ibv_alloc_pd` made it, and the caller does not use it again.
    unsafe { context.ended(pd.cast::<ProtectionDomain>(), result) }
}
