//! Slots are not polled into while their completions are borrowed.

use verbs_core::{CompletionQueue, PollSlot, Result};

fn poll(cq: &CompletionQueue) -> Result<u64> {
    let mut slots = [const { PollSlot::new() }; 4];
    let first = cq.poll(&mut slots)?;
    let second = cq.poll(&mut slots)?;
    Ok(first[0].wr_id() + second[0].wr_id())
}

fn main() {}
