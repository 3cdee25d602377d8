//! Groups whose channels share their receives: messages reach their channel, and no block is lost.

use std::time::{Duration, Instant};

use fake_libibverbs::with;
use verbs_channel::__private::DatagramEngine;
use verbs_channel::engine::ConnectedMember;
use verbs_channel::verbs_core::codes::WcStatus;
use verbs_channel::verbs_core::error::ErrorKind;
use verbs_channel::verbs_core::verbs_sys::{
    IBV_WC_LOC_LEN_ERR, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS, IBV_WC_WITH_IMM,
    ibv_wc, ibv_wc_status,
};
use verbs_channel::verbs_core::{Error as CoreError, ProtectionDomain};
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, DownReason, Error, Message, PollStrategy,
    PoolBuffer, RejectReason, TransportError,
};
use verbs_harness::{PATIENCE, until};

use crate::fake_device::{bounded, forget_the_past, pd, posted, succeeds};

const SOON: Option<Duration> = Some(Duration::from_millis(20));

/// A group with shared receives and channels, the channels' ids, and the numbers of their queue
/// pairs.
pub(crate) struct Shared {
    pub(crate) group: ChannelGroup,
    pub(crate) pool: BufferPool,
    pub(crate) pd: ProtectionDomain,
    pub(crate) channels: Vec<(ChannelId, u32)>,
}

impl Shared {
    pub(crate) fn new(blocks: usize, count: u32, channels: usize) -> Self {
        let pd = pd();
        let pool = BufferPool::new(&pd, 64, blocks).unwrap();
        let builder = Channel::builder(&pd).max_send_wr(4);
        let builder = builder.shared_receives(&pool, count);
        let mut group = builder.group(8).unwrap();
        let channels = (0..channels)
            .map(|_| {
                let (member, qp_num) = connected(&group);
                (group.join(member).unwrap(), qp_num)
            })
            .collect();
        Self {
            group,
            pool,
            pd,
            channels,
        }
    }

    /// The device receives a message into the receive that was posted as this one, on the channel with
    /// this number. It has two bytes: both numbers.
    pub(crate) fn arrives(&self, receive: usize, channel: usize) {
        let bytes = [receive, channel].map(|number| u8::try_from(number).unwrap());
        receives(posted()[receive], self.channels[channel].1, &bytes);
    }

    /// The block of a message, after which the queue needs one.
    fn next_block(&mut self) -> PoolBuffer {
        self.arrives(0, 0);
        let message = self.next();
        message.buffer.into_block().unwrap()
    }

    pub(crate) fn next(&mut self) -> Message {
        self.group.next_message().expect("a message has arrived")
    }
}

/// A connected channel that has not joined, and the number of its queue pair.
pub(crate) fn connected(group: &ChannelGroup) -> (ConnectedMember, u32) {
    let prepared = group.prepare().unwrap();
    let endpoint = prepared.endpoint();
    (prepared.handshake(&endpoint).unwrap(), endpoint.qp_num())
}

pub(crate) fn receives(wr_id: u64, qp_num: u32, bytes: &[u8]) {
    assert!(fake_libibverbs::deliver(wr_id, bytes));
    let done = ibv_wc {
        wr_id,
        qp_num,
        opcode: IBV_WC_RECV,
        byte_len: u32::try_from(bytes.len()).unwrap(),
        status: IBV_WC_SUCCESS,
        ..Default::default()
    };
    with(|library| library.done.push_back(done));
}

pub(crate) fn fails(wr_id: u64, qp_num: u32, status: ibv_wc_status) {
    let done = ibv_wc {
        wr_id,
        qp_num,
        status,
        ..Default::default()
    };
    with(|library| library.done.push_back(done));
}

/// How many receives each doorbell posted.
fn doorbells() -> Vec<usize> {
    with(|library| library.posted.iter().map(Vec::len).collect())
}

#[test]
fn many_receives_are_posted_with_one_doorbell() {
    let mut shared = Shared::new(64, 40, 1);
    assert_eq!(doorbells(), [16, 16, 8]);
    assert_eq!(shared.pool.available(), 24);
    let first = posted();
    forget_the_past();
    for wr_id in &first[..16] {
        receives(*wr_id, shared.channels[0].1, b"hi");
    }
    for _ in 0..16 {
        drop(shared.next());
    }
    assert_eq!(doorbells(), [16], "one for the 16 that were dropped");
    assert_eq!(shared.pool.available(), 24);
}

#[test]
fn queue_that_is_half_empty_is_refilled_as_messages_are_taken() {
    let mut shared = Shared::new(64, 4, 1);
    for receive in 0..3 {
        shared.arrives(receive, 0);
    }
    drop(shared.next());
    assert_eq!(
        doorbells(),
        [4],
        "one place is free, and one receive is posted"
    );
    drop(shared.next());
    assert_eq!(doorbells(), [4, 2], "no receive is left but one");
}

#[test]
fn queue_and_messages_that_were_not_taken_have_no_more_blocks_than_asked_for() {
    let mut shared = Shared::new(64, 4, 1);
    for receive in 0..4 {
        shared.arrives(receive, 0);
    }
    shared.group.engine_mut().drive();
    shared.group.engine_mut().refill();
    assert_eq!(doorbells(), [4], "their places are taken until they are");
    let kept = [shared.next(), shared.next(), shared.next()];
    assert!(shared.group.engine_mut().has_message());
    shared.group.engine_mut().refill();
    assert_eq!(posted().len(), 7);
    assert_eq!(shared.pool.available(), 64 - 7);
    drop(kept);
}

#[test]
fn block_that_another_thread_drops_is_posted_during_a_wait() {
    for strategy in [
        PollStrategy::SpinThenYield,
        PollStrategy::Notify { after: 1 },
    ] {
        let pd = pd();
        let pool = BufferPool::new(&pd, 64, 1).unwrap();
        let builder = Channel::builder(&pd).strategy(strategy);
        let mut group = builder.shared_receives(&pool, 1).group(1).unwrap();
        let (member, qp_num) = connected(&group);
        group.join(member).unwrap();
        receives(posted()[0], qp_num, b"hi");
        let message = group.next_message().unwrap();
        let own = fake_libibverbs::lend();
        let polls = || with(|library| library.rooms.len());
        let before = polls();
        let dropped = std::thread::spawn(move || {
            own();
            // The wait has begun, and found nothing.
            assert!(until(PATIENCE, || polls() > before + 3));
            drop(message);
            assert!(until(PATIENCE, || posted().len() == 2), "it is not posted");
            receives(posted()[1], qp_num, b"again");
        });
        let next = bounded(|| group.wait_message(Some(PATIENCE)));
        assert!(next.unwrap().bytes() == Some(&b"again"[..]));
        dropped.join().unwrap();
        with(|library| library.posted.clear());
    }
}

#[test]
fn message_of_a_channel_that_never_joins_returns_its_block() {
    let mut shared = Shared::new(4, 4, 1);
    let (member, qp_num) = connected(&shared.group);
    (0..3).for_each(|receive| receives(posted()[receive], qp_num, b"x"));
    assert!(shared.group.next_message().is_none());
    assert_eq!(posted().len(), 4);
    drop(member);
    // One that the driver has left in the completion queue.
    receives(posted()[3], qp_num, b"x");
    assert!(shared.group.next_message().is_none());
    shared.group.engine_mut().refill();
    assert_eq!(posted().len(), 8, "all four are posted again");
}

#[test]
fn message_of_a_channel_that_never_joins_is_not_that_of_another_with_its_number() {
    let mut shared = Shared::new(8, 8, 0);
    let again = |shared: &Shared, qp_num| {
        with(|library| library.qp_nums.push_back(qp_num));
        connected(&shared.group)
    };
    let (member, qp_num) = connected(&shared.group);
    receives(posted()[0], qp_num, b"before");
    assert!(shared.group.next_message().is_none());
    receives(posted()[1], qp_num, b"in the queue");
    drop(member);
    // The device gives the number again, but it is not used yet.
    let (member, other) = again(&shared, qp_num);
    assert_ne!(other, qp_num);
    shared.group.join(member).unwrap();
    assert!(shared.group.next_message().is_none());
    let (member, other) = again(&shared, qp_num);
    assert_eq!(other, qp_num, "nothing of the first is left");
    receives(posted()[2], qp_num, b"its own");
    let id = shared.group.join(member).unwrap();
    let message = shared.next();
    assert_eq!(
        (message.channel, message.bytes()),
        (id, Some(&b"its own"[..]))
    );
}

#[test]
fn channel_that_a_receive_takes_down_is_reported_once_unless_it_was_destroyed() {
    let mut shared = Shared::new(4, 4, 2);
    let [(first, first_qp), (second, second_qp)] = [0, 1].map(|at| shared.channels[at]);
    // The second one of the first channel is flushed.
    for (receive, qp_num) in [(0, first_qp), (1, first_qp), (2, second_qp)] {
        fails(posted()[receive], qp_num, IBV_WC_LOC_LEN_ERR);
    }
    let engine = shared.group.engine_mut();
    assert!(!engine.has_failed());
    engine.drive();
    assert!(engine.has_failed());
    engine.destroy(second, DownReason::Closed).unwrap();
    assert_eq!(engine.next_failed(), Some(first));
    assert!(!engine.has_failed() && engine.next_failed().is_none());
}

#[test]
fn message_that_is_said_to_be_longer_than_its_block_is_an_error() {
    let mut shared = Shared::new(4, 2, 1);
    let done = ibv_wc {
        wr_id: posted()[0],
        opcode: IBV_WC_RECV,
        qp_num: shared.channels[0].1,
        byte_len: 65,
        ..Default::default()
    };
    with(|library| library.done.push_back(done));
    let message = shared.group.next_message().unwrap();
    assert!(message.bytes().is_none() && message.end().is_none());
    match message.result.unwrap_err() {
        TransportError::Work { error, .. } => assert_eq!(error.status, WcStatus::LOC_LEN_ERR),
        error => panic!("{error}"),
    }
}

#[test]
fn receive_of_a_channel_is_rejected_and_says_where_messages_are() {
    let mut shared = Shared::new(8, 4, 1);
    let (id, _) = shared.channels[0];
    let count = posted().len();
    let mut region = shared.pd.reg_mr(vec![0_u8; 64]).unwrap();
    let mut channel = shared.group.channel(id).unwrap();
    let rejected = channel.start_receive(shared.pool.take().unwrap());
    assert_eq!(*rejected.unwrap_err().error(), RejectReason::SharedReceives);
    let error = channel.receive(region.scatter_element(..).unwrap());
    let error = error.unwrap_err();
    assert!(matches!(
        error,
        TransportError::Rejected(RejectReason::SharedReceives)
    ));
    assert!(!error.is_backpressure());
    let rejected = channel.scope(|scope| {
        let receive = scope.post_receive(region.scatter_element(..)?);
        Ok::<_, Error>(receive.err())
    });
    assert_eq!(rejected.unwrap(), Some(RejectReason::SharedReceives));
    assert_eq!(posted().len(), count);
    assert!(!channel.is_down());
    let mut prepared = shared.group.prepare().unwrap();
    let rejected = prepared.start_receive(shared.pool.take().unwrap());
    assert_eq!(*rejected.unwrap_err().error(), RejectReason::SharedReceives);
    let mut channel = shared.group.channel(id).unwrap();
    // Sends are as ever.
    let ticket = channel.start_send(shared.pool.take().unwrap()).unwrap();
    succeeds(*posted().last().unwrap());
    assert!(channel.poll(ticket).unwrap().unwrap().result.is_ok());
}

#[test]
fn immediate_of_a_write_has_no_bytes_and_its_block_is_posted_again() {
    let mut shared = Shared::new(2, 2, 1);
    let (id, qp_num) = shared.channels[0];
    let mut done = ibv_wc {
        wr_id: posted()[0],
        qp_num,
        opcode: IBV_WC_RECV_RDMA_WITH_IMM,
        byte_len: 50,
        wc_flags: IBV_WC_WITH_IMM.0,
        ..Default::default()
    };
    done.__bindgen_anon_1.imm_data.0 = 7_u32.to_be();
    with(|library| library.done.push_back(done));
    let message = shared.next();
    assert_eq!((message.channel, message.imm_data()), (id, Some(7)));
    assert_eq!((message.bytes(), message.buffer.capacity()), (None, 0));
    assert!(shared.group.next_message().is_none());
    assert_eq!(posted().len(), 3, "while the message is kept");
    drop(message);
}

#[test]
fn receives_for_immediates_have_no_memory() {
    let pd = pd();
    let builder = Channel::builder(&pd).shared_immediates(3);
    let mut group = builder.group(2).unwrap();
    with(|library| {
        let receives = library.posted.iter().flatten();
        assert!(receives.clone().all(|receive| receive.list.is_empty()));
        assert_eq!(receives.count(), 3);
    });
    let (member, qp_num) = connected(&group);
    let id = group.join(member).unwrap();
    receives(posted()[0], qp_num, b"");
    let message = group.next_message().unwrap();
    assert_eq!((message.channel, message.bytes()), (id, Some(&b""[..])));
    group.engine_mut().refill();
    assert_eq!(posted().len(), 4);
}

#[test]
fn receive_that_the_driver_rejects_takes_all_channels_down_and_loses_no_block() {
    let mut shared = Shared::new(8, 4, 2);
    (0..4).for_each(|receive| shared.arrives(receive, 0));
    with(|library| library.refuse_post = Some((1, libc::EIO, true)));
    let mut ends = Vec::new();
    let mut count = 0;
    while let Some(message) = shared.group.next_message() {
        match message.end() {
            Some(reason) => ends.push((message.channel, reason)),
            None => count += 1,
        }
    }
    assert_eq!(count, 4);
    let ids: Vec<_> = ends.iter().map(|(channel, _)| *channel).collect();
    assert_eq!(ids, [shared.channels[0].0, shared.channels[1].0]);
    assert!(ends.iter().all(|end| matches!(end.1, DownReason::Post(_))));
    let Shared { group, pool, .. } = shared;
    drop(group);
    assert_eq!(pool.available(), 8);
}

#[test]
fn group_whose_receives_are_rejected_is_not_created() {
    let pd = pd();
    let pool = BufferPool::new(&pd, 64, 4).unwrap();
    with(|library| library.refuse_post = Some((0, libc::EIO, true)));
    let error = Channel::builder(&pd).shared_receives(&pool, 4).group(1);
    assert!(matches!(
        error.unwrap_err(),
        Error::Core(CoreError::Post(_))
    ));
    assert_eq!(pool.available(), 4);
}

#[test]
fn a_block_of_another_pool_is_handed_back_even_if_it_would_fit() {
    let mut shared = Shared::new(2, 2, 1);
    let own = shared.next_block();
    let other = BufferPool::new(&shared.pd, 64, 1).unwrap();
    let engine = shared.group.engine_mut();
    assert!(engine.needs_blocks());
    let rejected = engine.refill_with(other.take().unwrap());
    assert!(rejected.is_some() && engine.needs_blocks());
    drop(rejected);
    assert_eq!(other.available(), 1);
    assert!(engine.refill_with(own).is_none());
    assert!(!engine.needs_blocks());
    // The same for datagrams.
    let builder = crate::datagrams::builder(&shared.pd);
    let mut engine = DatagramEngine::create(&builder, None).unwrap();
    let pool = engine.receive_pool();
    let other = BufferPool::new(&shared.pd, pool.block_len(), 1).unwrap();
    assert!(engine.receive_into(other.take().unwrap()).is_some());
    assert_eq!(other.available(), 1);
}

#[test]
fn pool_of_another_domain_is_rejected() {
    let (one, other) = (pd(), pd());
    let pool = BufferPool::new(&other, 64, 4).unwrap();
    let error = Channel::builder(&one).shared_receives(&pool, 4).group(1);
    let Error::Core(error) = error.unwrap_err() else {
        panic!("it is an error of the layer below");
    };
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        error.to_string(),
        "the buffer pool was made with another protection domain"
    );
}

#[test]
fn wait_ends_in_time_and_at_once_if_nothing_can_come() {
    let mut shared = Shared::new(4, 4, 1);
    let start = Instant::now();
    assert!(bounded(|| shared.group.wait_message(SOON)).is_none());
    assert!(start.elapsed() >= SOON.unwrap());
    shared.arrives(0, 0);
    assert!(bounded(|| shared.group.wait_message(None)).is_some());
    shared.group.remove(shared.channels[0].0).unwrap();
    assert!(bounded(|| shared.group.wait_message(None)).is_none());
    let mut own = Channel::builder(&pd()).group(1).unwrap();
    let (member, _) = connected(&own);
    own.join(member).unwrap();
    assert!(bounded(|| own.wait_message(None)).is_none());
}
