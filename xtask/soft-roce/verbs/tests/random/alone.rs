//! Programs that can start no thread: verbs-async then destroys queue pairs in the calls that end them, and one seed
//! gives one run. Under Miri they can start threads.
#![expect(unsafe_code, reason = "stands in for a function of the C library")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

thread_local! {
    static HAS_THREADS: Cell<bool> = const { Cell::new(true) };
}

/// Runs a program that can start no thread.
pub(crate) fn alone<T>(run: impl FnOnce() -> T) -> T {
    let before = HAS_THREADS.replace(false);
    let ended = run();
    HAS_THREADS.set(before);
    ended
}

/// The output of a future that a thread wakes, which may be started for it. Virtual time stands still meanwhile.
pub(crate) fn thread_ends<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let before = HAS_THREADS.replace(true);
    let (waker, mut future) = (
        Waker::from(Arc::new(Unpark(thread::current()))),
        pin!(future),
    );
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            HAS_THREADS.set(before);
            return output;
        }
        thread::park();
    }
}

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Start,
    *mut c_void,
) -> c_int;

#[cfg_attr(not(miri), unsafe(no_mangle))]
#[cfg_attr(miri, expect(dead_code, reason = "Miri has a function of its own"))]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    if !HAS_THREADS.get() {
        return libc::EAGAIN;
    }
    // SAFETY: the name ends with a zero.
    let library = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) };
    assert!(!library.is_null(), "the C library has it");
    // SAFETY: this is the C library's function of this name, which has this type.
    let library = unsafe { std::mem::transmute::<*mut c_void, Create>(library) };
    // SAFETY: its callers call it as the C library's function, which asks for nothing else.
    unsafe { library(thread, attributes, start, argument) }
}
