//! Every operation, on every notifier.

use crate::ends::{WAYS, buffer, pair, run};
use crate::harness::begin;

#[test]
#[ignore = "needs an RDMA device"]
fn sends_arrive() {
    let _test = begin!();
    for way in WAYS {
        run(way, async move {
            let (group, left, right) = pair(way);
            let pd = group.pd();
            for round in 0..100_u8 {
                let receive = right.receive(buffer(pd, &[0; 8]));
                let (sent, bytes) = left.send(buffer(pd, &[round; 5])).await;
                sent.unwrap();
                assert_eq!(&bytes[..], &[round; 5]);
                let (received, bytes) = receive.await;
                assert_eq!(received.unwrap().byte_len(), 5);
                assert_eq!(&bytes[..5], &[round; 5]);
            }
        });
    }
}
