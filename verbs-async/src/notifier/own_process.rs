//! Registrations with an epoll set, which the child of a fork shares with its parent.

use std::mem;
use std::ops::Deref;

use verbs_channel::verbs_core::__private::Process;

/// A registration that is dropped only in the process that made it. In the child of a fork, that would
/// deregister the parent's.
#[derive(Debug)]
pub(super) struct OwnProcess<T> {
    // `None` only while it is dropped.
    registered: Option<T>,
    process: Process,
}

impl<T> OwnProcess<T> {
    pub(super) fn new(registered: T) -> Self {
        Self {
            registered: Some(registered),
            process: Process::current(),
        }
    }
}

impl<T> Deref for OwnProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.registered
            .as_ref()
            .expect("it is there until the drop")
    }
}

impl<T> Drop for OwnProcess<T> {
    fn drop(&mut self) {
        let registered = self.registered.take();
        if !self.process.is_current() {
            #[expect(clippy::mem_forget, reason = "its drop is the parent's")]
            mem::forget(registered);
        }
    }
}
