//! Protection domains, thread domains, and the parent domains of both.
#![expect(unsafe_code, reason = "C's functions and pointers")]

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use soft_nic::DomainId;

use crate::abi::attributes::{ibv_parent_domain_init_attr, ibv_td_init_attr};
use crate::abi::context::Open;
use crate::abi::object::ibv_pd;
use crate::device::destroy;
use crate::errno::refused;
use crate::network::Locked;

#[repr(C)]
pub(crate) struct ProtectionDomain {
    pub(crate) pd: ibv_pd,
    /// Address handles of the domain and parent domains on it, which the card does not know.
    pub(crate) handles: AtomicUsize,
    /// If it is a parent domain: the domain that it is on, and the users of its thread domain.
    on: Option<(*mut ibv_pd, Option<Arc<AtomicUsize>>)>,
}

/// A thread domain: it changes nothing, as one lock guards a network.
#[repr(C)]
pub(crate) struct ThreadDomain {
    context: Open,
    /// Parent domains.
    users: Arc<AtomicUsize>,
}

impl ProtectionDomain {
    const fn new(context: Open, handle: u32) -> Self {
        Self {
            pd: ibv_pd { context, handle },
            handles: AtomicUsize::new(0),
            on: None,
        }
    }

    pub(crate) const fn id(&self) -> DomainId {
        DomainId(self.pd.handle)
    }

    /// C's pointer to it.
    pub(crate) const fn as_ptr(&self) -> *mut ibv_pd {
        ptr::from_ref(self).cast_mut().cast()
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_alloc_pd(context: Open) -> *mut ProtectionDomain {
    context.make("ibv_alloc_pd", |locked| {
        let id = locked.nic.alloc_pd().map_err(refused)?;
        Ok(ProtectionDomain::new(context, id.0))
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ProtectionDomain) -> c_int {
    let end = |locked: &mut Locked<'_>, own: &ProtectionDomain| {
        if own.handles.load(Ordering::Relaxed) > 0 {
            return Err(libc::EBUSY);
        }
        let Some((pd, thread_domain)) = &own.on else {
            let ended = locked.nic.dealloc_pd(own.id());
            return ended.map_err(refused).map(|()| None);
        };
        // SAFETY: the domain is alive, as it has a user until now.
        let on = unsafe { &*pd.cast::<ProtectionDomain>() };
        on.handles.fetch_sub(1, Ordering::Relaxed);
        if let Some(users) = thread_domain {
            users.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(None)
    };
    // SAFETY: `ibv_alloc_pd` or `alloc_parent_domain` made it, and the caller does not use it again.
    unsafe { destroy("ibv_dealloc_pd", pd, end) }
}

pub(crate) extern "C" fn alloc_td(
    context: Open,
    attributes: &ibv_td_init_attr,
) -> *mut ThreadDomain {
    context.make("ibv_alloc_td", |locked| match attributes.comp_mask {
        _ if !locked.nic.profile().thread_domains => Err(libc::EOPNOTSUPP),
        0 => Ok(ThreadDomain {
            context,
            users: Arc::default(),
        }),
        _ => Err(libc::EINVAL),
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ThreadDomain) -> c_int {
    let end = |_: &mut Locked<'_>, own: &ThreadDomain| match own.users.load(Ordering::Relaxed) {
        0 => Ok(None),
        _ => Err(libc::EBUSY),
    };
    // SAFETY: `alloc_td` made it, and the caller does not use it again.
    unsafe { destroy("ibv_dealloc_td", td, end) }
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: Open,
    attributes: &ibv_parent_domain_init_attr,
) -> *mut ProtectionDomain {
    /// `IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT`, of allocators that there are none of.
    const PD_CONTEXT: u32 = 1 << 1;
    context.make("ibv_alloc_parent_domain", |locked| {
        if !locked.nic.profile().thread_domains {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the caller has a domain that is alive, or none.
        let on = unsafe { attributes.pd.cast::<ProtectionDomain>().as_ref() };
        let on = on.ok_or(libc::EINVAL)?;
        if attributes.comp_mask & !PD_CONTEXT != 0 {
            return Err(libc::EINVAL);
        }
        on.handles.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller has a thread domain that is alive, or none.
        let thread_domain = unsafe { attributes.td.cast::<ThreadDomain>().as_ref() };
        let users = thread_domain.map(|it| Arc::clone(&it.users));
        if let Some(users) = &users {
            users.fetch_add(1, Ordering::Relaxed);
        }
        Ok(ProtectionDomain {
            on: Some((attributes.pd, users)),
            ..ProtectionDomain::new(context, on.pd.handle)
        })
    })
}
