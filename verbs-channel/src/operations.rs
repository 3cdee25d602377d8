//! Everything that can be done on a channel, whether it is one of its own or one of a group.
#![expect(unsafe_code, reason = "hands the contract of a post on to the caller")]

use std::time::Duration;

use verbs_core::{
    CompletionQueue, ProtectionDomain, QueuePairEndpoint, RemoteMemoryRegion, WorkSuccess,
};

use crate::channel::{Channel, ChannelMut};
use crate::error::{DownReason, Rejected, Result, ScopeError};
#[expect(unused_imports, reason = "named in documentation")]
use crate::error::{Error, Refusal};
use crate::list::{GatherList, ScatterList};
use crate::owned::{Completed, OwnedBuffer, OwnedOp, Ticket};
use crate::scope::{self, PollingScope};
use crate::slots::{Claim, Keeper};
use crate::work::{Incoming, Outgoing, Work};

macro_rules! operations {
    ($([$($generics:tt)*] $channel:ty,)*) => {$(
        impl<$($generics)*> $channel {
            /// Sends, and waits until the peer's card has it.
            ///
            /// # Errors
            ///
            /// [`Error::Refused`] if it was not posted; [`Error::Transport`] if it failed, or was not
            /// done within the channel's timeout: then the channel has been aborted, and is down.
            pub fn send(&mut self, list: impl GatherList) -> Result<()> {
                self.run(Outgoing::send(list)).map(drop)
            }

            /// [`send`](Self::send) with a timeout of its own.
            ///
            /// # Errors
            ///
            /// As [`send`](Self::send).
            pub fn send_timeout(&mut self, list: impl GatherList, timeout: Duration) -> Result<()> {
                self.run_timeout(Outgoing::send(list), timeout).map(drop)
            }

            /// Receives, and waits for the peer's message: its
            /// [length](WorkSuccess::byte_len) and [immediate data](WorkSuccess::imm_data) come back.
            ///
            /// # Errors
            ///
            /// As [`send`](Self::send).
            pub fn receive(&mut self, list: impl ScatterList) -> Result<WorkSuccess> {
                let (engine, at) = self.parts();
                engine.run_receive(at, list, None)
            }

            /// [`receive`](Self::receive) with a timeout of its own.
            ///
            /// # Errors
            ///
            /// As [`send`](Self::send).
            pub fn receive_timeout(
                &mut self,
                list: impl ScatterList,
                timeout: Duration,
            ) -> Result<WorkSuccess> {
                let (engine, at) = self.parts();
                engine.run_receive(at, list, Some(timeout))
            }

            /// Writes to where `remote` begins, and waits until the peer's card has it.
            ///
            /// # Errors
            ///
            /// As [`send`](Self::send); [`Refusal::RemoteTooShort`] if it would reach past the end
            /// of `remote`.
            pub fn write(&mut self, list: impl GatherList, remote: RemoteMemoryRegion) -> Result<()> {
                self.run(Outgoing::write(list, remote)).map(drop)
            }

            /// [`write`](Self::write) with a timeout of its own.
            ///
            /// # Errors
            ///
            /// As [`write`](Self::write).
            pub fn write_timeout(
                &mut self,
                list: impl GatherList,
                remote: RemoteMemoryRegion,
                timeout: Duration,
            ) -> Result<()> {
                self.run_timeout(Outgoing::write(list, remote), timeout).map(drop)
            }

            /// Reads from where `remote` begins, and waits until the bytes are here.
            ///
            /// # Errors
            ///
            /// As [`write`](Self::write).
            pub fn read(&mut self, list: impl ScatterList, remote: RemoteMemoryRegion) -> Result<()> {
                self.run(Incoming::read(list, remote)).map(drop)
            }

            /// [`read`](Self::read) with a timeout of its own.
            ///
            /// # Errors
            ///
            /// As [`write`](Self::write).
            pub fn read_timeout(
                &mut self,
                list: impl ScatterList,
                remote: RemoteMemoryRegion,
                timeout: Duration,
            ) -> Result<()> {
                self.run_timeout(Incoming::read(list, remote), timeout).map(drop)
            }

            /// If the 8 bytes at `remote` are `compare`, they become `swap`. What they were is in
            /// the list, one element of 8 bytes, when this returns.
            ///
            /// # Errors
            ///
            /// As [`send`](Self::send); [`Refusal::Misaligned`], [`Refusal::RemoteTooShort`].
            pub fn compare_swap(
                &mut self,
                before: impl ScatterList,
                remote: RemoteMemoryRegion,
                compare: u64,
                swap: u64,
            ) -> Result<()> {
                self.run(Incoming::compare_and_swap(before, remote, compare, swap)).map(drop)
            }

            /// [`compare_swap`](Self::compare_swap) with a timeout of its own.
            ///
            /// # Errors
            ///
            /// As [`compare_swap`](Self::compare_swap).
            pub fn compare_swap_timeout(
                &mut self,
                before: impl ScatterList,
                remote: RemoteMemoryRegion,
                compare: u64,
                swap: u64,
                timeout: Duration,
            ) -> Result<()> {
                let work = Incoming::compare_and_swap(before, remote, compare, swap);
                self.run_timeout(work, timeout).map(drop)
            }

            /// Adds to the 8 bytes at `remote`. What they were is in the list, one element of 8
            /// bytes, when this returns.
            ///
            /// # Errors
            ///
            /// As [`compare_swap`](Self::compare_swap).
            pub fn fetch_add(
                &mut self,
                before: impl ScatterList,
                remote: RemoteMemoryRegion,
                add: u64,
            ) -> Result<()> {
                self.run(Incoming::fetch_and_add(before, remote, add)).map(drop)
            }

            /// [`fetch_add`](Self::fetch_add) with a timeout of its own.
            ///
            /// # Errors
            ///
            /// As [`compare_swap`](Self::compare_swap).
            pub fn fetch_add_timeout(
                &mut self,
                before: impl ScatterList,
                remote: RemoteMemoryRegion,
                add: u64,
                timeout: Duration,
            ) -> Result<()> {
                self.run_timeout(Incoming::fetch_and_add(before, remote, add), timeout).map(drop)
            }

            /// Runs work with everything that can be said about it, an [`Outgoing`] or an
            /// [`Incoming`], and waits until it is done.
            ///
            /// # Errors
            ///
            /// As [`send`](Self::send).
            pub fn run(&mut self, work: impl Work) -> Result<WorkSuccess> {
                let (engine, at) = self.parts();
                engine.run(at, work, None)
            }

            /// [`run`](Self::run) with a timeout of its own.
            ///
            /// # Errors
            ///
            /// As [`send`](Self::send).
            pub fn run_timeout(&mut self, work: impl Work, timeout: Duration) -> Result<WorkSuccess> {
                let (engine, at) = self.parts();
                engine.run(at, work, Some(timeout))
            }

            /// Runs a batch, one doorbell and one completion for all of it, and waits until it is
            /// done.
            ///
            /// # Errors
            ///
            /// As [`send`](Self::send); [`Refusal::BatchTooLong`] for more than the send queue can
            /// ever hold.
            pub fn run_batch<const N: usize>(&mut self, works: [impl Work; N]) -> Result<()> {
                let (engine, at) = self.parts();
                engine.run_batch(at, works, None)
            }

            /// Opens a scope, in the shape of [`std::thread::scope`]: work that is posted in it
            /// borrows its buffers until it ends, and it ends when the card is done with all of them.
            ///
            /// - If the closure returns, the scope waits for what is left, up to the channel's
            ///   timeout.
            /// - If it returns an error, or panics, what is left gets the drain timeout; receives
            ///   alone get none. What is not done by then is aborted, and the channel is down.
            ///
            /// # Errors
            ///
            /// [`ScopeError::ClosureError`] with the closure's error;
            /// [`ScopeError::AutoPollError`] if work whose result it did not take has failed.
            pub fn scope<'env, T, E>(
                &'env mut self,
                closure: impl for<'scope> FnOnce(&'scope PollingScope<'scope, 'env>) -> Result<T, E>,
            ) -> Result<T, ScopeError<E>> {
                let (engine, at) = self.parts();
                scope::scope(engine, at, closure)
            }

            /// A [`scope`](Self::scope) whose closure takes every result itself: what it leaves is
            /// not waited for but aborted, and is an error.
            ///
            /// # Errors
            ///
            /// As [`scope`](Self::scope).
            pub fn manual_scope<'env, T, E>(
                &'env mut self,
                closure: impl for<'scope> FnOnce(&'scope PollingScope<'scope, 'env>) -> Result<T, E>,
            ) -> Result<T, ScopeError<E>> {
                let (engine, at) = self.parts();
                scope::manual_scope(engine, at, closure)
            }

            /// Starts to send an owned buffer's range. It comes back with the result, by its ticket,
            /// in any order.
            ///
            /// # Errors
            ///
            /// [`Rejected`], with the buffer: the queue is full, or the channel down.
            pub fn start_send(
                &mut self,
                buffer: impl Into<OwnedBuffer>,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                self.start(buffer.into(), OwnedOp::Send(None))
            }

            /// [`start_send`](Self::start_send) with 32 bits for the peer's completion.
            ///
            /// # Errors
            ///
            /// As [`start_send`](Self::start_send).
            pub fn start_send_with_immediate(
                &mut self,
                buffer: impl Into<OwnedBuffer>,
                imm_data: u32,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                self.start(buffer.into(), OwnedOp::Send(Some(imm_data)))
            }

            /// Starts to receive into an owned buffer's range.
            ///
            /// # Errors
            ///
            /// As [`start_send`](Self::start_send).
            pub fn start_receive(
                &mut self,
                buffer: impl Into<OwnedBuffer>,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                self.start(buffer.into(), OwnedOp::Receive)
            }

            /// Starts to write an owned buffer's range to where `remote` begins.
            ///
            /// # Errors
            ///
            /// As [`start_send`](Self::start_send); [`Refusal::RemoteTooShort`].
            pub fn start_write(
                &mut self,
                buffer: impl Into<OwnedBuffer>,
                remote: RemoteMemoryRegion,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                self.start(buffer.into(), OwnedOp::Write(remote, None))
            }

            /// [`start_write`](Self::start_write) with 32 bits for the peer's completion.
            ///
            /// # Errors
            ///
            /// As [`start_write`](Self::start_write).
            pub fn start_write_with_immediate(
                &mut self,
                buffer: impl Into<OwnedBuffer>,
                remote: RemoteMemoryRegion,
                imm_data: u32,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                self.start(buffer.into(), OwnedOp::Write(remote, Some(imm_data)))
            }

            /// Starts to read into an owned buffer's range, from where `remote` begins.
            ///
            /// # Errors
            ///
            /// As [`start_write`](Self::start_write).
            pub fn start_read(
                &mut self,
                buffer: impl Into<OwnedBuffer>,
                remote: RemoteMemoryRegion,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                self.start(buffer.into(), OwnedOp::Read(remote))
            }

            /// The result and the buffer of an operation, if it is done; polls once if it is not.
            ///
            /// # Errors
            ///
            /// [`Error::StaleTicket`] if they were taken before, or the ticket is another channel's.
            pub fn poll(&mut self, ticket: Ticket) -> Result<Option<Completed>> {
                self.parts().0.poll_ticket(ticket)
            }

            /// The result and the buffer of an operation, waited for; `None` if `timeout` passes
            /// first. It goes on then, and can be waited for again. Without a timeout it waits for
            /// ever.
            ///
            /// # Errors
            ///
            /// As [`poll`](Self::poll).
            pub fn wait(
                &mut self,
                ticket: Ticket,
                timeout: Option<Duration>,
            ) -> Result<Option<Completed>> {
                self.parts().0.wait_ticket(ticket, timeout)
            }

            /// Posts work whose buffers the caller keeps, and returns a ticket for it.
            ///
            /// The base for other layers. [`poll`](Self::poll) and [`wait`](Self::wait) take the
            /// result; its [`buffer`](Completed::buffer) is `None`.
            ///
            /// # Errors
            ///
            /// As [`start_write`](Self::start_write), with the work.
            ///
            /// # Safety
            ///
            /// From now until the result has been taken, or the channel has been dropped:
            ///
            /// - what the work names stays registered and allocated;
            /// - nobody writes to what it sends from, and nobody touches what it reads into.
            ///
            /// If the driver refuses to destroy a queue pair, the log says so, and the card may
            /// still touch the buffers after that.
            pub unsafe fn post_unpolled<W: Work>(&mut self, work: W) -> Result<Ticket, Rejected<W>> {
                let (engine, at) = self.parts();
                let (mut list, said) = work.into_parts();
                let claim = Claim::send(at).kept_by(Keeper::Caller);
                // SAFETY: the caller's promise.
                match unsafe { engine.post::<W>(claim, &mut list, said) } {
                    Ok(id) => Ok(engine.ticket(id)),
                    Err(refusal) => Err(Rejected::new(refusal, W::from_parts(list, said))),
                }
            }

            /// Posts a receive whose buffers the caller keeps: as
            /// [`post_unpolled`](Self::post_unpolled).
            ///
            /// # Errors
            ///
            /// As [`start_send`](Self::start_send), with the list.
            ///
            /// # Safety
            ///
            /// As [`post_unpolled`](Self::post_unpolled).
            pub unsafe fn post_receive_unpolled<L: ScatterList>(
                &mut self,
                mut list: L,
            ) -> Result<Ticket, Rejected<L>> {
                let (engine, at) = self.parts();
                let claim = Claim::receive(at).kept_by(Keeper::Caller);
                // SAFETY: the caller's promise.
                match unsafe { engine.post_receive(claim, &mut list) } {
                    Ok(id) => Ok(engine.ticket(id)),
                    Err(refusal) => Err(Rejected::new(refusal, list)),
                }
            }

            /// Gives the channel up: everything in flight is aborted, and it is down.
            ///
            /// The results of owned buffers can still be taken.
            pub fn abort(&mut self) {
                let (engine, at) = self.parts();
                engine.abort(at, DownReason::Closed);
            }

            /// Whether it takes no more work.
            #[must_use]
            pub fn is_down(&self) -> bool {
                self.down_reason().is_some()
            }

            /// Why it takes no more work, if it does not.
            #[must_use]
            pub fn down_reason(&self) -> Option<DownReason> {
                let (engine, at) = self.shared();
                engine.members.get(at as usize)?.down
            }

            /// The protection domain whose regions it works on.
            #[must_use]
            pub const fn pd(&self) -> &ProtectionDomain {
                self.shared().0.pd()
            }

            /// The queue that its work completes on.
            #[must_use]
            pub const fn cq(&self) -> &CompletionQueue {
                self.shared().0.cq()
            }

            /// What the peer knows of this side; `None` once the queue pair has been destroyed.
            #[must_use]
            pub fn endpoint(&self) -> Option<&QueuePairEndpoint> {
                let (engine, at) = self.shared();
                let member = engine.members.get(at as usize)?;
                member.qp.as_ref().map(verbs_core::QueuePair::endpoint)
            }

            fn start(
                &mut self,
                buffer: OwnedBuffer,
                op: OwnedOp,
            ) -> Result<Ticket, Rejected<OwnedBuffer>> {
                let (engine, at) = self.parts();
                engine.start(at, buffer, op)
            }
        }
    )*};
}

operations! {
    [] Channel,
    ['g] ChannelMut<'g>,
}
