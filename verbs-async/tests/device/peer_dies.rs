//! A peer whose process is killed, under each notifier.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use futures_util::future::join_all;
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use verbs_async::verbs_channel::verbs_core::Device;
use verbs_async::verbs_channel::{BufferPool, Channel, DownReason, RejectReason, TransportError};
use verbs_async::{AsyncChannel, AsyncGroup};
use verbs_harness::child::{Child, Line, role};
use verbs_harness::{PATIENCE, Test, begin, context, faults, peer_name};

use super::ends::{WAYS, Way, block, events, run, within};

/// The peer: does nothing until it is killed.
fn be_the_peer(port: &str, mut line: Line) {
    let context = Device::by_name(&peer_name()).unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let prepared = Channel::builder(&pd).build().unwrap();
    let address = (Ipv4Addr::LOCALHOST, port.parse().unwrap());
    let channel = prepared.connect(address, PATIENCE);
    line.write("here");
    line.is_slow();
    line.read();
    drop(channel);
}

/// A channel that watches its peer.
async fn watch(way: Way, stream: TcpStream) -> (AsyncGroup, AsyncChannel) {
    let context = context();
    // None of its timeouts is what ends a wait.
    let builder = Channel::builder(&context.alloc_pd().unwrap());
    let builder = builder.drain_timeout(faults::drain_timeout());
    let group = AsyncGroup::new(builder, 1, &events(way, &context)).unwrap();
    let channel = group.exchange(stream, PATIENCE).await.unwrap().channel;
    (group, channel)
}

#[test]
#[ignore = "needs an RDMA device"]
fn receives_end_when_the_peer_is_killed() {
    if let Some((port, line)) = role() {
        return be_the_peer(&port, line);
    }
    let test = begin!();
    for way in WAYS {
        let (mut child, stream) = start(&test);
        run(way, async move {
            let (group, channel) = watch(way, stream).await;
            child.line.read();
            let pool = BufferPool::new(group.pd(), 8, 4).unwrap();
            let receiving = channel.receive(block(&pool, &[1; 8]));
            assert!(!channel.is_down());
            let start = Instant::now();
            child.kill();
            let ended = within(PATIENCE, receiving).await;
            let (result, own) = ended.expect("it waits on");
            assert!(
                matches!(result, Err(TransportError::Aborted(DownReason::PeerClosed))),
                "{result:?}"
            );
            let error = result.unwrap_err();
            faults::error(faults::KILLED, "async", &error, faults::at_once(start));
            drop(own);
            assert_eq!(channel.down_reason(), Some(DownReason::PeerClosed));
            let (result, own) = channel.send(block(&pool, &[1; 8])).await;
            assert!(
                matches!(
                    result,
                    Err(TransportError::Rejected(RejectReason::Down(
                        DownReason::PeerClosed
                    )))
                ),
                "{result:?}"
            );
            let error = result.unwrap_err();
            let left = error.down_reason().is_some_and(DownReason::is_peer_closed);
            assert!(left, "{error:?}");
            drop(own);
            assert_eq!(pool.available(), pool.capacity());
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn everything_a_peer_sent_before_it_left_is_received() {
    const MESSAGES: u8 = 40;
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    for way in WAYS {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let context = Device::by_name(&peer_name()).unwrap().open().unwrap();
            let pd = context.alloc_pd().unwrap();
            let prepared = Channel::builder(&pd).build().unwrap();
            let mut channel = prepared.connect(address, PATIENCE).unwrap().channel;
            for at in 0..MESSAGES {
                let from = pd.reg_mr(vec![at; 8]).unwrap();
                channel.send(from.gather_element(..).unwrap()).unwrap();
            }
        });
        let stream = listener.accept().unwrap().0;
        run(way, async move {
            let (group, channel) = watch(way, stream).await;
            let pool = BufferPool::new(group.pd(), 8, 64).unwrap();
            let receives: Vec<_> = (0..=MESSAGES)
                .map(|_| channel.receive(block(&pool, &[0; 8])))
                .collect();
            let start = Instant::now();
            let ended = within(PATIENCE, join_all(receives)).await;
            let mut ended = ended.expect("some wait forever");
            let (last, _) = ended.pop().unwrap();
            assert!(
                matches!(last, Err(TransportError::Aborted(DownReason::PeerClosed))),
                "{last:?}"
            );
            let last = last.unwrap_err();
            faults::error(faults::CLOSED, "async", &last, faults::at_once(start));
            for (at, (result, bytes)) in (0..).zip(ended) {
                result.unwrap();
                assert_eq!(bytes[..], [at; 8]);
            }
        });
        peer.join().unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn stream_reads_what_arrived_then_the_peers_end() {
    if let Some((port, mut line)) = role() {
        pollster::block_on(async {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().unwrap()));
            let (_group, channel) = watch(Way::Thread, stream.unwrap()).await;
            let mut stream = channel.into_stream().unwrap();
            stream.write_all(b"last words").await.unwrap();
            stream.flush().await.unwrap();
            line.write("here");
            line.is_slow();
            line.read();
        });
        return;
    }
    let test = begin!(iwarp lacks "the immediates that streams need");
    for way in WAYS {
        let (mut child, stream) = start(&test);
        run(way, async move {
            let (_group, channel) = watch(way, stream).await;
            let mut stream = channel.into_stream().unwrap();
            child.line.read();
            let start = Instant::now();
            child.kill();
            let mut bytes = Vec::new();
            let read = within(PATIENCE, stream.read_to_end(&mut bytes)).await;
            let error = read.expect("it waits on").unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
            faults::error(faults::KILLED, "stream", &error, faults::at_once(start));
            assert_eq!(bytes, b"last words");
            let written = within(PATIENCE, stream.write_all(b"too late")).await;
            let error = written.expect("it waits on").unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        });
    }
}

/// A peer in a process of its own, and the stream to meet it over.
fn start(test: &Test) -> (Child, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let child = Child::start(test, &port.to_string());
    (child, listener.accept().unwrap().0)
}
