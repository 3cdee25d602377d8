//! A peer whose process is killed, under each notifier.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use verbs_async::verbs_channel::verbs_core::{
    AccessFlags, AckTimeout, Device, MaxAckRetries, RemoteMemoryRegion, WcStatus,
};
use verbs_async::verbs_channel::{
    BufferPool, Channel, Connect, DownReason, RejectReason, TransportError,
};
use verbs_async::{AsyncChannel, AsyncGroup, Error};
use verbs_harness::child::{Child, Line, role};
use verbs_harness::{PATIENCE, Test, begin, context, faults, peer_name};

use super::ends::{WAYS, Way, block, events, run, within};

const SOON: Duration = Duration::from_millis(300);

/// The peer: sends its region's address and key, and does nothing more until it is killed.
fn be_the_peer(port: &str, mut line: Line) {
    let context = Device::by_name(&peer_name()).unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let region = pd.reg_shared(vec![5_u8; 64], AccessFlags::REMOTE).unwrap();
    let remote = region.remote();
    let words = [remote.addr(), u64::from(remote.rkey())].map(u64::to_be_bytes);
    let prepared = Channel::builder(&pd).build().unwrap();
    let address = (Ipv4Addr::LOCALHOST, port.parse().unwrap());
    let channel = prepared.connect(
        address,
        Connect::within(PATIENCE).private_data(&words.concat()),
    );
    line.write("here");
    line.is_slow();
    line.read();
    drop(channel);
}

/// A peer's region, from the address and key that it sent.
fn remote(words: &[u8]) -> RemoteMemoryRegion {
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    let rkey = u32::try_from(number(&words[8..])).unwrap();
    RemoteMemoryRegion::new(number(&words[..8]), 64, rkey).unwrap()
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
                matches!(
                    result,
                    Err(Error::Transport(TransportError::Aborted(
                        DownReason::PeerClosed
                    )))
                ),
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
                    Err(Error::Rejected(RejectReason::Down(DownReason::PeerClosed)))
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
fn channel_goes_down_when_its_peer_is_killed_and_no_task_waits() {
    if let Some((port, line)) = role() {
        return be_the_peer(&port, line);
    }
    let test = begin!();
    for way in WAYS {
        let (mut child, stream) = start(&test);
        run(way, async move {
            let (_group, channel) = watch(way, stream).await;
            child.line.read();
            child.kill();
            let is_down = async {
                while !channel.is_down() {
                    within(Duration::from_millis(5), std::future::pending::<()>()).await;
                }
            };
            within(PATIENCE, is_down).await.expect("it stays up");
            assert_eq!(channel.down_reason(), Some(DownReason::PeerClosed));
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
                matches!(
                    last,
                    Err(Error::Transport(TransportError::Aborted(
                        DownReason::PeerClosed
                    )))
                ),
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

/// A channel whose device reports a dead peer after about 100 ms, and the peer's region.
async fn meet(way: Way, stream: TcpStream) -> (AsyncGroup, AsyncChannel, RemoteMemoryRegion) {
    let context = context();
    let builder = Channel::builder(&context.alloc_pd().unwrap())
        .peer_timeout(None)
        .ack_timeout(AckTimeout::new(12).unwrap())
        .retry_cnt(MaxAckRetries::new(3).unwrap());
    let group = AsyncGroup::new(builder, 1, &events(way, &context)).unwrap();
    let met = group.exchange(stream, PATIENCE).await.unwrap();
    (group, met.channel, remote(&met.private_data))
}

/// A peer in a process of its own, and the stream to meet it over.
fn start(test: &Test) -> (Child, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let child = Child::start(test, &port.to_string());
    (child, listener.accept().unwrap().0)
}

#[test]
#[ignore = "needs an RDMA device"]
fn unwatched_receives_wait_until_the_channel_is_closed() {
    if let Some((port, line)) = role() {
        return be_the_peer(&port, line);
    }
    let test = begin!(iwarp lacks "connections that outlive the peer");
    for way in WAYS {
        let (mut child, stream) = start(&test);
        run(way, async move {
            let (group, channel, _) = meet(way, stream).await;
            child.line.read();
            let pool = BufferPool::new(group.pd(), 8, 4).unwrap();
            let mut receiving = channel.receive(block(&pool, &[1; 8]));
            let another = channel.receive(block(&pool, &[1; 8]));
            child.kill();
            // A reliable connection has no keepalive, and the peer is not watched.
            assert!(within(SOON, &mut receiving).await.is_none());
            assert!(!channel.is_down());
            drop(another);
            // A task that does not want to wait any longer closes the channel.
            let closing = within(PATIENCE, channel.close()).await;
            closing.expect("receives are not waited for").unwrap();
            let (result, own) = receiving.await;
            let is_closed = matches!(
                result,
                Err(Error::Transport(TransportError::Aborted(
                    DownReason::Closed
                )))
            );
            assert!(is_closed, "{result:?}");
            drop(own);
            assert_eq!(pool.available(), pool.capacity());
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn unwatched_sends_fail_by_the_transports_timeout() {
    if let Some((port, line)) = role() {
        return be_the_peer(&port, line);
    }
    let test = begin!(iwarp lacks "retries");
    for way in WAYS {
        let (mut child, stream) = start(&test);
        run(way, async move {
            let (group, channel, remote) = meet(way, stream).await;
            child.line.read();
            let pool = BufferPool::new(group.pd(), 64, 256).unwrap();
            let own = || block(&pool, &[1; 64]);
            // It works while the peer lives.
            let (read, bytes) = channel.read(own(), remote).await;
            read.unwrap();
            assert_eq!(bytes[..], [5; 64]);
            drop(bytes);
            let receiving = channel.receive(own());
            child.kill();
            // In flight and in the backlog.
            let operations: Vec<_> = (0..40)
                .flat_map(|_| [channel.write(own(), remote), channel.send(own())])
                .collect();
            let ended = within(PATIENCE, join_all(operations)).await;
            let mut first = None;
            for (result, buffer) in ended.expect("some wait forever") {
                assert_eq!(buffer.len(), 64);
                match result {
                    Err(Error::Transport(TransportError::Work { queue, error })) => {
                        first.get_or_insert((queue, error));
                    }
                    Err(Error::Transport(TransportError::Aborted(_))) => (),
                    Err(Error::Rejected(RejectReason::Down(_))) => (),
                    other => panic!("{other:?}"),
                }
            }
            let (queue, error) = first.expect("the device reports the reason");
            assert_eq!(error.status, WcStatus::RETRY_EXC_ERR);
            assert_eq!(
                channel.down_reason(),
                Some(DownReason::Work { queue, error })
            );
            // The receive ends with the others.
            let (result, _) = within(PATIENCE, receiving).await.expect("it waits on");
            assert!(matches!(result, Err(Error::Transport(_))), "{result:?}");
            assert!(matches!(channel.close().await, Err(Error::Down(_))));
            assert_eq!(pool.available(), pool.capacity());
        });
    }
}
