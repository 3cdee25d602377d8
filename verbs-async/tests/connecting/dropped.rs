//! Channels that are dropped by what the driver calls, and by handshakes that do not complete.

use std::future::Future as _;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::{self, ThreadId};

use fake_libibverbs::{assert_all_is_well, posted, share, with};
use tokio::io::AsyncReadExt as _;
use verbs_async::AsyncChannel;

use crate::bench::{Bench, announce, done};
use crate::gate::{LONG, block_on, events, group, wait_for_the_end};
use crate::transfer_bench::Pair;
use crate::transfers::slow;

/// Drops a channel when it is woken, and waits until the queue pair is being destroyed.
struct Drops {
    channel: Mutex<Option<AsyncChannel>>,
    threads: Mutex<Receiver<ThreadId>>,
    destroyer: Mutex<Option<ThreadId>>,
}

impl Wake for Drops {
    fn wake(self: Arc<Self>) {
        let channel = self.channel.lock().unwrap().take();
        if channel.is_some() {
            drop(channel);
            let destroyer = self.threads.lock().unwrap().recv_timeout(LONG);
            *self.destroyer.lock().unwrap() = destroyer.ok();
        }
    }
}

#[test]
fn queue_pair_is_destroyed_though_a_waker_waits_for_that() {
    let _shared = share();
    let bench = Bench::new();
    let Pair { group, pool, a, b } = Pair::new(&bench);
    let (threads, release) = slow();
    release.send(()).unwrap();
    let drops = Arc::new(Drops {
        channel: Mutex::new(Some(b)),
        threads: Mutex::new(threads),
        destroyer: Mutex::new(None),
    });
    with(|library| library.posted.clear());
    let mut send = pin!(a.send(pool.take().unwrap()));
    let waker = Waker::from(Arc::clone(&drops));
    let mut cx = Context::from_waker(&waker);
    assert!(send.as_mut().poll(&mut cx).is_pending());
    done([posted()[0]]);
    announce(&bench);
    let destroyer = drops.destroyer.lock().unwrap().take();
    let destroyer = destroyer.expect("it was not destroyed while the waker ran");
    assert_ne!(destroyer, thread::current().id());
    assert!(send.as_mut().poll(&mut cx).is_ready());
    with(|library| library.before = None);
    drop((group, a));
}

/// Queue pairs that are destroyed from now on, each with its thread.
struct Destroyers(Receiver<ThreadId>);

impl Destroyers {
    fn new() -> Self {
        let (sender, threads) = mpsc::channel();
        let before = move |verb: &str, _| {
            if verb == "ibv_destroy_qp" {
                sender.send(thread::current().id()).ok();
            }
        };
        with(|library| library.before = Some(Arc::new(before)));
        Self(threads)
    }

    /// Waits until one is destroyed, by a helper thread.
    fn assert_helper(&self) {
        let thread = self.0.recv_timeout(LONG).expect("it is not destroyed");
        assert_ne!(thread, thread::current().id(), "the executor is blocked");
    }
}

#[test]
fn exchange_that_does_not_complete_destroys_on_a_helper_thread() {
    let _shared = share();
    block_on(async {
        let group = group(&events(), 1);
        let destroyers = Destroyers::new();
        for (is_prepared, is_cancelled) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let ours = TcpStream::from(OwnedFd::from(ours));
            theirs.set_nonblocking(true).unwrap();
            let mut theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
            let prepared = is_prepared.then(|| group.prepare().unwrap());
            let group = group.clone();
            let exchange = tokio::spawn(async move {
                match prepared {
                    Some(prepared) => group.exchange_prepared(prepared, ours, LONG).await,
                    None => group.exchange(ours, LONG).await,
                }
            });
            // It waits for its peer.
            theirs.read_u8().await.unwrap();
            if is_cancelled {
                exchange.abort();
                exchange.await.unwrap_err();
            } else {
                drop(theirs);
                exchange.await.unwrap().unwrap_err();
            }
            destroyers.assert_helper();
        }
    });
    wait_for_the_end();
    assert_all_is_well();
}

#[test]
fn connecting_that_is_never_polled_destroys_on_a_helper_thread() {
    let _shared = share();
    block_on(async {
        let group = group(&events(), 1);
        let destroyers = Destroyers::new();
        let prepared = || group.prepare().unwrap();
        let member = prepared();
        let endpoint = member.endpoint();
        drop(group.handshake(member, &endpoint));
        destroyers.assert_helper();
        let stream = TcpStream::from(OwnedFd::from(UnixStream::pair().unwrap().0));
        drop(group.exchange_prepared(prepared(), stream, LONG));
        destroyers.assert_helper();
        drop(group.connect_prepared(prepared(), "192.0.2.1:7471", LONG));
        destroyers.assert_helper();
    });
    wait_for_the_end();
    assert_all_is_well();
}

#[test]
fn channel_that_finds_no_place_is_destroyed_on_a_helper_thread() {
    let _shared = share();
    block_on(async {
        let group = group(&events(), 1);
        let destroyers = Destroyers::new();
        let [first, second] = [(); 2].map(|()| group.prepare().unwrap());
        let endpoint = first.endpoint();
        let first = group.handshake(first, &endpoint).await.unwrap();
        group.handshake(second, &endpoint).await.unwrap_err();
        destroyers.assert_helper();
        assert!(!first.is_down());
    });
    wait_for_the_end();
    assert_all_is_well();
}

#[cfg(feature = "rdmacm")]
#[test]
fn prepared_channel_with_too_long_data_for_the_manager_is_destroyed_on_a_helper_thread() {
    use verbs_async::verbs_channel::{Connect, Peer};

    let _shared = share();
    block_on(async {
        let group = group(&events(), 1);
        let destroyers = Destroyers::new();
        let options = Connect::within(LONG).private_data(&[0; 300]);
        let peer = Peer::cm("192.0.2.1:7471");
        let connecting = group.connect_prepared(group.prepare().unwrap(), peer, options);
        connecting.await.unwrap_err();
        destroyers.assert_helper();
    });
    wait_for_the_end();
    assert_all_is_well();
}
