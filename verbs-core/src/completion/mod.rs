//! Completions: queues of them, polling, and the channel that announces them.

mod channel;
mod datagram;
mod poll;
mod poll_error;
mod queue;
mod wc_status;
mod work_completion;

pub use channel::{CompletionChannel, CqEvent};
pub use poll::{Completions, PollSlot, PolledCompletions};
pub use poll_error::PollError;
pub use queue::{CompletionQueue, CompletionQueueBuilder};
pub use wc_status::WcStatus;
pub use work_completion::{WcOpcode, WorkCompletion, WorkError, WorkSuccess};
