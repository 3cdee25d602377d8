//! A tokio runtime.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// Creates a runtime of this many threads, including the calling one.
///
/// # Errors
///
/// The runtime cannot be created.
pub fn runtime(threads: u16) -> io::Result<Runtime> {
    let mut builder = if threads == 1 {
        Builder::new_current_thread()
    } else {
        Builder::new_multi_thread()
    };
    builder.worker_threads(threads.into()).enable_all().build()
}
