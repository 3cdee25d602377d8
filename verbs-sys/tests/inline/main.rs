//! Each inline verb, against function tables made here: what it calls, with what, and what it does
//! when there is nothing to call.
#![expect(unsafe_code, reason = "calls the verbs, and is the other side of them")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the fakes live as long as the test, which alone has them"
)]

mod exported;
mod extended;
mod fake;
mod fallback;
mod object;
mod ops;
mod pure;
#[cfg(feature = "rdmacm")]
mod rdmacm;
mod unions;
