//! Devices of iWARP: their driver flushes a queue pair when its connection ends.

use verbs_channel::verbs_core::verbs_sys::IBV_WC_LOC_PROT_ERR;
use verbs_channel::{Channel, DownReason, Incoming, RejectReason, TransportError};

use crate::fake_device::{channel, ends, flushes, posted, region, succeeds};

/// A channel on iWARP. It is connected before, as nothing connects there without `rdma_cm`.
fn on_iwarp() -> Channel {
    let channel = channel();
    fake_libibverbs::make_iwarp(channel.pd().context().device());
    channel
}

const ENDED: TransportError = TransportError::Aborted(DownReason::PeerClosed);

#[test]
fn flush_that_nothing_has_caused_is_the_end_of_the_peer() {
    let mut channel = on_iwarp();
    let tickets = [(); 3].map(|()| channel.start_receive(region(&channel)).unwrap());
    let receives = posted();
    // The message that the peer sent before is delivered.
    succeeds(receives[0]);
    flushes(receives[1]);
    flushes(receives[2]);
    channel.wait_success(tickets[0]).unwrap();
    for ticket in &tickets[1..] {
        let ended = channel.poll(*ticket).unwrap().unwrap();
        assert_eq!(ended.result.unwrap_err(), ENDED);
    }
    assert_eq!(channel.down_reason(), Some(DownReason::PeerClosed));
    let rejected = channel.start_receive(region(&channel)).unwrap_err();
    assert!(matches!(
        rejected.error(),
        RejectReason::Down(DownReason::PeerClosed)
    ));
}

#[test]
fn flush_after_a_failure_or_an_end_of_this_side_is_theirs() {
    let mut channel = on_iwarp();
    let send = channel.start_send(region(&channel)).unwrap();
    let receive = channel.start_receive(region(&channel)).unwrap();
    let requests = posted();
    ends(requests[0], IBV_WC_LOC_PROT_ERR);
    flushes(requests[1]);
    let failed = channel.poll(send).unwrap().unwrap().result.unwrap_err();
    assert!(matches!(failed, TransportError::Work { .. }), "{failed:?}");
    let flushed = channel.poll(receive).unwrap().unwrap().result.unwrap_err();
    let reason = channel.down_reason().unwrap();
    assert!(matches!(reason, DownReason::Work { .. }), "{reason:?}");
    assert_eq!(flushed, TransportError::Aborted(reason));

    let mut channel = on_iwarp();
    let mut into = region(&channel);
    let error = channel
        .run(Incoming::receive(into.scatter_element(..).unwrap()).timeout(Default::default()));
    let Err(TransportError::Aborted(reason)) = error else {
        panic!("{error:?}");
    };
    assert!(reason.is_timed_out(), "{reason:?}");
}

#[test]
fn flush_on_other_devices_is_no_end_of_the_peer() {
    let mut channel = channel();
    let ticket = channel.start_receive(region(&channel)).unwrap();
    flushes(posted()[0]);
    let error = channel.poll(ticket).unwrap().unwrap().result.unwrap_err();
    assert!(matches!(error, TransportError::Work { .. }), "{error:?}");
}
