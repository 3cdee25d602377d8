//! The promises of all notifiers, checked for each of them without a device.
#![cfg(test)]

mod fixture;
mod suite;
#[cfg(feature = "tokio")]
mod tokio;
