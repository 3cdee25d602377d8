//! Completions: queues of them, polling, and the channel that announces them.

mod channel;
mod datagram;
mod extended;
mod grh;
mod poll;
mod queue;
mod work_completion;

pub use channel::{CompletionChannel, CqEvent};
pub use extended::{CompletionQueueEx, CompletionQueueExBuilder, Timestamps, WorkCompletionEx};
pub use grh::Grh;
pub use poll::{Completions, PollSlot, PolledCompletions};
pub use queue::{CompletionQueue, CompletionQueueBuilder};
pub use work_completion::{WorkCompletion, WorkSuccess};
