//! Connecting by `rdma_cm`, on every notifier: to async and blocking peers, to other programs, and to none.

use std::fs;
use std::net::SocketAddr;
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::{Either, join, select};
use futures_util::io::{AsyncReadExt as _, AsyncWriteExt as _};
use verbs_async::verbs_channel::exchange::ExchangeError;
use verbs_async::verbs_channel::verbs_core::rdmacm::{Connector, DatagramListener, Listener};
use verbs_async::verbs_channel::verbs_core::{Device, MaxRnrRetries, ProtectionDomain};
use verbs_async::verbs_channel::{self, Channel, Connect, DownReason, Peer};
use verbs_async::{AsyncChannel, AsyncGroup, CmDatagramListener, Error};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{Test, begin, peer_name, until};

use super::ends::{PATIENCE, WAYS, Way, buffer, events, run, within};

/// The time that has to pass.
const SOON: Duration = Duration::from_millis(100);

/// A listener on the device at the other end of the wire, at its IPv4 address.
struct Server {
    pd: ProtectionDomain,
    listener: Listener,
    addr: SocketAddr,
}

impl Server {
    fn new(test: &Test) -> Option<Self> {
        let there = Device::by_name(&peer_name()).unwrap().open().unwrap();
        let Some(ip) = verbs_harness::ip(&there) else {
            test.skip("the device has no IPv4 address");
            return None;
        };
        let listener = match Listener::bind((ip, 0).into(), 128) {
            Err(error) if error.errno() == Some(libc::ENODEV) => {
                test.skip(format!("the kernel has no connection manager: {error}"));
                return None;
            }
            listener => listener.unwrap(),
        };
        Some(Self {
            pd: there.alloc_pd().unwrap(),
            addr: listener.local_addr().unwrap(),
            listener,
        })
    }
}

/// A domain of the device from which the address is reached.
pub(crate) fn pd_to(addr: SocketAddr) -> ProtectionDomain {
    let resolving = Connector::new().unwrap().resolve_addr(addr, PATIENCE);
    let resolved = resolving.unwrap().wait(Some(PATIENCE)).unwrap();
    let device = Device::by_name(&resolved.device_name()).unwrap();
    device.open().unwrap().alloc_pd().unwrap()
}

fn group(way: Way, pd: &ProtectionDomain) -> AsyncGroup {
    let builder = Channel::builder(pd).max_send_wr(24).max_recv_wr(24);
    AsyncGroup::new(builder, 64, &events(way, pd.context())).unwrap()
}

/// A blocking channel whose device fails a send that finds no receive.
fn hasty(pd: &ProtectionDomain) -> verbs_channel::PreparedChannel {
    let builder = Channel::builder(pd).timeout(PATIENCE);
    let never = MaxRnrRetries::new(0).unwrap();
    builder.rnr_retry(never).build().unwrap()
}

/// Whether these bytes arrived, with zeros behind them but on iWARP.
fn is_padded(arrived: &[u8], sent: &[u8]) -> bool {
    let padding = arrived.strip_prefix(sent);
    padding.is_some_and(|padding| padding.is_empty() == is_iwarp())
}

fn exchange(error: Error) -> ExchangeError {
    match error {
        Error::Channel(verbs_channel::Error::Exchange(failure)) => failure.error,
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn channels_of_their_own_connect_and_accept_one_after_the_other() {
    let test = begin!(iwarp lacks "the immediates that streams need");
    for way in WAYS {
        let Some(Server { pd, listener, addr }) = Server::new(&test) else {
            return;
        };
        run(way, async move {
            let here = pd_to(addr);
            let events = events(way, here.context());
            let servers = group(way, &pd);
            let options = Connect::within(PATIENCE).private_data(b"theirs");
            let mut listener = servers.listen(listener, options).await.unwrap();
            assert_eq!(listener.local_addr(), Some(addr));
            // None comes, and the listener goes on.
            assert!(within(SOON, listener.accept()).await.is_none());
            for _ in 0..2 {
                let options = Connect::within(PATIENCE).private_data(&[7; 49]);
                let connecting = AsyncChannel::connect(&here, &events, Peer::cm(addr), options);
                let (client, server) = join(connecting, listener.accept()).await;
                let (client, server) = (client.unwrap(), server.unwrap().outcome.unwrap());
                assert_eq!(client.private_data, b"theirs");
                assert_eq!(client.channel.peer_addr(), Some(addr));
                assert_eq!(server.private_data, [7; 49]);
                let [mut client, mut server] =
                    [client, server].map(|met| met.channel.into_stream().unwrap());
                client.write_all(b"marco").await.unwrap();
                client.close().await.unwrap();
                let mut read = Vec::new();
                server.read_to_end(&mut read).await.unwrap();
                assert_eq!(read, b"marco");
            }
            listener.close().await;
            if is_iwarp() {
                return;
            }
            // Its private data is too long for RoCE: this side notices that, and rejects the peer.
            let clients = group(way, &here);
            let listener = Listener::bind(addr, 4).unwrap();
            let options = Connect::within(PATIENCE).private_data(&[0; 190]);
            let mut listener = servers.listen(listener, options).await.unwrap();
            let connecting = clients.connect(Peer::cm(addr), PATIENCE);
            let (connected, accepted) = join(connecting, listener.accept()).await;
            let accepted = accepted.unwrap().outcome;
            assert!(connected.is_err());
            let error = exchange(accepted.unwrap_err());
            assert!(
                matches!(
                    error,
                    ExchangeError::PrivateDataBeyondManager { len: 190, max: 189 }
                ),
                "{error:?}"
            );
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn raw_requests_are_accepted_with_receives_that_the_peer_finds() {
    let test = begin!();
    for way in WAYS {
        let Some(Server { pd, listener, addr }) = Server::new(&test) else {
            return;
        };
        let peer = thread::spawn(move || {
            let prepared = hasty(&pd_to(addr));
            let options = Connect::within(PATIENCE).raw_private_data(b"ours");
            let met = prepared.connect(Peer::cm(addr), options).unwrap();
            assert!(is_padded(&met.private_data, b"theirs"));
            let mut channel = met.channel;
            let region = channel.pd().reg_mr(b"marco".to_vec()).unwrap();
            channel.send(region.gather_element(..).unwrap()).unwrap();
            let mut into = channel.pd().reg_mr(vec![0; 8]).unwrap();
            let error = channel.receive(into.scatter_element(..).unwrap());
            assert_eq!(
                error.unwrap_err().down_reason(),
                Some(DownReason::PeerClosed)
            );
        });
        run(way, async move {
            let servers = group(way, &pd);
            let options = Connect::within(PATIENCE).raw_private_data(b"theirs");
            let listener = servers.listen(listener, options).await.unwrap();
            let mut listener = listener.prepare_with(|group, _peer| {
                let mut prepared = group.prepare()?;
                prepared.start_receive(buffer(group.pd(), &[0; 8])).unwrap();
                Ok(prepared)
            });
            let met = listener.accept().await.unwrap().outcome.unwrap();
            assert!(is_padded(&met.private_data, b"ours"));
            let channel = met.channel;
            let receive = channel.prepared_receives().remove(0);
            let (received, block) = receive.await;
            assert_eq!(received.unwrap().byte_len(), 5);
            drop((channel, block));
        });
        peer.join().unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn peers_that_do_not_accept_are_errors_in_time() {
    let test = begin!(iwarp lacks "connections that are given up in milliseconds");
    for way in WAYS {
        let Some(Server { pd, listener, addr }) = Server::new(&test) else {
            return;
        };
        run(way, async move {
            let clients = group(way, &pd_to(addr));
            // It never accepts.
            let started = Instant::now();
            let error = clients.connect(Peer::cm(addr), SOON).await.unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{addr} did not answer within 100 ms")
            );
            assert!(started.elapsed() < PATIENCE / 4);
            // It rejects, with its reason.
            let servers = group(way, &pd);
            let listener = servers.listen(listener, PATIENCE).await.unwrap();
            let mut listener =
                listener.prepare_with(|_group, _peer| Err(std::io::Error::other("no room").into()));
            let connected = {
                let connecting = pin!(clients.connect(Peer::cm(addr), PATIENCE));
                let rejecting = pin!(async {
                    loop {
                        // The first may have given up.
                        listener.accept().await.unwrap().outcome.unwrap_err();
                    }
                });
                let Either::Left((connected, _)) = select(connecting, rejecting).await;
                connected
            };
            let text =
                format!("{addr} refused the connection: \"cannot wait for the device: no room\"");
            assert_eq!(connected.unwrap_err().to_string(), text);
        });
    }
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
#[ignore = "needs an RDMA device"]
fn cancelled_connects_and_accepts_leave_no_descriptor() {
    let test = begin!(alone, iwarp lacks "connections that are given up in milliseconds");
    for way in WAYS {
        let Some(Server { pd, listener, addr }) = Server::new(&test) else {
            return;
        };
        run(way, async move {
            let (clients, servers) = (group(way, &pd_to(addr)), group(way, &pd));
            let mut listener = servers.listen(listener, PATIENCE).await.unwrap();
            // The descriptors of timers and of the sets of peers stay.
            let started = Instant::now();
            let connecting = clients.connect(Peer::cm(addr), PATIENCE);
            let (connected, arrival) = join(connecting, listener.accept()).await;
            drop((connected.unwrap(), arrival.unwrap().outcome.unwrap()));
            let whole = started.elapsed();
            let settled = |at_most: usize| until(PATIENCE / 4, || open_descriptors() <= at_most);
            // So does what the timers of this test need.
            let _late = within(SOON, std::future::pending::<()>()).await;
            let before = open_descriptors();
            let mut connected = 0;
            for at in 0..12 {
                // From before the first step to after the last.
                let both = join(clients.connect(Peer::cm(addr), PATIENCE), listener.accept());
                connected += usize::from(within(whole * at / 8, both).await.is_some());
            }
            println!("{connected} of 12 have connected");
            // Some of its peers have given up, but may not have been noticed yet.
            drop(listener);
            assert!(settled(before), "{} of {before}", open_descriptors());
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn port_of_a_closed_listener_is_free() {
    let test = begin!();
    for way in WAYS {
        let Some(Server { pd, listener, addr }) = Server::new(&test) else {
            return;
        };
        run(way, async move {
            let servers = group(way, &pd);
            let mut listener = Some(listener);
            for at in 0..20 {
                let bound = listener.take();
                let bound = bound.unwrap_or_else(|| Listener::bind(addr, 4).expect("it is free"));
                let mut listener = servers.listen(bound, PATIENCE).await.unwrap();
                // Not polled, and while a request is being taken.
                if at % 2 == 0 {
                    assert!(within(Duration::ZERO, listener.accept()).await.is_none());
                }
                listener.close().await;
                let datagrams = DatagramListener::bind(addr, 4).expect("it is free");
                let datagrams = CmDatagramListener::new(datagrams, &events(way, pd.context()));
                datagrams.unwrap().close().await;
            }
        });
    }
}
