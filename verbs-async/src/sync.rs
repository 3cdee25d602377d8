//! The locks of this crate, which know no poison: a model checker puts its own in their place.

pub(crate) use parking_lot::{Mutex, MutexGuard};
