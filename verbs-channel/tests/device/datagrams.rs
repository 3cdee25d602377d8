//! Datagram endpoints on a device: to and fro, with many peers, and until nothing comes.

use std::time::Duration;

use verbs_channel::verbs_core::error::Rejected;
use verbs_channel::verbs_core::{Device, ProtectionDomain};
use verbs_channel::{
    Channel, Datagrams, Error, OwnedBuffer, PollStrategy, RejectReason, TransportError, verbs_core,
};
use verbs_harness::pair::pattern;
use verbs_harness::{PATIENCE, begin, device_name, peer_name, until, wire};

fn pd(device: &str) -> ProtectionDomain {
    let context = Device::by_name(device).unwrap().open().unwrap();
    context.alloc_pd().unwrap()
}

/// The two ends of the wire.
fn pds() -> [ProtectionDomain; 2] {
    [pd(&device_name()), pd(&peer_name())]
}

fn buffer(pd: &ProtectionDomain, bytes: Vec<u8>) -> OwnedBuffer {
    if bytes.is_empty() {
        return OwnedBuffer::empty();
    }
    pd.reg_mr(bytes).unwrap().into()
}

#[test]
#[ignore = "needs an RDMA device"]
fn datagrams_of_every_length_are_answered() {
    let _test = begin!(iwarp lacks "datagrams");
    for strategy in [
        PollStrategy::SpinThenYield,
        PollStrategy::Notify { after: 10 },
    ] {
        let [here, there] = pds();
        let mut asks = Datagrams::builder(&here)
            .strategy(strategy)
            .build()
            .unwrap();
        let mut answers = Datagrams::builder(&there)
            .strategy(strategy)
            .build()
            .unwrap();
        let server = answers.endpoint();
        let max = usize::try_from(asks.max_payload()).unwrap();
        for len in [0, 1, 7, 512, max] {
            let bytes = pattern(len, len);
            asks.send_to(&server, buffer(&here, bytes.clone())).unwrap();
            let question = answers.receive_from(Some(PATIENCE)).unwrap().unwrap();
            assert!(question[..] == bytes);
            assert_eq!(question.from().qp_num(), asks.endpoint().qp_num());
            assert_eq!(question.from().gid(), asks.endpoint().gid());
            // The same buffer goes back.
            let from = question.from();
            answers.send_to(&from, question.into_buffer()).unwrap();
            let answer = asks.receive_from(Some(PATIENCE)).unwrap().unwrap();
            assert!(answer[..] == bytes);
            assert_eq!(answer.from().qkey(), server.qkey());
        }
        let longer = buffer(&here, vec![0; max + 1]);
        let error = asks.send_to(&server, longer).unwrap_err().into_error();
        assert!(matches!(
            error,
            Error::Transport(TransportError::Rejected(
                RejectReason::DatagramTooLong { .. }
            ))
        ));
        asks.close().unwrap();
        answers.close().unwrap();
    }
}

/// Whether a datagram arrives, perhaps after some were lost.
fn reaches(from: &mut Datagrams, pd: &ProtectionDomain, to: &mut Datagrams) -> bool {
    let there = to.endpoint();
    until(PATIENCE, || {
        from.send_to(&there, buffer(pd, pattern(3, 64))).unwrap();
        let moment = Some(Duration::from_millis(100));
        to.receive_from(moment).unwrap().is_some()
    })
}

#[test]
#[ignore = "needs an RDMA device"]
fn address_that_goes_and_comes_back_ends_no_endpoint_and_no_prepared_channel() {
    let test = begin!(alone, iwarp lacks "datagrams");
    let Some([netdev, _]) = wire::netdevs(&test) else {
        return;
    };
    let [here, there] = pds();
    // One that knows by waiting, and one that finds out by a datagram that fails.
    let mut ends = [(); 3].map(|()| Datagrams::builder(&here).build().unwrap());
    let mut peer = Datagrams::builder(&there).build().unwrap();
    for end in &mut ends {
        assert!(reaches(end, &here, &mut peer));
    }
    let prepare = |pd| Channel::builder(pd).build().unwrap();
    let (left, right) = (prepare(&here), prepare(&there));
    let own = ends[0].endpoint();
    let away = wire::without_address(&netdev);
    let [sends, waits, receives] = &mut ends;
    // The handle that is there fails with the device, and a new one is refused.
    let refused = until(PATIENCE, || {
        let sent = sends.send_to(&peer.endpoint(), buffer(&here, vec![1]));
        match sent.map_err(Rejected::into_error) {
            Err(Error::Core(verbs_core::Error::GidRemoved { gid, .. })) => Some(gid) == own.gid(),
            Err(error) => panic!("{error}"),
            Ok(()) => !sends.flush(Some(PATIENCE)),
        }
    });
    assert!(refused);
    let failure = sends.take_failed().unwrap().to_string();
    assert!(
        failure.contains("is no longer in its port's table"),
        "{failure}"
    );
    drop(away);
    let moment = Some(Duration::from_millis(300));
    assert!(waits.receive_from(moment).unwrap().is_none());
    for end in [sends, waits, receives] {
        assert!(reaches(end, &here, &mut peer));
        assert!(reaches(&mut peer, &there, end));
        assert_eq!((end.down_reason(), end.endpoint().gid()), (None, own.gid()));
    }
    assert!(ends[1].take_failed().is_none(), "it knew before");
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let left = left.handshake(&to_right).unwrap();
    drop((left, right.handshake(&to_left).unwrap()));
}
