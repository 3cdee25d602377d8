//! Statics of which each process has its own.

use std::sync::OnceLock;

use verbs_channel::verbs_core::__private::Process;

/// A value that all threads of a process share. The child of a fork makes a new one.
///
/// The child has its parent's memory without its threads: what its parent's value holds belongs to the parent, and a
/// lock in it may be held by a thread that the child does not have. So the child neither uses nor drops it.
pub(crate) struct PerProcess<T: 'static> {
    make: fn() -> T,
    own: OnceLock<(Process, T)>,
    // For a child, if `own` is its parent's.
    next: OnceLock<Box<Self>>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new(make: fn() -> T) -> Self {
        Self {
            make,
            own: OnceLock::new(),
            next: OnceLock::new(),
        }
    }

    /// The value of the process that this is called in.
    pub(crate) fn get(&'static self) -> &'static T {
        let mut at = self;
        loop {
            let Some((process, value)) = at.own.get() else {
                // Made before it is set: a child that is forked meanwhile would wait for this for ever.
                let _other_was_first = at.own.set((Process::current(), (at.make)()));
                continue;
            };
            if process.is_current() {
                return value;
            }
            let Some(next) = at.next.get() else {
                let _other_was_first = at.next.set(Box::new(Self::new(at.make)));
                continue;
            };
            at = next;
        }
    }
}
