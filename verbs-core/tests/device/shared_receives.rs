//! Shared receive queues: whose message takes which receive, and what an end gives back.

use std::time::{Duration, Instant};

use verbs_core::codes::WcStatus;
use verbs_core::device::{AsyncEvent, EventElement, EventType};
use verbs_core::error::ErrorKind;
use verbs_core::queue_pair::SharedReceives;
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::work_request::RequestChain;
use verbs_core::{MemoryRegion, QueuePair, ReceiveWorkRequest, SendWorkRequest};
use verbs_harness::pair::{Side, pattern};
use verbs_harness::{PATIENCE, assert_silent, begin, peer_name, wait_for};

/// Several connections whose receives at one end are shared.
struct Star {
    // Before the memory: its receives end with it.
    ends: Vec<QueuePair<SharedReceives>>,
    peers: Vec<QueuePair>,
    srq: SharedReceiveQueue,
    inbox: MemoryRegion<Vec<u8>>,
    outbox: MemoryRegion<Vec<u8>>,
    here: Side,
    there: Side,
}

/// Bytes in a message, and in a receive.
const LEN: usize = 64;

impl Star {
    fn new(connections: usize) -> Self {
        let (here, there) = (Side::here(), Side::new(&peer_name()));
        let srq = SharedReceiveQueue::create(&here.pd, 32).unwrap();
        let builder = QueuePair::builder(&here.pd, &here.send_cq, &here.recv_cq).srq(&srq);
        let (mut ends, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..connections {
            let (end, peer) = (builder.build().unwrap(), there.prepared());
            let (to_end, to_peer) = (peer.endpoint(), end.endpoint());
            ends.push(end.handshake(&to_end).unwrap());
            peers.push(peer.handshake(&to_peer).unwrap());
        }
        Self {
            inbox: here.pd.reg_mr(vec![0; 32 * LEN]).unwrap(),
            outbox: there.pd.reg_mr(pattern(5, LEN)).unwrap(),
            ends,
            peers,
            srq,
            here,
            there,
        }
    }

    /// Posts receives into the parts of the inbox with these numbers.
    fn post(&mut self, parts: std::ops::Range<usize>) {
        let bytes = parts.start * LEN..parts.end * LEN;
        let element = self.inbox.scatter_element(bytes).unwrap();
        let mut chunks: Vec<_> = element
            .chunks_mut(LEN)
            .unwrap()
            .map(|chunk| [chunk])
            .collect();
        let ids = parts.start as u64..;
        let mut chain: Vec<_> = chunks
            .iter_mut()
            .zip(ids)
            .map(|(list, wr_id)| ReceiveWorkRequest::new(list).wr_id(wr_id))
            .collect();
        // SAFETY: each test looks at a part only after its completion, and the inbox goes after the
        // queue.
        unsafe { self.srq.post_receive(&mut chain) }.unwrap();
    }

    /// Sends a message on the connection with this number.
    fn send(&self, connection: usize) {
        let mut list = [self.outbox.gather_element(..).unwrap()];
        let mut request = SendWorkRequest::new(&mut list);
        // SAFETY: the outbox is not written to.
        unsafe { self.peers[connection].post_send(&mut request) }.unwrap();
    }

    /// Waits until `count` messages were sent and have arrived; returns where each of them is, and
    /// the number of its connection.
    fn arrived(&self, count: usize) -> Vec<(u64, usize)> {
        let sent = wait_for(&self.there.send_cq, count);
        assert!(sent.iter().all(|sent| sent.status() == WcStatus::SUCCESS));
        let arrived = wait_for(&self.here.recv_cq, count);
        let of = |qp_num| {
            let mut ends = self.ends.iter();
            ends.position(|end| end.qp_num() == qp_num).unwrap()
        };
        arrived
            .iter()
            .map(|done| {
                let success = done.result().unwrap();
                assert_eq!(success.byte_len() as usize, LEN);
                let at = usize::try_from(success.wr_id()).unwrap() * LEN;
                assert!(self.inbox[at..at + LEN] == self.outbox[..]);
                (success.wr_id(), of(done.qp_num()))
            })
            .collect()
    }

    /// The next event that is not of a port, if one comes in this time.
    fn event(&self, timeout: Duration) -> Option<AsyncEvent> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.here.context.get_async_event(Some(left)).unwrap()?;
            if !matches!(event.element(), EventElement::Port { .. }) {
                return Some(event);
            }
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn chain_that_was_built_once_refills_the_queue_in_parts() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    let mut star = Star::new(2);
    let mut chain = RequestChain::receives(16, 1).unwrap();
    chain.set_wr_ids(0);
    let room = star.inbox.scatter_element(..16 * LEN).unwrap();
    for (index, part) in room.chunks_mut(LEN).unwrap().enumerate() {
        chain.set(index, part).unwrap();
    }
    let mut sends = RequestChain::sends(8, 1).unwrap();
    for index in 0..8 {
        let message = star.outbox.gather_element(..).unwrap();
        sends.set(index, message).unwrap();
    }
    for _ in 0..4 {
        for part in [0..5, 5..16] {
            // SAFETY: each receive completes below, before the inbox is looked at.
            unsafe { star.srq.post_receive_chain(&mut chain, part) }.unwrap();
        }
        for peer in &star.peers {
            // SAFETY: the outbox is not written to.
            unsafe { peer.post_chain(&mut sends, ..) }.unwrap();
        }
        let mut ids: Vec<_> = wait_for(&star.here.recv_cq, 16)
            .iter()
            .map(|done| done.result().unwrap().wr_id())
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..16).collect::<Vec<_>>());
        wait_for(&star.there.send_cq, 16);
    }
    drop((chain, sends));
    let mut parts = star.inbox[..16 * LEN].chunks(LEN);
    assert!(parts.all(|part| part == &star.outbox[..]));
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_of_all_queue_pairs_take_the_next_receive_in_turn() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    let mut star = Star::new(4);
    star.post(0..8);
    for (turn, connection) in [2, 0, 3, 3, 1, 0, 2, 3].into_iter().enumerate() {
        star.send(connection);
        assert_eq!(star.arrived(1), [(turn as u64, connection)]);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn queue_is_destroyed_with_receives_left_and_none_completes() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    let mut star = Star::new(1);
    star.post(0..4);
    let Star {
        ends, srq, here, ..
    } = star;
    let again = srq.clone();
    assert_eq!(again.close().unwrap_err().kind(), ErrorKind::InUse);
    drop(ends);
    srq.close().unwrap();
    assert_silent(&here.recv_cq);
}

#[test]
#[ignore = "needs an RDMA device"]
fn limit_event_comes_once_for_each_arming() {
    let _test = begin!(iwarp lacks "connecting without rdma_cm");
    let mut star = Star::new(1);
    star.post(0..8);
    let handle = star.srq.handle();
    for round in 0..3 {
        star.srq.arm_limit(6).unwrap();
        for _ in 0..4 {
            star.send(0);
            star.arrived(1);
        }
        let event = star.event(PATIENCE).expect("the limit was reached");
        assert_eq!(event.event_type(), EventType::SRQ_LIMIT_REACHED);
        assert_eq!(event.element(), EventElement::Srq { handle });
        assert_eq!(star.event(Duration::from_millis(100)), None, "{round}");
        star.post(0..4);
    }
    // Not armed: no event.
    for _ in 0..6 {
        star.send(0);
        star.arrived(1);
    }
    assert_eq!(star.event(Duration::from_millis(100)), None);
}

#[test]
#[ignore = "needs an RDMA device"]
fn queue_pair_in_error_reports_its_last_receive() {
    let test = begin!(iwarp lacks "connecting without rdma_cm");
    let mut star = Star::new(2);
    star.post(0..2);
    star.ends[0].to_error().unwrap();
    let Some(event) = star.event(Duration::from_millis(500)) else {
        return test.skip("the driver sends no LAST_WQE_REACHED");
    };
    assert_eq!(event.event_type(), EventType::QP_LAST_WQE_REACHED);
    let qp_num = star.ends[0].qp_num();
    assert_eq!(event.element(), EventElement::Qp { qp_num });
    star.send(1);
    assert_eq!(star.arrived(1), [(0, 1)]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn query_has_the_capacities_and_the_limit_which_is_within_them() {
    let test = begin!();
    let star = Star::new(0);
    let error = star.srq.arm_limit(star.srq.max_wr() + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    for limit in [star.srq.max_wr(), 0, 5] {
        star.srq.arm_limit(limit).unwrap();
    }
    match star.srq.query() {
        Ok(attr) => {
            assert!(attr.max_wr() >= 32, "{attr:?}");
            assert!(attr.max_sge() >= 1, "{attr:?}");
            assert_eq!(attr.srq_limit(), 5);
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            test.skip("the driver has no query");
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn resized_queue_keeps_its_receives() {
    let test = begin!(iwarp lacks "connecting without rdma_cm");
    let mut star = Star::new(1);
    star.post(0..8);
    if let Err(error) = star.srq.resize(100) {
        return test.skip(format!("the driver does not resize: {error}"));
    }
    assert!(star.srq.max_wr() >= 100);
    star.post(8..16);
    for turn in 0..16 {
        star.send(0);
        assert_eq!(star.arrived(1), [(turn, 0)]);
    }
}
