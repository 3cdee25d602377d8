//! The interface of a ring and of its requests, as the driver needs it.

use verbs_channel::Queue;

use crate::task::deferred::LogLine;

/// A completion queue and the operations on it, which the driver drives.
///
/// An operation has a slot from its post until its outcome is taken.
pub(crate) trait Ring {
    /// Any kind of request.
    type Request: Request<Self>;
    /// The outcome of an operation.
    type Outcome;
    /// Identifies an operation that has a slot.
    type Ticket: Copy;
    /// Why a request is rejected.
    type RejectReason;
    /// Identifies a channel.
    type Channel: Copy;
    /// An object to be destroyed without the lock, by its drop.
    type Closing;

    /// The owner of the driver.
    type Owner;

    /// The slot of an operation: a number that is unique among operations that have a slot.
    fn slot(ticket: Self::Ticket) -> usize;

    /// How many slots there are: the [`slot`](Self::slot) of each operation is below it.
    fn slots(&self) -> usize;

    /// The channel of an operation.
    fn channel(ticket: Self::Ticket) -> Self::Channel;

    /// The index of a channel in a table: a number that is unique among open channels.
    fn index(channel: Self::Channel) -> usize;

    /// Whether [`next_completed`](Self::next_completed) returns an operation without a poll.
    fn has_completed(&self) -> bool;

    /// Returns each completed operation once. Polls if no more are known. `None` if the queue is
    /// empty.
    fn next_completed(&mut self) -> Option<Self::Ticket>;

    /// Takes the outcome of an operation if it is known to have completed. Does not poll.
    fn take(&mut self, ticket: Self::Ticket) -> Option<Self::Outcome>;

    /// Why a request is rejected whose backlog is full.
    fn full(queue: Queue) -> Self::RejectReason;

    /// Keeps the room that the channels share for the line: a request that needs some of it is
    /// [`Short`](Started::Short), until this is called with `false`.
    fn hold_room(&mut self, is_held: bool);

    /// Whether the channels share any room, held or not.
    fn has_common_room(&self) -> bool;

    /// Whether a message has arrived, of receives that channels share.
    fn has_message(&self) -> bool {
        false
    }

    /// Whether no message can come any more, as the ring has failed.
    fn has_no_more_messages(&self) -> bool {
        false
    }

    /// Whether [`next_failed`](Self::next_failed) returns a channel.
    fn has_failed(&self) -> bool {
        false
    }

    /// Returns each channel once that has gone down by a receive that channels share: none of its operations
    /// completes for that.
    fn next_failed(&mut self) -> Option<Self::Channel> {
        None
    }

    /// Whether nothing is in flight in this queue of a channel, or the channel is down.
    fn is_idle(&mut self, channel: Self::Channel, queue: Queue) -> bool;

    /// Whether [`next_log_line`](Self::next_log_line) or [`next_closing`](Self::next_closing) returns
    /// something.
    fn has_deferred(&self) -> bool;

    /// The next line for the log, to be written without the lock.
    fn next_log_line(&mut self) -> Option<LogLine>;

    /// The next that is to be dropped without the lock.
    fn next_closing(&mut self) -> Option<Self::Closing>;

    /// The owner of the driver, which can have a helper thread continue.
    fn owner(&self) -> Option<Self::Owner>;

    /// Has a helper thread call [`Driver::continue_waking`](super::Driver::continue_waking), without the
    /// lock. Returns whether one will.
    fn continue_elsewhere(owner: Self::Owner) -> bool;

    /// Arms the queue: the next completion raises an event. If that fails, all operations are
    /// aborted, at once or when what is [closing](Self::next_closing) has been destroyed. The error is
    /// to be logged without the lock.
    fn arm(&mut self) -> Result<(), Option<LogLine>>;
}

/// A ring whose channels share their receives.
pub(crate) trait SharedReceives: Ring {
    /// A message of one of the channels.
    type Message;

    /// The oldest message. Polls if there is none, and posts the blocks that are free.
    fn next_message(&mut self) -> Option<Self::Message>;

    /// Whether receives are missing for lack of blocks.
    fn needs_blocks(&self) -> bool;
}

/// The output of an operation's future.
pub(crate) trait End<R: Ring>: From<R::Outcome> {
    /// The output as the ring returns it, with less to move than `Self`.
    type Taken: Into<Self>;

    /// Takes the output if the operation has completed. Polls once at most. It may return `None`
    /// for any operation, whose outcome is then taken by [`Ring::take`].
    fn poll(ring: &mut R, ticket: R::Ticket) -> Option<Self::Taken>;
}

/// A request that can be posted to a ring.
pub(crate) trait Request<R: Ring + ?Sized>: Into<R::Request> {
    /// The queue of the channel that it is for.
    fn queue(&self) -> Queue;

    /// Posts the request. Takes its contents if it is posted, and leaves all of them if not.
    fn post(&mut self, ring: &mut R, channel: R::Channel) -> Started<R>;

    /// The outcome of a rejected request, with its contents.
    fn rejected(&mut self, reason: R::RejectReason) -> R::Outcome;
}

/// The result of posting a request.
pub(crate) enum Started<R: Ring + ?Sized> {
    /// It is in flight.
    Posted(R::Ticket),
    /// There was no room, but is now: it can be posted again.
    RoomMade,
    /// There is no room until another operation of its queue completes.
    Full,
    /// There is no room in what the channels share until an operation of any of them completes.
    Short,
    /// It cannot be posted.
    Rejected(R::RejectReason),
}

/// Where to find an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Submission<T> {
    /// In its slot: in flight or completed.
    Posted(T),
    /// In the driver's table: in the backlog, or posted from it, or rejected.
    Queued(usize),
}

/// The queues of a channel.
pub(super) const QUEUES: [Queue; 2] = [Queue::Send, Queue::Receive];
