//! Connecting on a device whose calls take as long as the tests say.
//!
//! This program brings its own libibverbs, [`library`], as verbs-core's offline tests do. Every test
//! shares it with the threads that the crate starts.
#![cfg(test)]
#![expect(unsafe_code, reason = "shares a library that is C's")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the library's objects live as long as the test, which alone has them"
)]

mod gate;
mod handshakes;
#[path = "../../../verbs-core/tests/offline/library/mod.rs"]
#[expect(dead_code, unused_imports, reason = "verbs-core's tests use all of it")]
mod library;
mod listeners;
