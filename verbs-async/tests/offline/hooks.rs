//! Wakers that call a function whenever they are cloned, woken or dropped.
#![expect(
    unsafe_code,
    reason = "a waker that observes its clones has to be made by hand"
)]

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::task::{RawWaker, RawWakerVTable, Waker};

/// An event in the life of a waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Clone,
    Wake,
    Drop,
}

/// The function that is called.
type Hook = Box<dyn Fn(Moment) + Send + Sync>;

/// A waker that calls this function whenever anything happens to it or to one of its clones.
pub(crate) fn waker(hook: impl Fn(Moment) + Send + Sync + 'static) -> Waker {
    let hook: Arc<Hook> = Arc::new(Box::new(hook));
    // SAFETY: the functions keep to the contract, on what `raw` has made.
    unsafe { Waker::from_raw(raw(hook)) }
}

fn raw(hook: Arc<Hook>) -> RawWaker {
    const VTABLE: RawWakerVTable = RawWakerVTable::new(
        |hook| {
            // SAFETY: the pointer is that of a living waker, which keeps the hook.
            let hook = ManuallyDrop::new(unsafe { owned(hook) });
            hook(Moment::Clone);
            raw(Arc::clone(&hook))
        },
        |hook| {
            // SAFETY: the pointer was that of a waker which is gone, and hands its reference over.
            let hook = unsafe { owned(hook) };
            hook(Moment::Wake);
        },
        |hook| {
            // SAFETY: the pointer is that of a living waker, which keeps the hook.
            let hook = ManuallyDrop::new(unsafe { owned(hook) });
            hook(Moment::Wake);
        },
        |hook| {
            // SAFETY: the pointer was that of a waker which is gone, and hands its reference over.
            let hook = unsafe { owned(hook) };
            hook(Moment::Drop);
        },
    );
    RawWaker::new(Arc::into_raw(hook).cast(), &VTABLE)
}

/// # Safety
///
/// It is what [`raw`] has made, and given out as the caller's.
unsafe fn owned(hook: *const ()) -> Arc<Hook> {
    // SAFETY: the caller promises that `raw` made it.
    unsafe { Arc::from_raw(hook.cast()) }
}
