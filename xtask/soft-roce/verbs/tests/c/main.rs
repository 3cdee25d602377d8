//! C's functions: rules of objects and events, and verbs that verbs-core does not wrap.
#![cfg(test)]
#![expect(unsafe_code, reason = "C's functions")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks,
    reason = "each block calls C as its man page says, with objects that the test alone has"
)]

mod events;
mod extended;
mod ladder;
mod memory;
mod missing;
mod objects;
