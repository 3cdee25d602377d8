//! Tests that two machines on one wire run at the same time: `SOFT_ROCE_HOST` is the number of this
//! one, `SOFT_ROCE_PEER` is the address of the other.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use std::{fs, thread};

use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use verbs_async::AsyncGroup;
use verbs_async::verbs_channel::{BufferPool, Channel, DownReason, TransportError};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{PATIENCE, Test, begin, context, faults, until};

use super::ends::{Way, block, events, run, within};

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
