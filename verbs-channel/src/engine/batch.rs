//! Batches of work on owned buffers: one doorbell, one completion, one ticket.
#![expect(
    unsafe_code,
    reason = "hands buffers to the device that the slot keeps"
)]

use std::mem::MaybeUninit;
use std::ptr;

use verbs_core::{Rejected, ScatterElement, WorkRequest};

use super::Engine;
use super::gate::Limits;
use super::member::Taken;
use super::slots::{BufferOwner, Reservation};
use super::ticket::{Kept, Ticket};
use crate::error::RejectReason;
use crate::request::sealed::Sealed as _;
use crate::request::{Incoming, Needs, Op, Outgoing, OwnedWork};

/// The longest chain that is built on the stack.
const LONG: usize = 32;

impl Engine {
    /// Posts a batch, which goes into its slot.
    pub(crate) fn start_batch_at(
        &mut self,
        at: u32,
        mut works: Vec<OwnedWork>,
    ) -> Result<Ticket, Rejected<Vec<OwnedWork>, RejectReason>> {
        let posted = match works.len() {
            0 => Err(RejectReason::EmptyBatch),
            len if len <= LONG => {
                let mut elements = [const { MaybeUninit::uninit() }; LONG];
                let mut requests = [const { MaybeUninit::uninit() }; LONG];
                self.post_works(at, &mut works, &mut elements, &mut requests)
            }
            len => {
                let (mut elements, mut requests) = (Vec::new(), Vec::new());
                elements.resize_with(len, MaybeUninit::uninit);
                requests.resize_with(len, MaybeUninit::uninit);
                self.post_works(at, &mut works, &mut elements, &mut requests)
            }
        };
        match posted {
            Ok(ticket) => {
                self.slots.keep(ticket.id, Kept::Batch(works));
                Ok(ticket)
            }
            Err(reason) => match self.end_half_posted(at, reason, Kept::Batch(works)) {
                Some(Kept::Batch(works)) => Err(Rejected::new(reason, works)),
                _ => Err(Rejected::new(reason, Vec::new())),
            },
        }
    }

    /// Posts a batch to a member's send queue, of which only the last request is signalled: one
    /// doorbell, and one slot for all. There are as many places, or more.
    #[inline]
    fn post_works<'a>(
        &mut self,
        at: u32,
        works: &'a mut [OwnedWork],
        elements: &'a mut [MaybeUninit<ScatterElement<'a>>],
        requests: &mut [MaybeUninit<WorkRequest<'a>>],
    ) -> Result<Ticket, RejectReason> {
        let reservation = Reservation::send(at)
            .times(works.len())?
            .owned_by(BufferOwner::Slot);
        let Some(member) = self.members.get_mut(at as usize) else {
            return Err(RejectReason::GONE);
        };
        let channel = member.id;
        let Some(Taken { qp, limits, id, .. }) = member.take(&mut self.slots, reservation) else {
            return Err(self.why_not(reservation));
        };
        let mut places = works.iter_mut().zip(elements).zip(requests.iter_mut());
        let last = places.next_back();
        // The last is apart, so that what all others have in common is looked at once.
        let built = build(places, limits, id.member_wr_id(), false)
            .and_then(|others| Ok(others + build(last.into_iter(), limits, id.wr_id(), true)?));
        let built = match built {
            Ok(built) => requests.get_mut(..built).unwrap_or_default(),
            Err(reason) => return Err(self.rejected(reservation, id, reason)),
        };
        let requests = ptr::from_mut(built) as *mut [WorkRequest<'_>];
        // SAFETY: as many were written to, from the first on.
        let requests = unsafe { &mut *requests };
        // SAFETY: the slot keeps the buffers until the last is done, and so all are, and leaks them
        // if the queue pair cannot be destroyed; moving a buffer does not move its bytes.
        match unsafe { qp.post(requests) } {
            Ok(()) => Ok(Ticket { channel, id }),
            Err(error) => Err(self.rejected(reservation, id, RejectReason::Post(error))),
        }
    }
}

/// Builds requests in the places they are posted from; how many.
#[inline(always)]
fn build<'a, 'p>(
    places: impl Iterator<
        Item = (
            (&'a mut OwnedWork, &'a mut MaybeUninit<ScatterElement<'a>>),
            &'p mut MaybeUninit<WorkRequest<'a>>,
        ),
    >,
    limits: &Limits,
    wr_id: u64,
    signaled: bool,
) -> Result<usize, RejectReason>
where
    'a: 'p,
{
    let mut built = 0;
    for ((work, element), request) in places {
        let element = element.write(work.buffer.element()?);
        let place = |made| {
            request.write(made);
        };
        match work.op {
            Op::Outgoing(options) => {
                let mut needs = Needs::default();
                Outgoing::add_needs(element, options, &mut needs);
                limits.check(&needs)?;
                Outgoing::request(element, options, wr_id, signaled, place)?;
            }
            Op::Incoming(options) => {
                let mut needs = Needs::default();
                Incoming::add_needs(element, options, &mut needs);
                limits.check(&needs)?;
                Incoming::request(element, options, wr_id, signaled, place)?;
            }
            Op::Receive => return Err(RejectReason::ReceiveInBatch),
        }
        built += 1;
    }
    Ok(built)
}
