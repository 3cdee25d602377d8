//! Connecting: to async peers and blocking ones, in time or not.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use verbs_async::verbs_channel::verbs_core::{Device, ProtectionDomain};
use verbs_async::verbs_channel::{self, Channel, Connect, PreparedChannel};
use verbs_async::{AsyncChannel, AsyncGroup, Error};
use verbs_harness::{begin, context, peer_name};

use super::ends::{PATIENCE, Way, buffer, events, run};

/// The runtimes with TCP of their own.
const RUNTIMES: [Way; 2] = [Way::Tokio, Way::AsyncIo];

fn group(way: Way, max_channels: u32) -> AsyncGroup {
    let pd = context().alloc_pd().unwrap();
    let events = events(way, pd.context());
    AsyncGroup::new(Channel::builder(&pd), max_channels, &events).unwrap()
}

/// A blocking channel at the other end of the wire, with a receive: on iWARP a message needs one that is there
/// before it.
fn blocking() -> PreparedChannel {
    let there = Device::by_name(&peer_name()).unwrap().open().unwrap();
    let pd = there.alloc_pd().unwrap();
    let mut prepared = Channel::builder(&pd).timeout(PATIENCE).build().unwrap();
    let region = pd.reg_mr(vec![0_u8; 8]).unwrap();
    prepared.start_receive(region).unwrap();
    prepared
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn connect(group: &AsyncGroup, to: SocketAddr, data: &[u8]) -> Result<Met, Error> {
    let options = Connect::within(PATIENCE).private_data(data);
    group.connect(to, options).await
}

async fn accept(group: &AsyncGroup, listener: TcpListener, data: &[u8]) -> Result<Met, Error> {
    let options = Connect::within(PATIENCE).private_data(data);
    let mut listener = group.listen(listener, options).await.unwrap();
    listener.accept().await.unwrap().outcome
}

type Met = verbs_channel::connect::Met<AsyncChannel>;

/// Sends a message, and waits for its echo.
async fn echoed(pd: &ProtectionDomain, channel: &AsyncChannel) {
    let answer = channel.receive(buffer(pd, &[0; 8]));
    let (sent, _) = channel.send(buffer(pd, b"marco")).await;
    sent.unwrap();
    let (received, bytes) = answer.await;
    assert_eq!(received.unwrap().byte_len(), 5);
    assert_eq!(&bytes[..5], b"marco");
}

/// Echoes the first message.
fn echo(mut channel: Channel) {
    let receive = channel.prepared_receives().pop().unwrap();
    let (received, message) = channel.wait_success(receive).unwrap();
    let message = received.message_in(&message).unwrap();
    let region = channel.pd().reg_mr(message.to_vec()).unwrap();
    channel.send(region.gather_element(..).unwrap()).unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_async_channel_connects_to_a_blocking_one_and_accepts_it() {
    let _test = begin!();
    for way in RUNTIMES {
        for accepts in [false, true] {
            let (listener, address) = listener();
            let (ours, theirs) = match accepts {
                true => (Some(listener), None),
                false => (None, Some(listener)),
            };
            let peer = thread::spawn(move || {
                let options = Connect::within(PATIENCE).private_data(b"theirs");
                let met = match theirs {
                    Some(listener) => blocking().accept(&listener, options),
                    None => blocking().connect(address, options),
                };
                let met = met.unwrap();
                assert_eq!(met.private_data, b"ours");
                echo(met.channel);
            });
            run(way, async move {
                let group = group(way, 1);
                let met = match ours {
                    Some(listener) => accept(&group, listener, b"ours").await,
                    None => connect(&group, address, b"ours").await,
                };
                let met = met.unwrap();
                assert_eq!(met.private_data, b"theirs");
                echoed(group.pd(), &met.channel).await;
            });
            peer.join().unwrap();
        }
        let (listener, address) = listener();
        let peer =
            thread::spawn(move || echo(blocking().accept(&listener, PATIENCE).unwrap().channel));
        run(way, async move {
            let pd = context().alloc_pd().unwrap();
            let events = events(way, pd.context());
            let connected = AsyncChannel::connect(&pd, &events, address, PATIENCE).await;
            echoed(&pd, &connected.unwrap().channel).await;
        });
        peer.join().unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn connects_over_a_stream_that_is_used_afterwards() {
    let _test = begin!();
    let (listener, address) = listener();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        echo(blocking().exchange(&stream, PATIENCE).unwrap().channel);
        let mut more = String::new();
        stream.read_to_string(&mut more).unwrap();
        assert_eq!(more, "more");
    });
    run(Way::Tokio, async move {
        let group = group(Way::Tokio, 1);
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut stream = stream.into_std().unwrap();
        let theirs = stream.try_clone().unwrap();
        let met = group.exchange(theirs, PATIENCE).await.unwrap();
        echoed(group.pd(), &met.channel).await;
        assert_eq!(stream.write(b"more").unwrap(), 4);
    });
    peer.join().unwrap();
}
