//! Completions, events and their descriptors.

use std::os::fd::AsFd;

use verbs_core::completion::CompletionChannel;
use verbs_core::{CompletionQueue, Context, PollSlot, PolledCompletions, Result};

/// Completions do not outlive their slots.
fn completions_outlive_their_slots(cq: &CompletionQueue) -> Result<PolledCompletions<'static>> {
    let mut slots = [const { PollSlot::new() }; 4];
    Ok(cq.poll(&mut slots)?)
}

/// Slots are not polled into while their completions are borrowed.
fn slots_reused_under_completions(cq: &CompletionQueue) -> Result<u64> {
    let mut slots = [const { PollSlot::new() }; 4];
    let first = cq.poll(&mut slots)?;
    let second = cq.poll(&mut slots)?;
    Ok(first[0].wr_id() + second[0].wr_id())
}

/// An event identifies its queue, and cannot poll or resize it.
fn event_is_not_its_queue() -> Result<()> {
    let context = Context::first_active()?;
    let channel = CompletionChannel::create(&context)?;
    let event = channel.get_cq_event(None)?.unwrap();
    let mut slots = [const { PollSlot::new() }; 4];
    event.poll(&mut slots)?;
    event.resize(1)?;
    Ok(())
}

/// Descriptors whose events must be acknowledged are not accessible, so they are not read.
fn channel_has_no_descriptor_to_read() -> Result<()> {
    let context = Context::first_active()?;
    let channel = CompletionChannel::create(&context)?;
    let _readable = channel.as_fd();
    let _readable_too = context.async_fd();
    Ok(())
}

fn main() {}
