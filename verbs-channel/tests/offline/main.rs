//! What no software device does, proven without one: a device that dies, a queue that cannot be
//! polled, a post refused half-way, a queue pair that will not go.
//!
//! [`fake_libibverbs`] posts nothing to anyone, and finds the completions that a test gives it.
#![cfg(test)]
#![expect(unsafe_code, reason = "posts unpolled work, polls by hand")]

mod batches;
mod buffers;
mod card;
mod driven;
mod fatal;
mod fuzz;
mod gate;
mod glances;
mod ladder;
mod mixed;
mod owned;
mod peers;
mod peers_over_tcp;
mod refused;
mod results;
mod scopes;
mod stuck;
mod waits;
