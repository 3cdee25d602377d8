//! Batches of work on owned buffers: one doorbell, one completion, one ticket.
#![expect(unsafe_code, reason = "hands buffers to the card that the slot keeps")]

use std::iter;

use verbs_core::{GatherElement, ScatterElement, SendWorkRequest, WorkRequest};

use crate::engine::{Engine, take};
use crate::error::{Refusal, Rejected};
use crate::owned::{Kept, OwnedWork, Said, Ticket};
use crate::slots::{Claim, Id, Keeper};
use crate::work::sealed::Sealed as _;
use crate::work::{Incoming, Outgoing};

/// The longest chains that are built on the stack: to make room for one costs as if it were full.
const SHORT: usize = 8;
const LONG: usize = 32;

impl Engine {
    /// Posts a batch, which goes into its slot.
    pub(crate) fn start_batch(
        &mut self,
        at: u32,
        mut works: Vec<OwnedWork>,
    ) -> Result<Ticket, Rejected<Vec<OwnedWork>>> {
        let posted = match works.len() {
            0 => Err(Refusal::EmptyBatch),
            len if len <= SHORT => self.post_within::<SHORT>(at, &mut works),
            len if len <= LONG => self.post_within::<LONG>(at, &mut works),
            len => {
                let mut elements: Vec<_> =
                    iter::repeat_with(ScatterElement::empty).take(len).collect();
                let mut requests: Vec<_> = iter::repeat_with(nothing).take(len).collect();
                self.post_works(at, &mut works, &mut elements, &mut requests)
            }
        };
        match posted {
            Ok(id) => {
                self.slots.keep(id, Kept::Batch(works));
                Ok(self.ticket(id))
            }
            Err(refusal) => Err(Rejected::new(refusal, works)),
        }
    }

    /// Posts a batch of at most `N`.
    fn post_within<const N: usize>(
        &mut self,
        at: u32,
        works: &mut [OwnedWork],
    ) -> Result<Id, Refusal> {
        let mut elements = [const { ScatterElement::empty() }; N];
        let mut requests = std::array::from_fn::<_, N, _>(|_| nothing());
        self.post_works(at, works, &mut elements, &mut requests)
    }

    /// Posts a batch, in room that is as long or longer.
    fn post_works<'a>(
        &mut self,
        at: u32,
        works: &'a mut [OwnedWork],
        elements: &'a mut [ScatterElement<'a>],
        requests: &mut [WorkRequest<'a>],
    ) -> Result<Id, Refusal> {
        let count = works.len();
        let rooms = elements.iter_mut().zip(requests.iter_mut());
        for ((work, (element, request)), left) in works.iter_mut().zip(rooms).zip((0..count).rev())
        {
            *element = work.buffer.element()?;
            let (wr_id, signaled) = (0, left == 0);
            let place = |made| *request = made;
            match work.said {
                Said::Outgoing(said) => Outgoing::request(element, said, wr_id, signaled, place)?,
                Said::Incoming(said) => Incoming::request(element, said, wr_id, signaled, place)?,
                Said::Receive => return Err(Refusal::ReceiveInBatch),
            }
        }
        let claim = Claim::send(at).times(count)?.kept_by(Keeper::Slot);
        let requests = requests.get_mut(..count).unwrap_or_default();
        // SAFETY: the slot keeps the buffers until the last is done, and so all are, and leaks them
        // if the queue pair cannot be destroyed; moving a buffer does not move its bytes.
        unsafe { self.post_chain(claim, requests) }
    }

    /// Posts a chain to a member's send queue, of which only the last request is signalled: one
    /// doorbell, and one slot for all. The claim is for as many.
    ///
    /// # Safety
    ///
    /// - As for [`post`](Self::post).
    unsafe fn post_chain(
        &mut self,
        claim: Claim,
        requests: &mut [WorkRequest<'_>],
    ) -> Result<Id, Refusal> {
        let Some((qp, id)) = take(&mut self.members, &mut self.slots, claim) else {
            return Err(self.why_not(claim));
        };
        if let Some((last, others)) = requests.split_last_mut() {
            last.set_wr_id(id.wr_id());
            for other in others {
                other.set_wr_id(id.member_wr_id());
            }
        }
        // SAFETY: the caller's promise; when the last of a chain is done, so are the others.
        match unsafe { qp.post(requests) } {
            Ok(()) => Ok(id),
            Err(error) => Err(self.refused(claim, id, Refusal::Post(error))),
        }
    }
}

/// A request in a place where none is yet.
fn nothing<'a>() -> WorkRequest<'a> {
    WorkRequest::from(SendWorkRequest::new::<GatherElement<'_>>(&mut []))
}
