//! A peer whose process is killed, under each notifier.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use async_io::Async;
use futures_util::future::join_all;
use verbs_async::verbs_channel::verbs_core::{
    AccessFlags, AckTimeout, Device, MaxAckRetries, RemoteMemoryRegion, WcStatus,
};
use verbs_async::verbs_channel::{BufferPool, Channel, DownReason, Refusal, TransportError};
use verbs_async::{AsyncChannel, AsyncGroup, Error};

use crate::ends::{WAYS, Way, block, events, run, within};
use crate::harness::child::{Child, Line, role};
use crate::harness::{PATIENCE, Test, begin, context, peer_name};

const SOON: Duration = Duration::from_millis(300);

/// The peer: gives a region, and does nothing more until it is killed.
fn be_the_peer(port: &str, mut line: Line) {
    let context = Device::by_name(&peer_name()).unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let region = pd.reg_shared(vec![5_u8; 64], AccessFlags::REMOTE).unwrap();
    let remote = region.remote();
    let words = [remote.addr(), u64::from(remote.rkey())].map(u64::to_be_bytes);
    let prepared = Channel::builder(&pd).build().unwrap();
    let address = (Ipv4Addr::LOCALHOST, port.parse().unwrap());
    let channel = prepared.connect_with(address, PATIENCE, &words.concat());
    line.say("here");
    line.is_slow();
    line.hear();
    drop(channel);
}

/// A peer's memory, as it gave it.
fn remote(words: &[u8]) -> RemoteMemoryRegion {
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    let rkey = u32::try_from(number(&words[8..])).unwrap();
    RemoteMemoryRegion::new(number(&words[..8]), 64, rkey).unwrap()
}

/// A channel whose card gives up on a dead peer in some 100 ms, and the peer's memory.
async fn meet(way: Way, stream: TcpStream) -> (AsyncGroup, AsyncChannel, RemoteMemoryRegion) {
    let context = context();
    let builder = Channel::builder(&context.alloc_pd().unwrap())
        .peer_timeout(None)
        .ack_timeout(AckTimeout::new(12).unwrap())
        .retry_cnt(MaxAckRetries::new(3).unwrap());
    let group = AsyncGroup::new(builder, 1, &events(way, &context)).unwrap();
    let stream = Async::new(stream).unwrap();
    let (channel, words) = group.exchange(stream, b"").await.unwrap();
    (group, channel, remote(&words))
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
fn receives_alone_wait_as_long_as_they_are_waited_for() {
    if let Some((port, line)) = role() {
        return be_the_peer(&port, line);
    }
    let test = begin!();
    for way in WAYS {
        let (mut child, stream) = start(&test);
        run(way, async move {
            let (group, channel, _) = meet(way, stream).await;
            child.line.hear();
            let pool = BufferPool::new(group.pd(), 8, 4).unwrap();
            let mut receiving = channel.receive(block(&pool, &[1; 8]));
            let another = channel.receive(block(&pool, &[1; 8]));
            child.kill();
            // A reliable connection has no keepalive, and the peer is not watched.
            assert!(within(SOON, &mut receiving).await.is_none());
            assert!(!channel.is_down());
            drop(another);
            // Who does not want to wait any longer gives the channel up.
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
fn with_work_posted_the_card_gives_up_by_itself() {
    if let Some((port, line)) = role() {
        return be_the_peer(&port, line);
    }
    let test = begin!();
    for way in WAYS {
        let (mut child, stream) = start(&test);
        run(way, async move {
            let (group, channel, remote) = meet(way, stream).await;
            child.line.hear();
            let pool = BufferPool::new(group.pd(), 64, 256).unwrap();
            let own = || block(&pool, &[1; 64]);
            // It works while the peer lives.
            let (read, bytes) = channel.read(own(), remote).await;
            read.unwrap();
            assert_eq!(bytes[..], [5; 64]);
            drop(bytes);
            let receiving = channel.receive(own());
            child.kill();
            // In flight and in line.
            let operations: Vec<_> = (0..40)
                .flat_map(|_| [channel.write(own(), remote), channel.send(own())])
                .collect();
            let ended = within(PATIENCE, join_all(operations)).await;
            let mut first = None;
            for (result, buffer) in ended.expect("some wait for ever") {
                assert_eq!(buffer.len(), 64);
                match result {
                    Err(Error::Transport(TransportError::Work { queue, error })) => {
                        first.get_or_insert((queue, error));
                    }
                    Err(Error::Transport(TransportError::Aborted(_))) => (),
                    Err(Error::Refused(Refusal::Down(_))) => (),
                    other => panic!("{other:?}"),
                }
            }
            let (queue, error) = first.expect("the card says why");
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
