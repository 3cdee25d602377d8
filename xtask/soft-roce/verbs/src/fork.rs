//! Forks. Nothing is pinned, so nothing has to be kept from children.
#![expect(unsafe_code, reason = "C's functions")]

use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
const extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
const extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

#[unsafe(no_mangle)]
const extern "C" fn ibv_dontfork_range(_base: *mut c_void, _length: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
const extern "C" fn ibv_dofork_range(_base: *mut c_void, _length: usize) -> c_int {
    0
}
