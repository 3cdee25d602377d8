//! Statics of which each process has its own.

use std::sync::OnceLock;

use verbs_channel::verbs_core::Process;

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
            let own = at.own.get_or_init(|| (Process::current(), (at.make)()));
            match own {
                (process, value) if process.is_current() => return value,
                _ => at = at.next.get_or_init(|| Box::new(Self::new(at.make))),
            }
        }
    }
}
