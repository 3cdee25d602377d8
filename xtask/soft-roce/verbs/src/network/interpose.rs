//! Functions of the C library that depend on time, and on chance, for threads in virtual time.
//!
//! They take the place of the C library's in a program that enters a host. On a thread that has entered one of a network
//! in virtual time, they are the network's: reading the monotonic clock, sleeping, polling descriptors of this library,
//! getting random bytes. On all other threads they are the kernel's, by its system calls, or the C library's clock. They
//! do not allocate, and take no lock that could be held by the same thread: they run before `main`, in signal handlers,
//! and while threads end.
//!
//! Miri has functions of its own in their place, but for `poll`: there, clocks and random bytes are the system's.
#![expect(unsafe_code, reason = "stands in for functions of the C library")]

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use libc::{clockid_t, nfds_t, pollfd, size_t, ssize_t, timespec};

use super::clock::EPOCH;
use super::{Network, current, descriptors};
use crate::errno::{fail, last};

/// The functions, so that a program that has this in it has them, too.
pub(super) const FUNCTIONS: [*const c_void; 5] = [
    clock_gettime as *const c_void,
    nanosleep as *const c_void,
    clock_nanosleep as *const c_void,
    poll as *const c_void,
    getrandom as *const c_void,
];

/// The kernel's monotonic clock.
pub(super) fn kernel_clock() -> Duration {
    let mut now = spec(Duration::ZERO);
    // SAFETY: there is room for it.
    unsafe { real_clock(libc::CLOCK_MONOTONIC, &raw mut now) };
    duration(&now)
}

/// The C library's `clock_gettime`, which needs no system call; null before it was looked for, and if there is none.
static LIBRARY_CLOCK: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Looks for the C library's clock: where that is allowed, which it may not be in a signal handler.
pub(super) fn find_clock() {
    if cfg!(miri) {
        return;
    }
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"clock_gettime".as_ptr()) };
    if found.addr() != (clock_gettime as *const c_void).addr() {
        LIBRARY_CLOCK.store(found, Ordering::Relaxed);
    }
}

/// Reads a clock that is not the network's.
///
/// # Safety
///
/// There is room for the time.
unsafe fn real_clock(clock: clockid_t, time: *mut timespec) -> c_int {
    type Function = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;
    if cfg!(miri) {
        // SAFETY: the caller has room for the time. The function is Miri's, as this program has none of the name.
        return unsafe { libc::clock_gettime(clock, time) };
    }
    let library = LIBRARY_CLOCK.load(Ordering::Relaxed);
    if library.is_null() {
        // SAFETY: the kernel checks the pointer.
        return int(unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) });
    }
    // SAFETY: this is the C library's function of this name, which has this type.
    let library = unsafe { std::mem::transmute::<*mut c_void, Function>(library) };
    // SAFETY: the caller has room for the time.
    unsafe { library(clock, time) }
}

fn spec(duration: Duration) -> timespec {
    timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: c_long::from(duration.subsec_nanos().cast_signed()),
    }
}

fn duration(spec: &timespec) -> Duration {
    let seconds = u64::try_from(spec.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(spec.tv_nsec).unwrap_or(0))
}

/// The instant of this thread's virtual time; nothing if its time is real.
fn now() -> Option<Duration> {
    current::with(|network| network.clock.read())
}

/// Moves this thread's virtual time to the next packet or timer before `limit`, or there.
fn pass(limit: Option<Duration>) {
    let limit = limit.map(|limit| limit.saturating_sub(EPOCH));
    if current::with(|network| Some(network.try_step(limit))) == Some(false) {
        // Another thread has the network, or this one in the function that a signal has interrupted.
        rest();
    }
}

/// Sleeps for a moment of real time, so that other threads go on.
pub(super) fn rest() {
    let brief = spec(Duration::from_micros(50));
    let none = ptr::null_mut::<timespec>();
    let clock = libc::CLOCK_MONOTONIC;
    // SAFETY: the kernel reads a local.
    unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, 0, &raw const brief, none) };
}

/// Whether a descriptor is readable, or cannot be polled, which reading it reports. It moves no time.
pub(super) fn is_readable(descriptor: RawFd) -> bool {
    let mut entry = pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    real_poll(&raw mut entry, 1, Some(Duration::ZERO)) != 0
}

/// Polls descriptors, by the kernel's time.
#[cfg(not(miri))]
pub(super) fn real_poll(entries: *mut pollfd, count: nfds_t, time: Option<Duration>) -> c_int {
    let mut time = time.map(spec);
    let time = time.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let mask = ptr::null::<libc::sigset_t>();
    // SAFETY: the kernel checks the pointer to the entries, and has the time by a local.
    int(unsafe { libc::syscall(libc::SYS_ppoll, entries, count, time, mask, 8_usize) })
}

/// The same for Miri, which has sets of descriptors only, and for one descriptor.
#[cfg(miri)]
pub(super) fn real_poll(entry: *mut pollfd, count: nfds_t, time: Option<Duration>) -> c_int {
    let millis = time.map_or(-1, |time| {
        c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
    });
    assert_eq!(count, 1, "one descriptor is polled at a time");
    // SAFETY: no pointers.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    // SAFETY: `poll`'s caller, or this module, has one entry.
    let entry = unsafe { &mut *entry };
    let events = (libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLET).cast_unsigned();
    let mut event = libc::epoll_event { events, u64: 0 };
    // SAFETY: a local.
    let added = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, entry.fd, &raw mut event) };
    assert_eq!(added, 0, "the descriptor is open");
    // SAFETY: a local, which is one event long.
    let ready = unsafe { libc::epoll_wait(set, &raw mut event, 1, millis) };
    entry.revents = if ready == 1 { libc::POLLIN } else { 0 };
    // SAFETY: the descriptor is this function's own.
    unsafe { libc::close(set) };
    ready
}

/// Lets virtual time pass until then.
fn sleep_until(end: Duration) {
    while now().is_some_and(|now| now < end) {
        pass(Some(end));
    }
}

fn int(result: c_long) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

#[cfg_attr(not(miri), unsafe(no_mangle))]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    if clock == libc::CLOCK_MONOTONIC
        && !time.is_null()
        && let Some(now) = now()
    {
        // SAFETY: the caller has room for it, as the C library's function asks for.
        unsafe { time.write(spec(now)) };
        return 0;
    }
    // SAFETY: the caller has room for it, as the C library's function asks for.
    unsafe { real_clock(clock, time) }
}

#[cfg_attr(not(miri), unsafe(no_mangle))]
unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    // SAFETY: this caller's promises are those of the other function.
    let errno = unsafe { clock_nanosleep(libc::CLOCK_REALTIME, 0, time, left) };
    if errno == 0 { 0 } else { fail(errno, -1) }
}

/// Returns an errno.
#[cfg_attr(not(miri), unsafe(no_mangle))]
unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    let is_absolute = flags & libc::TIMER_ABSTIME != 0;
    if (clock == libc::CLOCK_MONOTONIC || !is_absolute)
        && let Some(now) = now()
        // SAFETY: the caller has it, as the C library's function asks for, or it is null.
        && let Some(time) = unsafe { time.as_ref() }
    {
        let start = if is_absolute { Duration::ZERO } else { now };
        sleep_until(start.saturating_add(duration(time)));
        return 0;
    }
    // SAFETY: the kernel checks the pointers.
    let result = unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, flags, time, left) };
    if result == 0 { 0 } else { last() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(entries: *mut pollfd, count: nfds_t, millis: c_int) -> c_int {
    let time = u64::try_from(millis).ok().map(Duration::from_millis);
    let is_ours = |index| {
        // SAFETY: the caller has this number of entries.
        let entry = unsafe { entries.wrapping_add(index).read() };
        descriptors::is_open(entry.fd)
    };
    let length = usize::try_from(count).unwrap_or(0);
    let Some(start) = now().filter(|_| (0..length).all(is_ours)) else {
        return real_poll(entries, count, time);
    };
    let end = time.map(|time| start + time);
    loop {
        let ready = real_poll(entries, count, Some(Duration::ZERO));
        if ready != 0 || now().zip(end).is_some_and(|(now, end)| now >= end) {
            return ready;
        }
        pass(end);
    }
}

#[cfg_attr(not(miri), unsafe(no_mangle))]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    let mut done = 0;
    while done < length
        && let Some(number) = current::with(Network::random)
    {
        let bytes = number.to_le_bytes();
        let part = bytes.len().min(length - done);
        let to = buffer.cast::<u8>().wrapping_add(done);
        // SAFETY: the caller has room for `length` bytes, of which `done` have been written.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, part) };
        done += part;
    }
    if done > 0 {
        return done.cast_signed();
    }
    // SAFETY: the kernel checks the pointer.
    let result = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) };
    ssize_t::try_from(result).unwrap_or(-1)
}
