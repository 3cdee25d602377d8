//! Tasks: how they are woken, share a thread, and defer actions until a lock is free.

pub(crate) mod coop;
pub(crate) mod deferred;
pub(crate) mod line;
pub(crate) mod sync;
pub(crate) mod wake;
