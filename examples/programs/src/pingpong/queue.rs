//! The completions of a ping-pong, and what they lead to.

use std::time::{Duration, Instant};

use verbs_core::completion::CompletionChannel;
use verbs_core::{CompletionQueue, Context, PollSlot, WorkSuccess};

use super::options::Options;
use crate::{Context as _, Failure, Measured, Patience, Progress, say};

/// The `wr_id` of a receive, as in C.
pub const RECEIVE: u64 = 1;
/// The `wr_id` of a send, as in C.
pub const SEND: u64 = 2;

/// A completion queue, with a channel that announces its completions if they are to be slept for.
#[derive(Debug)]
#[non_exhaustive]
pub struct Queue {
    /// The completion queue.
    pub cq: CompletionQueue,
    channel: Option<CompletionChannel>,
}

impl Queue {
    /// Creates it, with room for `capacity` completions.
    ///
    /// # Errors
    ///
    /// The device refuses.
    pub fn new(context: &Context, options: &Options, capacity: u32) -> Result<Self, Failure> {
        let channel = options.events.then(|| CompletionChannel::create(context));
        let channel = channel.transpose()?;
        let cq = CompletionQueue::builder(context, capacity)
            .channel(channel.as_ref())
            .build()?;
        Ok(Self { cq, channel })
    }

    /// Asks for the first announcement, if completions are announced.
    ///
    /// # Errors
    ///
    /// The device refuses.
    pub fn arm(&self) -> Result<(), Failure> {
        if self.channel.is_some() {
            self.cq.req_notify(false)?;
        }
        Ok(())
    }

    /// Plays to the end, and returns how long it took. `completed` returns how many messages have been
    /// received and sent.
    ///
    /// # Errors
    ///
    /// An operation fails, or nothing completes for too long; or the error of `completed`.
    pub fn play(
        &self,
        options: &Options,
        mut completed: impl FnMut(WorkSuccess) -> Result<(u32, u32), Failure>,
    ) -> Result<Duration, Failure> {
        let Options { common, iters, .. } = options;
        let mut patience = Patience::new(common.limit(), None);
        let mut progress = Progress::new("messages", (*iters).into());
        let start = Instant::now();
        let mut slots = [const { PollSlot::new() }; 32];
        let (mut received, mut sent) = (0, 0);
        while received < *iters || sent < *iters {
            if let Some(channel) = &self.channel {
                let event = channel.get_cq_event(Some(common.limit()))?;
                let ready = event.ok_or_else(|| patience.over())?;
                ready.req_notify(false)?;
            }
            // After an event until nothing is left, else until something comes.
            loop {
                let completions = self.cq.poll(&mut slots)?;
                for completion in completions {
                    let success = completion.result();
                    (received, sent) = completed(success.context(|| doing(completion.wr_id()))?)?;
                }
                if !completions.is_empty() {
                    patience.renew();
                    progress.at(received.min(*iters).into());
                }
                if completions.is_empty() == self.channel.is_some() {
                    break;
                }
                if completions.is_empty() {
                    patience.idle()?;
                }
            }
        }
        Ok(start.elapsed())
    }
}

/// Name of the operation that has completed.
const fn doing(wr_id: u64) -> &'static str {
    match wr_id & (RECEIVE | SEND) {
        SEND => "sending",
        RECEIVE => "receiving (both ends need the same -s)",
        _ => "an unknown request",
    }
}

/// Prints C's output, and the client's rate.
///
/// # Errors
///
/// The output cannot be written.
pub fn finish(size: u64, options: &Options, took: Duration) -> Result<(), Failure> {
    let iters = u64::from(options.iters);
    let (bytes, seconds) = (size * iters * 2, took.as_secs_f64());
    let usec = seconds * 1e6;
    let megabits = bytes as f64 * 8.0 / usec;
    say(format_args!(
        "{bytes} bytes in {seconds:.2} seconds = {megabits:.2} Mbit/sec"
    ))?;
    let each = usec / iters as f64;
    say(format_args!(
        "{iters} iters in {seconds:.2} seconds = {each:.2} usec/iter"
    ))?;
    if options.common.host.is_some() {
        Measured::new("send", size, iters, took, options.chk).print()?;
    }
    Ok(())
}
