//! What every notifier promises, of each of them; no device needed.
#![cfg(test)]

mod fixture;
mod suite;
mod thread;
#[cfg(feature = "tokio")]
mod tokio;
