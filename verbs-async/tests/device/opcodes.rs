//! Every operation on every notifier: what arrives, what is returned, what is rejected.

use std::time::Instant;

use verbs_async::verbs_channel::request::OwnedChain;
use verbs_async::verbs_channel::verbs_core::RemoteMemoryRegion;
use verbs_async::verbs_channel::{Channel, Incoming, Outgoing, OwnedRequest, TransportError};
use verbs_async::{AsyncChannel, AsyncGroup};
use verbs_harness::{begin, context, faults};

use super::ends::{WAYS, Way, buffer, bytes, events, given, run, untimed_pair};

/// Two channels that send up to 64 bytes inline.
fn inline_pair(way: Way) -> (AsyncGroup, AsyncChannel, AsyncChannel) {
    let pd = context().alloc_pd().unwrap();
    let builder = Channel::builder(&pd).max_inline_data(64);
    let group = AsyncGroup::new(builder, 2, &events(way, pd.context())).unwrap();
    let (left, right) = group.loopback().unwrap();
    (group, left, right)
}

#[test]
#[ignore = "needs an RDMA device"]
fn inline_fenced_and_batched_requests_complete() {
    let _test = begin!(iwarp lacks "fences (soft-iWARP)");
    for way in WAYS {
        run(way, async move {
            let (group, left, right) = inline_pair(way);
            let pd = group.pd();
            let target = given(pd, &[5; 32]);
            let remote = target.remote();
            let receive = right.receive(buffer(pd, &[0; 8]));
            let batch: Vec<OwnedRequest> = vec![
                Incoming::read(buffer(pd, &[0; 32]), remote).into(),
                Outgoing::write(buffer(pd, &[6; 32]), remote).fence().into(),
                Incoming::fetch_and_add(buffer(pd, &[0; 8]), remote.slice(..8).unwrap(), 1)
                    .fence()
                    .into(),
                Outgoing::send(buffer(pd, b"done"))
                    .inline()
                    .fence()
                    .solicited()
                    .into(),
            ];
            let (ended, works) = left.batch(batch).await;
            ended.unwrap();
            // All requests are returned in order: the fenced write was executed after the read.
            let buffers: Vec<_> = works.into_iter().map(OwnedRequest::into_buffer).collect();
            assert_eq!(&buffers[0][..], [5; 32]);
            assert_eq!(&buffers[1][..], [6; 32]);
            assert_eq!(&buffers[2][..], [6; 8]);
            assert_eq!(&buffers[3][..], b"done");
            assert_eq!(&receive.await.1[..4], b"done");
            // The same requests as a chain, again and again.
            let requests = vec![
                Incoming::read(buffer(pd, &[0; 32]), remote).into(),
                Outgoing::write(buffer(pd, &[8; 32]), remote).fence().into(),
                Outgoing::send(buffer(pd, b"chain")).fence().into(),
            ];
            let mut chain = OwnedChain::new(requests).unwrap();
            let mut before = 6;
            for _ in 0..3 {
                let receive = right.receive(buffer(pd, &[0; 8]));
                let (ended, returned) = left.chain(chain).await;
                ended.unwrap();
                chain = returned;
                let read = &chain.request(0).unwrap().buffer()[9..];
                assert_eq!((chain.done(), read), (3, &[before; 23][..]));
                assert_eq!(&receive.await.1[..5], b"chain");
                before = 8;
            }
            let one = left.run(Outgoing::write(buffer(pd, &[7; 8]), remote).inline());
            one.await.0.unwrap();
            assert_eq!(&bytes(&target)[..8], [7; 8]);
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn rejected_write_flushes_the_peers_receives() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    run(Way::Thread, async {
        let (group, left, right) = untimed_pair(Way::Thread);
        let waits = right.receive(buffer(group.pd(), &[2; 8]));
        let nowhere = RemoteMemoryRegion::new(0, 8, 0).unwrap();
        let (start, bytes) = (Instant::now(), buffer(group.pd(), &[1; 8]));
        let rejected = left.write(bytes, nowhere).await.0.unwrap_err();
        assert!(
            !matches!(rejected, TransportError::Rejected(_)),
            "{rejected}"
        );
        let error = waits.await.0.unwrap_err();
        faults::error(faults::QP_ERROR, "async", &error, faults::at_once(start));
        assert!(right.is_down());
    });
}
