//! Protection domains, thread domains, and the parent domains of both.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use soft_nic::DomainId;

use crate::abi::attributes::{ibv_parent_domain_init_attr, ibv_td_init_attr};
use crate::abi::context::ibv_context;
use crate::abi::object::ibv_pd;
use crate::device::Context;
use crate::errno::refused;

#[repr(C)]
pub(crate) struct ProtectionDomain {
    pd: ibv_pd,
    /// Address handles of the domain and parent domains on it, which the card does not know.
    pub(crate) handles: AtomicUsize,
    /// If it is a parent domain: the domain that it is on, and the users of its thread domain.
    on: Option<(*mut ibv_pd, Option<Arc<AtomicUsize>>)>,
}

/// A thread domain: it changes nothing, as one lock guards a network.
#[repr(C)]
struct ThreadDomain {
    context: *mut ibv_context,
    /// Parent domains.
    users: Arc<AtomicUsize>,
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
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
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
        on: None,
    });
    own.made(made).cast()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller has a domain that is alive.
    let (own, context) = unsafe { ProtectionDomain::of(pd) };
    let result = context.card.verb("ibv_dealloc_pd", |locked| {
        if own.handles.load(Ordering::Relaxed) > 0 {
            return Err(libc::EBUSY);
        }
        let Some((pd, thread_domain)) = &own.on else {
            locked.nic.dealloc_pd(own.id()).map_err(refused)?;
            context.domains(|domains| domains.retain(|id| *id != own.id()));
            return Ok(());
        };
        // SAFETY: the domain is alive, as it has a user until now.
        let (on, _) = unsafe { ProtectionDomain::of(*pd) };
        on.handles.fetch_sub(1, Ordering::Relaxed);
        if let Some(users) = thread_domain {
            users.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    });
    // SAFETY: `ibv_alloc_pd` made it, and the caller does not use it again.
    unsafe { context.ended(pd.cast::<ProtectionDomain>(), result) }
}

/// The thread domains' place among a context's verbs.
pub(crate) fn thread_domains() -> [*const c_void; 3] {
    [
        alloc_parent_domain as *const c_void,
        dealloc_td as *const c_void,
        alloc_td as *const c_void,
    ]
}

unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attributes: *const ibv_td_init_attr,
) -> *mut c_void {
    // SAFETY: the caller has an open context.
    let own = unsafe { Context::of(context) };
    // SAFETY: the caller has attributes.
    let mask = unsafe { (*attributes).comp_mask };
    let made = own.card.verb("ibv_alloc_td", |locked| match mask {
        _ if !locked.nic.profile().thread_domains => Err(libc::EOPNOTSUPP),
        0 => Ok(ThreadDomain {
            context,
            users: Arc::default(),
        }),
        _ => Err(libc::EINVAL),
    });
    own.made(made).cast()
}

unsafe extern "C" fn dealloc_td(td: *mut c_void) -> c_int {
    // SAFETY: the caller has a thread domain that is alive.
    let own = unsafe { &*td.cast::<ThreadDomain>() };
    // SAFETY: the context is open as long as the thread domain is alive.
    let context = unsafe { Context::of(own.context) };
    let result = context.card.verb("ibv_dealloc_td", |_| {
        match own.users.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(libc::EBUSY),
        }
    });
    // SAFETY: `alloc_td` made it, and the caller does not use it again.
    unsafe { context.ended(td.cast::<ThreadDomain>(), result) }
}

unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attributes: *const ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    /// `IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT`, of allocators that there are none of.
    const PD_CONTEXT: u32 = 1 << 1;
    // SAFETY: the caller has an open context.
    let own = unsafe { Context::of(context) };
    // SAFETY: the caller has attributes.
    let attributes = unsafe { &*attributes };
    let made = own.card.verb("ibv_alloc_parent_domain", |locked| {
        if !locked.nic.profile().thread_domains {
            return Err(libc::EOPNOTSUPP);
        }
        if attributes.pd.is_null() || attributes.comp_mask & !PD_CONTEXT != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller has a domain that is alive.
        let (on, _) = unsafe { ProtectionDomain::of(attributes.pd) };
        on.handles.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller has a thread domain that is alive, or none.
        let thread_domain = unsafe { attributes.td.cast::<ThreadDomain>().as_ref() };
        let users = thread_domain.map(|it| Arc::clone(&it.users));
        if let Some(users) = &users {
            users.fetch_add(1, Ordering::Relaxed);
        }
        Ok(ProtectionDomain {
            pd: ibv_pd {
                context,
                handle: on.pd.handle,
            },
            handles: AtomicUsize::new(0),
            on: Some((attributes.pd, users)),
        })
    });
    own.made(made).cast()
}
