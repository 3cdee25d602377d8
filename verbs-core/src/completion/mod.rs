//! Completions: queues of them, polling, and the channel that announces them.

mod channel;
mod datagram;
mod poll;
mod poll_error;
mod queue;
mod wc_opcode;
mod wc_status;
mod work_completion;

pub use channel::{CompletionChannel, CqEvent};
pub use poll::{Completions, PollSlot, PolledCompletions};
pub use poll_error::PollError;
pub use queue::{CompletionQueue, CompletionQueueBuilder};
pub use wc_opcode::WcOpcode;
pub use wc_status::WcStatus;
pub use work_completion::{WorkCompletion, WorkError, WorkSuccess};
