//! Datagram endpoints on a device: to and fro, with many peers, and until nothing comes.

use std::time::Duration;

use verbs_channel::verbs_core::{Device, ProtectionDomain};
use verbs_channel::{BufferPool, Datagrams, Error, OwnedBuffer, PollStrategy, RejectReason};
use verbs_harness::pair::pattern;
use verbs_harness::{PATIENCE, begin, bounded, device_name, peer_name};

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
            Error::Rejected(RejectReason::DatagramTooLong { .. })
        ));
        asks.close().unwrap();
        answers.close().unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn nothing_comes_within_its_timeout() {
    let _test = begin!(iwarp lacks "datagrams");
    let [here, _] = pds();
    for strategy in [PollStrategy::Spin, PollStrategy::Notify { after: 10 }] {
        let mut datagrams = Datagrams::builder(&here)
            .strategy(strategy)
            .build()
            .unwrap();
        let timeout = Some(Duration::from_millis(30));
        bounded(PATIENCE, || {
            assert!(datagrams.receive_from(timeout).unwrap().is_none());
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn one_endpoint_serves_many_with_few_handles() {
    let _test = begin!(iwarp lacks "datagrams");
    let [here, there] = pds();
    let mut server = Datagrams::builder(&there).max_handles(1).build().unwrap();
    let mut clients: Vec<_> = (0..6)
        .map(|number| {
            // From both devices: two ports, and so two handles, of which one is kept.
            let pd = if number % 2 == 0 { &here } else { &there };
            (number, pd, Datagrams::builder(pd).build().unwrap())
        })
        .collect();
    for round in 0..20_u8 {
        for (number, pd, client) in &mut clients {
            let question = buffer(pd, vec![round, *number]);
            client.send_to(&server.endpoint(), question).unwrap();
        }
        for _ in &clients {
            let question = server.receive_from(Some(PATIENCE)).unwrap().unwrap();
            let from = question.from();
            server.send_to(&from, question.into_buffer()).unwrap();
        }
        for (number, _, client) in &mut clients {
            let answer = client.receive_from(Some(PATIENCE)).unwrap().unwrap();
            assert_eq!(answer[..], [round, *number]);
        }
    }
    assert!(server.flush(Some(PATIENCE)));
}

#[test]
#[ignore = "needs an RDMA device"]
fn flood_is_held_back_at_the_sender_and_dropped_at_the_receiver() {
    let _test = begin!(iwarp lacks "datagrams");
    let [here, there] = pds();
    let mut from = Datagrams::builder(&here).max_send_wr(8).build().unwrap();
    let mut into = Datagrams::builder(&there).max_recv_wr(8).build().unwrap();
    let pool = BufferPool::new(&here, 64, 16).unwrap();
    for number in 0..500_u32 {
        let block = loop {
            match pool.take_with(&number.to_be_bytes()).unwrap() {
                Some(block) => break block,
                None => assert!(from.flush(Some(PATIENCE))),
            }
        };
        from.send_to(&into.endpoint(), block).unwrap();
        assert!(from.sends_in_flight() <= 8);
    }
    assert!(from.flush(Some(PATIENCE)));
    assert_eq!(pool.available(), 16);
    // The receives were filled, and all later datagrams dropped.
    let mut numbers = Vec::new();
    while let Some(datagram) = into.receive_from(Some(Duration::from_millis(50))).unwrap() {
        numbers.push(datagram[3]);
    }
    assert!(!numbers.is_empty() && numbers.len() <= 8, "{numbers:?}");
    // It receives again.
    let last = buffer(&here, b"last".to_vec());
    from.send_to(&into.endpoint(), last).unwrap();
    let datagram = into.receive_from(Some(PATIENCE)).unwrap().unwrap();
    assert_eq!(&datagram[..], b"last");
}
