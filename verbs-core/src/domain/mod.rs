//! Domains: which objects work together, and which thread may use them.

pub(crate) mod protection_domain;
mod thread_domain;

pub use protection_domain::ProtectionDomain;
pub use thread_domain::ThreadDomain;
