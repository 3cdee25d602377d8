//! What the driver asks of a ring and of the work that is posted to it.

/// What is driven: a completion queue and what is posted to it.
pub(crate) trait Ring {
    /// What to do: all kinds of it in one.
    type Work: Work<Self>;
    /// How it ended.
    type Outcome;
    /// Names work that is in flight.
    type Ticket: Copy;

    /// A number for work that is in flight, which no other has at the time.
    fn slot(ticket: Self::Ticket) -> usize;

    /// Whether [`next_done`](Self::next_done) has something without a poll.
    fn has_done(&self) -> bool;

    /// Takes something that is done; polls if it knows of nothing. `None` if the queue is empty.
    fn next_done(&mut self) -> Option<Done<Self>>;

    /// Has the next completion announced. If that fails, it gives up: everything is done then.
    fn arm(&mut self);
}

/// What can be posted to a ring.
pub(crate) trait Work<R: Ring + ?Sized>: Into<R::Work> {
    /// Which of the channel's two queues it is for.
    fn queue(&self) -> usize;

    /// Posts it, and leaves nothing of it; or all of it, if there is no place for it.
    fn post(&mut self, ring: &mut R, channel: usize) -> Started<R>;
}

/// What became of work that was to be posted.
pub(crate) enum Started<R: Ring + ?Sized> {
    /// It is in flight.
    Posted(R::Ticket),
    /// There is no place for it yet.
    Full,
    /// It can't be done.
    Refused(R::Outcome),
}

/// Something that is done.
pub(crate) struct Done<R: Ring + ?Sized> {
    pub(crate) ticket: R::Ticket,
    pub(crate) outcome: R::Outcome,
}
