//! Two cards, joined by a link that loses, repeats, reorders and damages packets as a seed says.
#![cfg(test)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths of tests are small, and numbers from a seed may lose bits"
)]

mod atomics;
mod broken;
mod datagrams;
mod ends;
mod errors;
mod hostile;
mod link;
mod messages;
mod misuse;
mod one_sided;
mod random;
mod shared;
mod timers;
mod tools;
mod unmapped;
mod unreliable;
mod windows;
mod wire;
