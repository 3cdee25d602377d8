//! Requests that the checks of verbs-channel reject, at once or when they leave the backlog, come back with their buffers.

use fake_libibverbs::with;
use verbs_async::verbs_channel::{
    Channel, Incoming, Outgoing, OwnedBuffer, OwnedRequest, RejectReason, TransportError,
};
use verbs_async::{AsyncChannel, AsyncGroup};
use verbs_core::{ProtectionDomain, RemoteMemoryRegion};

use crate::bench::{Bench, Task, announce, done};
use crate::groups::posted;

/// The limits that the fake library grants here.
const MAX_MSG_SZ: usize = 128;
const MAX_INLINE: usize = 64;

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
        let group = AsyncGroup::new(builder.max_inline_data(64), 1, &bench.events).unwrap();
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
}

fn remote() -> RemoteMemoryRegion {
    RemoteMemoryRegion::new(0x1000, 1 << 40, 7).unwrap()
}

type Make = fn(OwnedBuffer) -> OwnedRequest;

const SEND: Make = |buffer| Outgoing::send(buffer).into();
const INLINE: Make = |buffer| Outgoing::send(buffer).inline().into();
const WRITE: Make = |buffer| Outgoing::write(buffer, remote()).into();
const READ: Make = |buffer| Incoming::read(buffer, remote()).into();

/// Each kind of request at its maximal length, and the rejection of a longer one.
const CASES: [(Make, usize, RejectReason); 4] = [
    (SEND, MAX_MSG_SZ, TOO_LONG),
    (WRITE, MAX_MSG_SZ, TOO_LONG),
    (READ, MAX_MSG_SZ, TOO_LONG),
    (
        INLINE,
        MAX_INLINE,
        RejectReason::InlineTooLong { len: 65, max: 64 },
    ),
];
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
    for (work, most, why) in CASES {
        let (result, buffer) = Task::new(gated.channel.run(work(gated.buffer(most + 1)))).ends();
        assert_rejected(result, why);
        assert_eq!(buffer.len(), most + 1);
        let works = vec![gated.send(), work(gated.buffer(most + 1))];
        let (result, works) = Task::new(gated.channel.batch(works)).ends();
        assert_rejected(result, why);
        assert_eq!(works[1].buffer().len(), most + 1);
        assert_eq!(posted(), [0; 0]);
    }
    let other = bench.context.alloc_pd().unwrap();
    let foreign = other.reg_mr(vec![0_u8; 8]).unwrap();
    let (result, buffer) = Task::new(gated.channel.run(WRITE(foreign.into()))).ends();
    assert_rejected(result, RejectReason::OtherDomain);
    assert_eq!(buffer.capacity(), 8);
}

#[test]
fn queued_request_is_checked_when_it_is_posted() {
    let bench = Bench::new();
    let gated = Gated::new(&bench);
    for (work, most, why) in CASES {
        let run = |work| Task::new(gated.channel.run(work));
        // The queue is full and one request waits: later requests wait behind it, unchecked.
        let sends = [gated.send(), gated.send(), gated.send()];
        let mut sent = sends.map(|send| run(send).waits());
        let mut one = run(work(gated.buffer(most + 1))).waits();
        let works = vec![gated.send(), work(gated.buffer(most + 1))];
        let mut batch = Task::new(gated.channel.batch(works)).waits();
        done(posted());
        announce(&bench);
        for sent in &mut sent[..2] {
            sent.ends().0.unwrap();
        }
        let (result, buffer) = one.ends();
        assert_rejected(result, why);
        assert_eq!(buffer.len(), most + 1);
        // The batch waits for room for two.
        assert_eq!(posted().len(), 3, "nothing else was posted");
        done(posted().last().copied());
        announce(&bench);
        sent[2].ends().0.unwrap();
        let (result, works) = batch.ends();
        assert_rejected(result, why);
        assert_eq!(works.len(), 2);
        assert_eq!(posted().len(), 3, "nothing more was posted");
        with(|library| library.posted.clear());
    }
}
