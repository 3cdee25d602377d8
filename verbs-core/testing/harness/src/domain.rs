//! Protection domains that no debug build checks.
#![expect(unsafe_code, reason = "makes a protection domain in C")]

use std::ptr::NonNull;

use verbs_core::ffi::Destroy;
use verbs_core::verbs_sys::ibv_alloc_pd;
use verbs_core::{Context, ProtectionDomain};

/// A protection domain as of another library: a debug build does not know where its regions may be
/// posted. So the device decides, as it does in release builds.
pub fn unchecked_domain(context: &Context) -> ProtectionDomain {
    // SAFETY: the context is open.
    let pd = NonNull::new(unsafe { ibv_alloc_pd(context.as_ptr()) }).unwrap();
    // SAFETY: the domain is new, and has no thread domain; its verb alone ends it.
    unsafe { ProtectionDomain::from_raw(pd, context, Destroy::by_verb()) }.unwrap()
}
