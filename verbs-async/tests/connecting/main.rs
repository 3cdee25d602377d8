//! Connecting on a device whose calls take as long as the tests say.
//!
//! Every test shares its [`fake_libibverbs`] with the threads that the crate starts.
#![cfg(test)]

mod accept;
mod gate;
mod handshakes;
mod listeners;
