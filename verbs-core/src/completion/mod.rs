//! Completions: queues of them, polling, and the channel that announces them.

mod channel;
mod datagram;
mod poll;
mod poll_error;
mod queue;
mod work_completion;

pub use channel::{CompletionChannel, CqEvent};
pub use poll::{Completions, PollSlot, PolledCompletions};
pub use poll_error::PollError;
pub use queue::{CompletionQueue, CompletionQueueBuilder};
pub use work_completion::{WcOpcode, WcStatus, WorkCompletion, WorkError, WorkSuccess};
