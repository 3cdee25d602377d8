//! The host that a thread entered.
#![expect(
    unsafe_code,
    reason = "a thread's host is read in signal handlers, and while the thread ends"
)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use super::host::Shared;
use super::{Network, interpose};

thread_local! {
    // Neither initialized nor dropped, so that it can be read at any time.
    static HOST: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

/// The thread is on a host until this is dropped.
pub(super) struct Entered<'a> {
    before: *const Shared,
    host: PhantomData<&'a Arc<Shared>>,
}

/// Puts the thread on a host.
pub(super) fn enter(host: &Arc<Shared>) -> Entered<'_> {
    // Programs that enter hosts have the functions in the place of the C library's.
    std::hint::black_box(interpose::FUNCTIONS);
    Entered {
        before: HOST.replace(Arc::as_ptr(host)),
        host: PhantomData,
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        HOST.set(self.before);
    }
}

/// The host that this thread entered.
pub(super) fn host() -> Option<Arc<Shared>> {
    let host = HOST.get();
    if host.is_null() {
        return None;
    }
    // SAFETY: `enter` has it from an `Arc`, which it borrows while the pointer is here.
    unsafe { Arc::increment_strong_count(host) };
    // SAFETY: the count of this one was just added.
    Some(unsafe { Arc::from_raw(host) })
}

/// Calls a function with the network of the host that this thread entered. It neither locks nor allocates.
pub(super) fn with<T>(call: impl FnOnce(&Network) -> Option<T>) -> Option<T> {
    // SAFETY: it is null, or `enter` has it from an `Arc`, which it borrows while the pointer is here.
    let host = unsafe { HOST.get().as_ref() };
    host.and_then(|host| call(&host.network))
}
