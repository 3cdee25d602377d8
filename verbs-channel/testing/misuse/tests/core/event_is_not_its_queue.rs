//! An event identifies its queue, and cannot poll or resize it.

use verbs_core::PollSlot;
use verbs_core::completion::CompletionChannel;

fn main() -> verbs_core::Result<()> {
    let context = verbs_core::Context::first_active()?;
    let channel = CompletionChannel::create(&context)?;
    let event = channel.get_cq_event(None)?.unwrap();
    let mut slots = [const { PollSlot::new() }; 4];
    event.poll(&mut slots)?;
    event.resize(1)?;
    Ok(())
}
