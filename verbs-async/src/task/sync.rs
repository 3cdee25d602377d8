//! The locks of this crate, without poisoning: loom tests replace them by their own.

pub(crate) use parking_lot::{Mutex, MutexGuard};
