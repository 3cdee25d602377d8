//! Networks that a seed decides, and channels on them.
#![cfg(test)]

#[cfg(miri)]
mod caught;
#[cfg(feature = "rdmacm")]
mod connecting;
mod ends;
mod faults;
mod repeatable;
mod two_hosts;
