//! Every operation on every notifier: what arrives, what is returned, what is rejected.

use std::time::Instant;

use verbs_async::verbs_channel::error::CloseError;
use verbs_async::verbs_channel::request::OwnedChain;
use verbs_async::verbs_channel::verbs_core::RemoteMemoryRegion;
use verbs_async::verbs_channel::verbs_core::codes::WcStatus;
use verbs_async::verbs_channel::{
    Channel, DownReason, Incoming, Outgoing, OwnedRequest, RejectReason, TransportError,
};
use verbs_async::{AsyncChannel, AsyncGroup};
use verbs_harness::{begin, context, faults, is_soft};

use super::ends::{WAYS, Way, buffer, bytes, connect, events, given, pair, run, untimed_pair};

#[test]
#[ignore = "needs an RDMA device"]
fn immediates_arrive_with_sends_and_with_writes() {
    let _test = begin!(iwarp lacks "immediates");
    for way in WAYS {
        run(way, async move {
            let (group, left, right) = pair(way);
            let pd = group.pd();
            let target = given(pd, &[0; 8]);
            let first = right.receive(buffer(pd, &[0; 8]));
            let second = right.receive(buffer(pd, &[9; 8]));
            let sent = left.run(Outgoing::send(buffer(pd, b"abc")).immediate(7));
            let written =
                left.run(Outgoing::write(buffer(pd, b"defgh"), target.remote()).immediate(8));
            sent.await.0.unwrap();
            written.await.0.unwrap();
            let (received, got) = first.await;
            assert_eq!(received.unwrap().imm_data(), Some(7));
            assert_eq!(&got[..3], b"abc");
            // A write's bytes are at its target, not in the receive that it completes.
            let (received, got) = second.await;
            let received = received.unwrap();
            assert_eq!((received.imm_data(), received.byte_len()), (Some(8), 5));
            assert_eq!(&got[..], [9; 8]);
            assert_eq!(&bytes(&target)[..5], b"defgh");
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn reads_writes_and_atomics_change_the_peer_s_memory() {
    let _test = begin!(iwarp lacks "atomics");
    for way in WAYS {
        run(way, async move {
            let (group, left, _right) = pair(way);
            let pd = group.pd();
            let target = given(pd, &[0; 64]);
            let number = target.remote().slice(..8).unwrap();
            let rest = target.remote().slice(8..).unwrap();
            let (written, own) = left.write(buffer(pd, &[3; 56]), rest).await;
            written.unwrap();
            assert_eq!(&own[..], [3; 56]);
            let (read, own) = left.read(buffer(pd, &[0; 56]), rest).await;
            read.unwrap();
            assert_eq!(&own[..], [3; 56]);
            for round in 0..5_u64 {
                let (added, before) = left
                    .run(Incoming::fetch_and_add(buffer(pd, &[1; 8]), number, 3))
                    .await;
                added.unwrap();
                assert_eq!(&before[..], (3 * round).to_ne_bytes());
            }
            for (compare, now) in [(14_u64, 15_u64), (15, 99)] {
                let swap = left.run(Incoming::compare_and_swap(
                    buffer(pd, &[1; 8]),
                    number,
                    compare,
                    99,
                ));
                let (swapped, before) = swap.await;
                swapped.unwrap();
                assert_eq!(&before[..], 15_u64.to_ne_bytes(), "{compare}");
                let number = &bytes(&target)[..8];
                assert_eq!(number, now.to_ne_bytes(), "{compare}");
            }
        });
    }
}

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

#[test]
#[ignore = "needs an RDMA device"]
fn request_refused_by_the_peer_takes_the_channel_down() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    for way in WAYS {
        run(way, async move {
            let group = pair(way).0;
            let (left, right) = connect(&group, &group);
            let pd = group.pd();
            let key = given(pd, &[0; 64]).remote();
            // That region is deregistered.
            let waits = left.receive(buffer(pd, &[2; 8]));
            let (result, own) = left.write(buffer(pd, &[1; 8]), key).await;
            let Err(TransportError::Work { queue, error }) = result else {
                panic!("{result:?}");
            };
            if is_soft() {
                assert_eq!(error.status, WcStatus::REM_ACCESS_ERR);
            }
            assert_eq!(&own[..], [1; 8]);
            assert_eq!(left.down_reason(), Some(DownReason::Work { queue, error }));
            // Operations in flight end with the reason, and later requests are rejected.
            let (result, own) = waits.await;
            assert!(result.is_err(), "{result:?}");
            assert_eq!(&own[..], [2; 8]);
            for operation in [
                left.send(buffer(pd, &[3; 8])),
                left.receive(buffer(pd, &[3; 8])),
            ] {
                let (result, own) = operation.await;
                let is_down =
                    matches!(result, Err(TransportError::Rejected(RejectReason::Down(_))));
                assert!(is_down, "{result:?}");
                assert_eq!(&own[..], [3; 8]);
            }
            assert!(matches!(left.close().await, Err(CloseError::Down(_))));
            drop(right);
        });
    }
}
