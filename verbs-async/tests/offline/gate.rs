//! Requests that the checks of verbs-channel reject, at once or when they leave the backlog, come back with their buffers.

use fake_libibverbs::with;
use verbs_async::verbs_channel::{
    Channel, Outgoing, OwnedBuffer, OwnedRequest, RejectReason, TransportError,
};
use verbs_async::{AsyncChannel, AsyncGroup};
use verbs_core::ProtectionDomain;

use crate::bench::{Bench, Task, announce, done};
use crate::groups::posted;

/// A channel with room for two requests in each queue.
struct Gated {
    _group: AsyncGroup,
    channel: AsyncChannel,
    pd: ProtectionDomain,
}

impl Gated {
    fn new(bench: &Bench) -> Self {
        with(|library| library.ports[0].attr.max_msg_sz = 128);
        let pd = bench.context.alloc_pd().unwrap();
        let builder = Channel::builder(&pd).max_send_wr(2).max_recv_wr(2);
        let group = AsyncGroup::new(builder, 1, &bench.events).unwrap();
        let member = group.prepare().unwrap();
        let peer = member.endpoint();
        let channel = group.join(member.handshake(&peer).unwrap()).unwrap();
        Self {
            _group: group,
            channel,
            pd,
        }
    }

    fn buffer(&self, len: usize) -> OwnedBuffer {
        self.pd.reg_mr(vec![0_u8; len]).unwrap().into()
    }

    fn send(&self) -> OwnedRequest {
        Outgoing::send(self.buffer(8)).into()
    }

    /// A byte longer than a message may be.
    fn long(&self) -> OwnedRequest {
        Outgoing::send(self.buffer(129)).into()
    }
}

const TOO_LONG: RejectReason = RejectReason::MessageTooLong { len: 129, max: 128 };

#[track_caller]
fn assert_rejected<T>(result: Result<T, TransportError>, why: RejectReason) {
    let wrong = with(|library| std::mem::take(&mut library.wrong));
    assert_eq!(wrong, [""; 0], "the driver got it");
    match result {
        Err(TransportError::Rejected(found)) => assert_eq!(found, why),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was posted"),
    }
}

#[test]
fn request_that_is_rejected_at_once_comes_back() {
    let bench = Bench::new();
    let gated = Gated::new(&bench);
    let (result, buffer) = Task::new(gated.channel.run(gated.long())).ends();
    assert_rejected(result, TOO_LONG);
    assert_eq!(buffer.len(), 129);
    let works = vec![gated.send(), gated.long()];
    let (result, works) = Task::new(gated.channel.batch(works)).ends();
    assert_rejected(result, TOO_LONG);
    assert_eq!(works[1].buffer().len(), 129);
    let other = bench.context.alloc_pd().unwrap();
    let foreign = other.reg_mr(vec![0_u8; 8]).unwrap();
    let (result, buffer) = Task::new(gated.channel.send(foreign)).ends();
    assert_rejected(result, RejectReason::OtherDomain);
    assert_eq!(buffer.capacity(), 8);
    assert_eq!(posted(), [0; 0]);
}

#[test]
fn queued_request_is_checked_when_it_is_posted() {
    let bench = Bench::new();
    let gated = Gated::new(&bench);
    let run = |work| Task::new(gated.channel.run(work));
    // The queue is full and one request waits: later requests wait behind it, unchecked.
    let mut sent = [(); 3].map(|()| run(gated.send()).waits());
    let mut one = run(gated.long()).waits();
    let works = vec![gated.send(), gated.long()];
    let mut batch = Task::new(gated.channel.batch(works)).waits();
    done(posted());
    announce(&bench);
    for sent in &mut sent[..2] {
        sent.ends().0.unwrap();
    }
    let (result, buffer) = one.ends();
    assert_rejected(result, TOO_LONG);
    assert_eq!(buffer.len(), 129);
    // The batch waits for room for two.
    assert_eq!(posted().len(), 3, "nothing else was posted");
    done(posted().last().copied());
    announce(&bench);
    sent[2].ends().0.unwrap();
    let (result, works) = batch.ends();
    assert_rejected(result, TOO_LONG);
    assert_eq!(works.len(), 2);
    assert_eq!(posted().len(), 3, "nothing more was posted");
}
