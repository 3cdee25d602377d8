//! The `getaddrinfo(3)` of this program, which finds no host of one name, as late as a test wants it to.
#![expect(unsafe_code, reason = "defines a function of C's library")]

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::{self, ThreadId};

use libc::addrinfo;

/// A name that no host has, and a port.
pub(crate) const NONE: &str = "nobody.invalid:7471";

struct State {
    is_held: bool,
    asked_by: Vec<ThreadId>,
}

static STATE: (Mutex<State>, Condvar) = (
    Mutex::new(State {
        is_held: false,
        asked_by: Vec::new(),
    }),
    Condvar::new(),
);

fn state() -> MutexGuard<'static, State> {
    STATE.0.lock().unwrap()
}

/// The threads that have asked for the name since the last call.
pub(crate) fn asked_by() -> Vec<ThreadId> {
    std::mem::take(&mut state().asked_by)
}

/// Until this is dropped, nothing answers who asks for the name.
pub(crate) struct Held(());

pub(crate) fn hold() -> Held {
    state().is_held = true;
    Held(())
}

impl Drop for Held {
    fn drop(&mut self) {
        state().is_held = false;
        STATE.1.notify_all();
    }
}

/// Looks a name up.
///
/// # Safety
///
/// As for getaddrinfo(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    res: *mut *mut addrinfo,
) -> c_int {
    type Call = unsafe extern "C" fn(
        *const c_char,
        *const c_char,
        *const addrinfo,
        *mut *mut addrinfo,
    ) -> c_int;
    // SAFETY: the caller passes a string that ends with a zero byte, as getaddrinfo(3) wants it, or null.
    let name = (!node.is_null()).then(|| unsafe { CStr::from_ptr(node) });
    if name.is_some_and(|name| NONE.as_bytes().starts_with(name.to_bytes())) {
        let mut state = state();
        state.asked_by.push(thread::current().id());
        drop(STATE.1.wait_while(state, |state| state.is_held).unwrap());
        return libc::EAI_NONAME;
    }
    // SAFETY: the name is a string that ends with a zero byte.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"getaddrinfo".as_ptr()) };
    assert!(!next.is_null(), "the library of C has no getaddrinfo");
    // SAFETY: this is the `getaddrinfo` of C's library, which has this type.
    let call: Call = unsafe { std::mem::transmute(next) };
    // SAFETY: the caller upholds the contract of getaddrinfo(3).
    unsafe { call(node, service, hints, res) }
}
