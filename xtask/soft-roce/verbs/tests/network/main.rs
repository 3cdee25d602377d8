//! Networks that a seed decides, and channels on them.
#![cfg(test)]

mod ends;
mod faults;
mod repeatable;
mod two_hosts;
