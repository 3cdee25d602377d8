//! What no software device does, proven without one: a device that dies, a queue that cannot be
//! polled, a post refused half-way, a queue pair that will not go.
//!
//! This program brings its own libibverbs, [`library`], as verbs-core's offline tests do: it posts
//! nothing to anyone, and finds the completions that a test gives it.
#![cfg(test)]
#![expect(unsafe_code, reason = "shares a library that is C's")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the library's objects live as long as the test, which alone has them"
)]

#[path = "../../../verbs-core/tests/offline/library/mod.rs"]
#[expect(dead_code, unused_imports, reason = "verbs-core's tests use all of it")]
mod library;

mod batches;
mod buffers;
mod card;
mod driven;
mod fatal;
mod faulty;
mod fuzz;
mod gate;
mod glances;
mod ladder;
#[expect(dead_code, reason = "verbs-async's tests use all of it")]
mod log;
mod mixed;
mod owned;
mod peers;
mod peers_over_tcp;
mod refused;
mod results;
mod scopes;
mod stuck;
mod waits;
