//! A tokio runtime.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// A runtime of so many threads; one is the calling one.
///
/// # Errors
///
/// The system has no room for it.
pub fn runtime(threads: u16) -> io::Result<Runtime> {
    let mut builder = if threads == 1 {
        Builder::new_current_thread()
    } else {
        Builder::new_multi_thread()
    };
    builder.worker_threads(threads.into()).enable_all().build()
}
