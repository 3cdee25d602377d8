//! Random programs of verbs-channel and verbs-async between two hosts, on links that lose, repeat, reorder and spoil packets and are
//! cut, with hosts that stop and die, verbs that fail, and devices of both profiles.
//!
//! A program that fails prints one line that runs it again, with the packets in a file. `FUZZ_SEED=17` runs one program
//! of each kind, `FUZZ_ROUNDS=10000` 10,000 of them.
#![cfg(test)]

mod alone;
mod channels;
mod datagrams;
mod exchange;
mod group;
mod messages;
mod runner;
mod scopes;
mod streams;
mod tasks;
mod world;

use runner::programs;

#[test]
fn messages_arrive_once_in_order_and_buffers_come_back() {
    programs("messages", 200, messages::run);
}

#[test]
fn scopes_end_with_their_buffers_whatever_happens_inside() {
    programs("scopes", 200, scopes::run);
}

#[test]
fn datagrams_arrive_whole_or_not_at_all() {
    programs("datagrams", 200, datagrams::run);
}

#[test]
fn an_exchange_over_datagrams_connects_both_or_fails_in_time() {
    programs("exchange", 200, exchange::run);
}

#[test]
fn messages_of_a_group_come_out_once_in_the_order_of_their_channel() {
    programs("group", 200, group::run);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sets of sets of descriptors")]
fn async_operations_end_once_whatever_is_dropped_and_wake_their_tasks() {
    programs("async_operations", 200, channels::run);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no sets of sets of descriptors")]
fn streams_read_what_was_written_and_then_its_end() {
    programs("streams", 200, streams::run);
}
