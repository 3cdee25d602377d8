//! The locks that the driver is made of: a model checker puts its own in their place.

pub(crate) use parking_lot::{Mutex, MutexGuard};
