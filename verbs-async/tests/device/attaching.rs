//! The calls that attach queue pairs to multicast groups and detach them, with their threads.
//!
//! The linker prefers these functions to those of the library, which they call.

use std::ffi::{CStr, c_int, c_void};
use std::mem;
use std::sync::Mutex;
use std::thread::{self, ThreadId};

use verbs_async::verbs_core::verbs_sys::{ibv_gid, ibv_qp};

type Call = unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int;

/// The threads of the calls.
static THREADS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

/// The threads of the calls since the last time this was called.
pub(crate) fn take_threads() -> Vec<ThreadId> {
    mem::take(&mut *THREADS.lock().unwrap())
}

/// Records a call.
fn recorded(name: &CStr) -> Call {
    THREADS.lock().unwrap().push(thread::current().id());
    // SAFETY: the name is a C string.
    let real: *mut c_void = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!real.is_null(), "the library has no {name:?}");
    // SAFETY: the functions of this name have this type.
    unsafe { mem::transmute::<*mut c_void, Call>(real) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    let real = recorded(c"ibv_attach_mcast");
    // SAFETY: the caller upholds the contract of `ibv_attach_mcast`.
    unsafe { real(qp, gid, lid) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    let real = recorded(c"ibv_detach_mcast");
    // SAFETY: the caller upholds the contract of `ibv_detach_mcast`.
    unsafe { real(qp, gid, lid) }
}
