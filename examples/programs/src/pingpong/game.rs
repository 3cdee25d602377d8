//! The ping-pong itself: what is posted, and what its completions lead to.
#![expect(unsafe_code, reason = "posts work requests")]

use std::time::{Duration, Instant};

use verbs_core::completion::CompletionChannel;
use verbs_core::error::PostError;
use verbs_core::memory::Sge;
use verbs_core::{CompletionQueue, Context, PollSlot, ReceiveWorkRequest, WorkSuccess};

use super::buffers::Buffers;
use super::link::Link;
use super::options::Options;
use crate::{Context as _, Failure, Measured, Patience, Progress, say};

/// The `wr_id`s that distinguish completions, as in C.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// A game in progress.
pub(super) struct Game<'b> {
    // First, so that it is destroyed before the memory that the device accesses.
    link: Link,
    buffers: &'b Buffers,
    cq: CompletionQueue,
    channel: Option<CompletionChannel>,
    patience: Patience<'static>,
    options: &'b Options,
    posted: u32,
    received: u32,
    sent: u32,
    /// Operations that must complete before the next send: C's `pending`.
    underway: u64,
}

/// The queue, with a channel that announces its completions if they are to be slept for.
pub(super) fn completions(
    context: &Context,
    options: &Options,
) -> Result<(CompletionQueue, Option<CompletionChannel>), Failure> {
    let channel = options.events.then(|| CompletionChannel::create(context));
    let channel = channel.transpose()?;
    let cq = CompletionQueue::builder(context, options.rx_depth + 1)
        .channel(channel.as_ref())
        .build()?;
    Ok((cq, channel))
}

impl<'b> Game<'b> {
    /// A game for which `rx_depth` receives are posted.
    pub(super) fn new(
        link: Link,
        buffers: &'b Buffers,
        (cq, channel): (CompletionQueue, Option<CompletionChannel>),
        options: &'b Options,
    ) -> Self {
        Self {
            link,
            buffers,
            cq,
            channel,
            patience: Patience::new(options.common.limit(), None),
            options,
            posted: options.rx_depth,
            received: 0,
            sent: 0,
            underway: RECEIVE,
        }
    }

    /// Plays to the end, and prints how it went.
    pub(super) fn run(mut self) -> Result<(), Failure> {
        let Options { common, iters, .. } = self.options;
        let (size, iters) = (self.buffers.size() as u64, u64::from(*iters));
        let took = self.play(common.host.is_some())?;
        self.link.close()?;
        report((size, iters), took)?;
        if common.host.is_some() {
            Measured::new("send", size, iters, took, self.options.chk).print()?;
        }
        Ok(())
    }

    /// Plays to the end, and returns how long it took. The client begins.
    fn play(&mut self, begin: bool) -> Result<Duration, Failure> {
        let iters = self.options.iters;
        if begin {
            self.send()?;
        }
        let mut progress = Progress::new("messages", iters.into());
        let start = Instant::now();
        let mut slots = [const { PollSlot::new() }; 2];
        while self.received < iters || self.sent < iters {
            if let Some(channel) = &self.channel {
                let event = channel.get_cq_event(Some(self.options.common.limit()))?;
                let ready = event.ok_or_else(|| self.patience.over())?;
                ready.req_notify(false)?;
            }
            // After an event until nothing is left, else until something comes.
            loop {
                let completions = self.cq.poll(&mut slots)?;
                for completion in completions {
                    let success = completion.result();
                    self.completed(success.context(|| doing(completion.wr_id()))?)?;
                }
                if !completions.is_empty() {
                    self.patience.renew();
                    progress.at(self.received.into());
                }
                if completions.is_empty() == self.channel.is_some() {
                    break;
                }
                if completions.is_empty() {
                    self.patience.idle()?;
                }
            }
        }
        Ok(start.elapsed())
    }

    fn completed(&mut self, success: WorkSuccess) -> Result<(), Failure> {
        match success.wr_id() {
            SEND => self.sent += 1,
            RECEIVE => self.has_come(success)?,
            other => {
                return Err(Failure::new(format!(
                    "completion for unknown wr_id {other}"
                )));
            }
        }
        self.underway &= !success.wr_id();
        if self.sent < self.options.iters && self.underway == 0 {
            self.send()?;
        }
        Ok(())
    }

    fn has_come(&mut self, success: WorkSuccess) -> Result<(), Failure> {
        let (came, expected) = (success.byte_len() as usize, self.buffers.comes_with());
        if came != expected {
            let size = self.buffers.size();
            let came = (came + size).saturating_sub(expected);
            return Err(Failure::new(format!(
                "a message of {came} bytes came, not of {size}: both ends need the same -s"
            )));
        }
        self.received += 1;
        if self.options.chk {
            self.buffers.check(self.received)?;
        }
        self.posted -= 1;
        if self.posted <= 1 {
            let missing = self.options.rx_depth - self.posted;
            let mut element = Sge::from(self.buffers.receive()?);
            receive(&mut element, missing, |receive| {
                // SAFETY: `self` borrows `buffers` for longer than it has the queue pair; the
                // receive buffer is a shared region, of which only copies are taken.
                unsafe { self.link.receive(receive) }
            })?;
            self.posted += missing;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Failure> {
        let element = self.buffers.send()?;
        // SAFETY: `self` borrows `buffers` for longer than it has the queue pair, so nothing writes
        // to the send buffer.
        unsafe { self.link.send(element, SEND) }?;
        self.underway = SEND | RECEIVE;
        Ok(())
    }
}

/// Name of the operation that has completed.
const fn doing(wr_id: u64) -> &'static str {
    match wr_id {
        SEND => "sending",
        RECEIVE => "receiving (both ends need the same -s)",
        _ => "an unknown request",
    }
}

/// Posts the receive `count` times, as C does: all of them into the same buffer.
pub(super) fn receive(
    element: &mut Sge,
    count: u32,
    mut post: impl FnMut(&mut ReceiveWorkRequest<'_>) -> Result<(), PostError>,
) -> Result<(), PostError> {
    let mut request = ReceiveWorkRequest::new(element).wr_id(RECEIVE);
    (0..count).try_for_each(|_| post(&mut request))
}

/// C's output.
fn report((size, iters): (u64, u64), took: Duration) -> Result<(), Failure> {
    let (bytes, seconds) = (size * iters * 2, took.as_secs_f64());
    let usec = seconds * 1e6;
    let megabits = bytes as f64 * 8.0 / usec;
    say(format_args!(
        "{bytes} bytes in {seconds:.2} seconds = {megabits:.2} Mbit/sec"
    ))?;
    let each = usec / iters as f64;
    say(format_args!(
        "{iters} iters in {seconds:.2} seconds = {each:.2} usec/iter"
    ))
}
