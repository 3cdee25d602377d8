//! How C is called: its handles, return values and descriptors, and the process that may use them.

pub(crate) mod destroy;
pub(crate) mod fd;
pub(crate) mod handle;
pub(crate) mod log;
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod ret;

pub use destroy::Destroy;
pub(crate) use process::Process;
pub(crate) use random::random;
