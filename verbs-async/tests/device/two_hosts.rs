//! Tests that two machines on one wire run at the same time: `SOFT_ROCE_HOST` is the number of this
//! one, `SOFT_ROCE_PEER` is the address of the other.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use std::{fs, thread};

use futures_util::future::join_all;
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use verbs_async::verbs_channel::verbs_core::codes::WcStatus;
use verbs_async::verbs_channel::verbs_core::{AckTimeout, MaxAckRetries};
use verbs_async::verbs_channel::{BufferPool, Channel, DownReason, TransportError};
use verbs_async::{AsyncChannel, AsyncGroup};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{PATIENCE, Test, begin, context, faults, until};

use super::ends::{WAYS, Way, block, events, run, within};

/// A port that is free on a machine that runs nothing else.
const PORT: u16 = 18602;

/// Whether this is the first of two machines, and a stream to the other.
fn other(test: &Test) -> Option<(bool, TcpStream)> {
    let (first, peer) = test.two_hosts()?;
    if first {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        return Some((first, listener.accept().unwrap().0));
    }
    // The other machine may still be booting, or running another test.
    let mut stream = None;
    let come = until(3 * PATIENCE, || {
        thread::sleep(Duration::from_millis(50));
        stream = TcpStream::connect((peer, PORT)).ok();
        stream.is_some()
    });
    assert!(come, "the other machine does not come");
    stream.map(|stream| (first, stream))
}

/// A channel whose device reports a dead peer after some seconds: two machines that share a busy
/// processor may take a tenth of a second for a round trip.
async fn meet(way: Way, stream: TcpStream) -> (AsyncGroup, AsyncChannel) {
    let context = context();
    let builder = Channel::builder(&context.alloc_pd().unwrap())
        .peer_timeout(None)
        .ack_timeout(AckTimeout::new(17).unwrap())
        .retry_cnt(MaxAckRetries::new(4).unwrap());
    let group = AsyncGroup::new(builder, 1, &events(way, &context)).unwrap();
    let channel = group.exchange(stream, PATIENCE).await.unwrap().channel;
    (group, channel)
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_cross_both_ways() {
    let test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        let Some((_, stream)) = other(&test) else {
            return;
        };
        run(way, async move {
            let (group, channel) = meet(way, stream).await;
            let pool = BufferPool::new(group.pd(), 5000, 80).unwrap();
            let receives: Vec<_> = (0..40)
                .map(|_| channel.receive(block(&pool, &[0; 5000])))
                .collect();
            let sends: Vec<_> = (0..40)
                .map(|at| channel.send(block(&pool, &[at; 5000])))
                .collect();
            for (sent, _) in join_all(sends).await {
                sent.unwrap();
            }
            for (at, (received, bytes)) in (0..).zip(join_all(receives).await) {
                assert_eq!(received.unwrap().byte_len(), 5000);
                assert_eq!(bytes[..], [at; 5000]);
            }
            // Neither leaves before the other has received everything.
            let last = channel.receive(block(&pool, &[0; 8]));
            channel.send(block(&pool, &[0; 8])).await.0.unwrap();
            last.await.0.unwrap();
            within(Duration::from_millis(500), std::future::pending::<()>()).await;
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn receives_and_streams_end_when_their_host_dies() {
    let test = begin!();
    // One for a channel, one for a stream.
    let Some(((first, one), (_, two))) = other(&test).zip(other(&test)) else {
        return;
    };
    let has_streams = !is_iwarp();
    run(Way::Tokio, async move {
        let context = context();
        let bound = Duration::from_secs(3);
        let builder = Channel::builder(&context.alloc_pd().unwrap()).peer_timeout(bound);
        let group = AsyncGroup::new(builder, 2, &events(Way::Tokio, &context)).unwrap();
        let pool = BufferPool::new(group.pd(), 8, 4).unwrap();
        let mut prepared = group.prepare().unwrap();
        prepared.start_receive(block(&pool, &[0; 8])).unwrap();
        let met = group.exchange_prepared(prepared, one, PATIENCE).await;
        let channel = met.unwrap().channel;
        let waits = channel.prepared_receives().pop().unwrap();
        let other = group.exchange(two, PATIENCE).await.unwrap().channel;
        let mut stream = has_streams.then(|| other.into_stream().unwrap());
        if !first {
            waits.await.0.unwrap();
            // At once, without closing any connection.
            fs::write("/proc/sysrq-trigger", "o").unwrap();
            thread::sleep(PATIENCE);
            panic!("this machine does not die");
        }
        if let Some(stream) = &mut stream {
            // The device has nothing to send again then.
            stream.write_all(b"works").await.unwrap();
            stream.flush().await.unwrap();
        }
        channel.send(block(&pool, &[1; 8])).await.0.unwrap();
        let start = Instant::now();
        let seen = |layer, error: &dyn std::error::Error| {
            let within = faults::setting(start, "[`peer_timeout`]", bound);
            faults::error(faults::HOST, layer, error, within);
        };
        // Nothing is sent to it any more: only keepalive detects that it is dead.
        let (result, _) = within(PATIENCE, waits).await.expect("it waits on");
        if let Err(error) = &result {
            seen("async", error);
        }
        let reason = DownReason::PeerLost;
        assert!(
            matches!(result, Err(TransportError::Aborted(r)) if r == reason),
            "{result:?}"
        );
        assert_eq!(channel.down_reason(), Some(reason));
        if let Some(stream) = &mut stream {
            let read = within(PATIENCE, stream.read(&mut [0; 8])).await;
            seen("stream", &read.expect("it waits on").unwrap_err());
        }
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn dead_host_takes_the_channel_down() {
    let test = begin!(iwarp lacks "retries");
    let Some((first, stream)) = other(&test) else {
        return;
    };
    run(Way::Tokio, async move {
        let (group, channel) = meet(Way::Tokio, stream).await;
        let pool = BufferPool::new(group.pd(), 8, 256).unwrap();
        let own = || block(&pool, &[1; 8]);
        if !first {
            let receives: Vec<_> = (0..8).map(|_| channel.receive(own())).collect();
            for receive in receives {
                receive.await.0.unwrap();
            }
            // At once, without closing any connection.
            fs::write("/proc/sysrq-trigger", "o").unwrap();
            thread::sleep(PATIENCE);
            panic!("this machine does not die");
        }
        let waits = channel.receive(own());
        // The first eight arrive; the others are on their way when it dies.
        let sends: Vec<_> = (0..100).map(|_| channel.send(own())).collect();
        let ended = within(2 * PATIENCE, join_all(sends)).await;
        let ended = ended.expect("some wait forever");
        assert!(ended.iter().take(8).all(|(result, _)| result.is_ok()));
        let failed = ended.into_iter().map(|(result, _)| result);
        let mut failed = failed.skip_while(Result::is_ok);
        let Some(Err(TransportError::Work { queue, error })) = failed.next() else {
            panic!("the device does not report why");
        };
        assert_eq!(error.status, WcStatus::RETRY_EXC_ERR);
        assert!(failed.all(|result| result.is_err()));
        assert_eq!(
            channel.down_reason(),
            Some(DownReason::Work { queue, error })
        );
        let ended = within(PATIENCE, waits).await.expect("it waits on");
        assert!(ended.0.is_err());
        drop((ended, channel));
        assert_eq!(pool.available(), pool.capacity());
    });
}
