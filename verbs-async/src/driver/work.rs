//! What the driver asks of a ring and of the work that is posted to it.

use crate::deferred::LogLine;

/// What is driven: a completion queue and what is posted to it.
///
/// Work has a slot of it from its post until its outcome has been taken.
pub(crate) trait Ring {
    /// What to do: all kinds of it in one.
    type Work: Work<Self>;
    /// How it ended.
    type Outcome;
    /// Names work that has a slot.
    type Ticket: Copy;
    /// Why work can't be done.
    type Refusal;
    /// Names a channel.
    type Channel: Copy;

    /// The slot: a number that no other work has at the time.
    fn slot(ticket: Self::Ticket) -> usize;

    /// The channel it was posted on.
    fn channel(ticket: Self::Ticket) -> Self::Channel;

    /// The place of a channel in a table: a number that no other channel has at the time.
    fn index(channel: Self::Channel) -> usize;

    /// Whether [`next_completed`](Self::next_completed) has something without a poll.
    fn has_completed(&self) -> bool;

    /// Names something that has ended, once; polls if it knows of nothing. `None` if the queue is
    /// empty.
    fn next_completed(&mut self) -> Option<Self::Ticket>;

    /// Takes the outcome of work, if it is known to have ended; polls nothing.
    fn take(&mut self, ticket: Self::Ticket) -> Option<Self::Outcome>;

    /// Why nothing more waits for a place in this queue.
    fn full(queue: usize) -> Self::Refusal;

    /// Whether nothing is in flight in this queue of a channel.
    fn is_idle(&mut self, channel: Self::Channel, queue: usize) -> bool;

    /// Whether [`next_log_line`](Self::next_log_line) has something.
    fn has_log_lines(&self) -> bool;

    /// A line for the log, to be written where nothing is locked.
    fn next_log_line(&mut self) -> Option<LogLine>;

    /// Arms the queue: the next completion raises an event. If that fails, all operations are aborted,
    /// and this is to be logged where nothing is locked.
    fn arm(&mut self) -> Result<(), LogLine>;
}

/// How an operation ends, as its future tells it.
pub(crate) trait End<R: Ring>: From<R::Outcome> {
    /// An end as it comes from the ring: less to move than `Self`.
    type Taken: Into<Self>;

    /// Takes it from the ring if it is there; polls once at most. It may give up on any, which come as
    /// the ring's outcomes then.
    fn poll(ring: &mut R, ticket: R::Ticket) -> Option<Self::Taken>;
}

/// What can be posted to a ring.
pub(crate) trait Work<R: Ring + ?Sized>: Into<R::Work> {
    /// Which of the channel's two queues it is for.
    fn queue(&self) -> usize;

    /// Posts it, and leaves nothing of it; or all of it.
    fn post(&mut self, ring: &mut R, channel: R::Channel) -> Started<R>;

    /// The outcome of work that was refused, with all of it.
    fn refused(&mut self, refusal: R::Refusal) -> R::Outcome;
}

/// What became of work that was to be posted.
pub(crate) enum Started<R: Ring + ?Sized> {
    /// It is in flight.
    Posted(R::Ticket),
    /// There is no place for it until something else in its queue has ended.
    Full,
    /// It can't be done.
    Refused(R::Refusal),
}

/// Where work that has submission is found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Submission<T> {
    /// In its slot, in flight or ended.
    Posted(T),
    /// In line, or where that says it went.
    Queued(usize),
}
