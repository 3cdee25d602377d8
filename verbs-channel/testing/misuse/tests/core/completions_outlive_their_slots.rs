//! Completions do not outlive their slots.

use verbs_core::{CompletionQueue, PollSlot, PolledCompletions, Result};

fn escape(cq: &CompletionQueue) -> Result<PolledCompletions<'static>> {
    let mut slots = [const { PollSlot::new() }; 4];
    Ok(cq.poll(&mut slots)?)
}

fn main() {}
