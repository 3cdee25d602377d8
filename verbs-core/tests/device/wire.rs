//! Faults of the wire between two devices: links that go down, packets that are lost.

use std::time::{Duration, Instant};

use verbs_core::codes::{PortState, QpState, WcStatus};
use verbs_core::device::{EventElement, EventType};
use verbs_core::{Context, SendWorkRequest, WorkError};
use verbs_harness::faults::{self, Within};
use verbs_harness::pair::{End, Pair, Side, pattern, works};
use verbs_harness::wire::Disturbed;
use verbs_harness::{PATIENCE, assert_says, assert_silent, begin, until, wait_for, wire};

use super::atomics;

const ACK_TIMEOUT: u8 = 12;
const RETRY_CNT: u8 = 3;

/// A connection whose retries end after about 100 ms.
fn impatient() -> Pair {
    Pair::of(|side| side.impatient(ACK_TIMEOUT, RETRY_CNT))
}

fn retries(start: Instant) -> Within {
    faults::retries(start, ACK_TIMEOUT, RETRY_CNT)
}

/// A send fails in a way that a broken link explains; returns how.
fn cannot_send(end: &End) -> WorkError {
    end.post_one(SendWorkRequest::empty());
    let statuses = [
        WcStatus::RETRY_EXC_ERR,
        WcStatus::LOC_QP_OP_ERR,
        WcStatus::WR_FLUSH_ERR,
    ];
    let error = wait_for(&end.side.send_cq, 1)[0].result().unwrap_err();
    assert!(statuses.contains(&error.status), "{error}");
    error
}

/// Waits for a port's event.
fn port_event(context: &Context, wanted: EventType) {
    let mut seen = Vec::new();
    let arrived = until(PATIENCE, || {
        let event = context
            .get_async_event(Some(Duration::from_millis(10)))
            .unwrap();
        seen.extend(event);
        event.is_some_and(|event| event.event_type() == wanted)
    });
    assert!(arrived, "{wanted:?} among {seen:?}");
    assert_eq!(
        seen.last().unwrap().element(),
        EventElement::Port { port_num: 1 }
    );
}

#[test]
#[ignore = "needs an RDMA device"]
fn link_down_raises_an_event_and_ends_posted_requests() {
    let test = begin!(alone, iwarp lacks "a wire between two devices of one machine");
    let Some([here, _]) = wire::netdevs(&test) else {
        return;
    };
    let pair = impatient();
    works(&pair.a, &pair.b);
    let context = pair.a.side.context.clone();
    let broken = wire::down(&here);
    port_event(&context, EventType::PORT_ERR);
    assert_ne!(context.query_port(1).unwrap().state(), PortState::ACTIVE);
    let start = Instant::now();
    let error = cannot_send(&pair.a);
    faults::error(faults::LINK, "core", &error, retries(start));
    assert_eq!(pair.a.qp.query().unwrap().qp_state(), QpState::ERR);
    // No queue pair can be prepared on a port that is down, and the error has the reason.
    let side = &pair.a.side;
    let error = side.builder().build().unwrap_err();
    assert_says(&error, "is ACTIVE");
    let Pair { a, b } = pair;
    let refused = a.qp.reset().unwrap_err();
    assert_says(&refused, "is ACTIVE");
    let qp = refused.into_given();
    drop(broken);
    port_event(&context, EventType::PORT_ACTIVE);
    // The same queue pairs, prepared again.
    let (qa, qb) = (qp.reset().unwrap(), b.qp.reset().unwrap());
    let pair = Pair::connect((a.side, qa), (b.side, qb));
    works(&pair.a, &pair.b);
}

#[test]
#[ignore = "needs an RDMA device"]
fn sends_over_a_peers_link_that_is_down_fail() {
    let test = begin!(alone, iwarp lacks "a wire between two devices of one machine");
    let Some([_, there]) = wire::netdevs(&test) else {
        return;
    };
    let pair = impatient();
    works(&pair.a, &pair.b);
    // On one machine the link here loses its carrier with it, which soft-RoCE may notice.
    let (_broken, start) = (wire::down(&there), Instant::now());
    let error = cannot_send(&pair.a);
    faults::error(faults::PEERS_LINK, "core", &error, retries(start));
}

#[test]
#[ignore = "needs an RDMA device"]
fn when_all_packets_are_lost_retries_end() {
    let test = begin!(alone, iwarp lacks "a wire between two devices of one machine");
    let Some([here, _]) = wire::netdevs(&test) else {
        return;
    };
    let pair = impatient();
    works(&pair.a, &pair.b);
    let _broken = wire::netem(&here, &["loss", "100%"]);
    let from = pair.a.pd().reg_mr(pattern(2, 100)).unwrap();
    let start = Instant::now();
    let mut list = [from.gather_element(..).unwrap()];
    pair.a.post_one(SendWorkRequest::new(&mut list).wr_id(6));
    let error = wait_for(&pair.a.side.send_cq, 1)[0].result().unwrap_err();
    faults::error(faults::ALL_PACKETS, "core", &error, retries(start));
    assert_eq!((error.status, error.wr_id), (WcStatus::RETRY_EXC_ERR, 6));
    assert_says(&error, "the link is down");
    // The peer never receives a packet.
    assert_silent(&pair.b.side.recv_cq);
    assert_eq!(pair.b.qp.query().unwrap().qp_state(), QpState::RTS);
}

#[test]
#[ignore = "needs an RDMA device"]
fn bytes_survive_loss_duplication_and_reordering() {
    let test = begin!(alone, iwarp lacks "a wire between two devices of one machine");
    let Some(netdevs) = wire::netdevs(&test) else {
        return;
    };
    for disturbance in wire::DISTURBANCES {
        let pair = Pair::of(Side::prepared);
        let disturbed = Disturbed::new(&netdevs, disturbance);
        let seen = until(PATIENCE, || {
            let start = Instant::now();
            works(&pair.a, &pair.b);
            works(&pair.b, &pair.a);
            let within = faults::retries_by_default(start);
            faults::seen(faults::SOME_PACKETS, "core", faults::SLOWER, within);
            disturbed.was_seen()
        });
        assert!(seen, "{disturbance:?}: not a packet");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn sends_from_and_to_an_address_that_was_removed_fail() {
    let test = begin!(alone, iwarp lacks "a wire between two devices of one machine");
    let Some([here, there]) = wire::netdevs(&test) else {
        return;
    };
    for (fault, netdev) in [(faults::ADDRESS, here), (faults::PEERS_ADDRESS, there)] {
        let pair = impatient();
        works(&pair.a, &pair.b);
        let (_broken, start) = (wire::without_address(&netdev), Instant::now());
        let error = cannot_send(&pair.a);
        faults::error(fault, "core", &error, retries(start));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_fence_holds_on_a_slow_wire() {
    let test = begin!(alone, iwarp lacks "a wire between two devices of one machine");
    let Some([here, _]) = wire::netdevs(&test) else {
        return;
    };
    if !atomics::can(&test) {
        return;
    }
    // On a fast one the atomic may be back before the next request is looked at.
    let _broken = wire::netem(&here, &["delay", "50ms"]);
    atomics::fenced(&Pair::new());
}
