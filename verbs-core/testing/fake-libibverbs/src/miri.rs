//! Three functions of C's library that Miri does not have.

use std::ffi::{c_char, c_int, c_uint};

/// Waits for one descriptor to be readable, by a set of its own.
///
/// # Safety
///
/// As for poll(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    assert_eq!(count, 1, "one descriptor is all that is waited for here");
    // SAFETY: no memory is involved.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    // SAFETY: the caller has one entry.
    let entry = unsafe { &mut *fds };
    let events = (libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLET).cast_unsigned();
    let mut event = libc::epoll_event { events, u64: 0 };
    // SAFETY: a local.
    let added = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, entry.fd, &raw mut event) };
    assert_eq!(added, 0);
    // SAFETY: a local, one event long.
    let ready = unsafe { libc::epoll_wait(set, &raw mut event, 1, timeout) };
    entry.revents = match ready {
        1 => i16::try_from(event.events).unwrap(),
        _ => 0,
    };
    // SAFETY: the descriptor is this function's own.
    unsafe { libc::close(set) };
    ready
}

/// No limit.
///
/// # Safety
///
/// As for getrlimit(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn getrlimit(_resource: c_uint, limit: *mut libc::rlimit) -> c_int {
    // SAFETY: the caller has room for it.
    unsafe {
        (*limit).rlim_cur = libc::RLIM_INFINITY;
        (*limit).rlim_max = libc::RLIM_INFINITY;
    }
    0
}

/// There are no interfaces.
#[unsafe(no_mangle)]
extern "C" fn if_indextoname(_index: c_uint, _name: *mut c_char) -> *mut c_char {
    std::ptr::null_mut()
}
