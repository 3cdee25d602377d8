//! How many files and connections a program may have.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of descriptors to this process's maximum: each connection or file has one.
///
/// # Errors
///
/// The limit cannot be changed.
pub fn many_descriptors() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum })?;
    Ok(())
}
