//! C's structures (`infiniband/verbs.h`), in its order; a test compares them with the header's.

pub(crate) mod attributes;
pub(crate) mod connection;
pub(crate) mod context;
pub(crate) mod extended;
pub(crate) mod object;
pub(crate) mod request;
#[cfg(test)]
mod tests;
