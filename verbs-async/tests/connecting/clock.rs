//! The `clock_gettime(2)` of this program, whose monotonic clock a test can move on.
#![expect(unsafe_code, reason = "defines a function of C's library")]

use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::time::Duration;

use libc::{clockid_t, timespec};

thread_local! {
    /// The seconds by which the clock of this thread is ahead.
    static AHEAD: Cell<i64> = const { Cell::new(0) };
}

/// Moves the clock of this thread on by whole seconds.
pub(crate) fn jump(time: Duration) {
    AHEAD.set(AHEAD.get() + i64::try_from(time.as_secs()).unwrap());
}

/// Reads a clock.
///
/// # Safety
///
/// As for `clock_gettime(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the caller upholds the contract of clock_gettime(2), which the system call has too.
    let ret: c_long = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    if ret == 0 && clock == libc::CLOCK_MONOTONIC {
        // SAFETY: the call has succeeded, so the caller's pointer is valid.
        unsafe { (*time).tv_sec += AHEAD.get() };
    }
    c_int::try_from(ret).unwrap()
}
