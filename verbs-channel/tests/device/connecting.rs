//! Connecting over TCP: two processes, and a peer that sends at once.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use verbs_channel::connect::Met;
use verbs_channel::verbs_core::{AccessFlags, GatherElement, MaxRnrRetries, RemoteMemoryRegion};
use verbs_channel::{BufferPool, Channel, Connect, Error};
use verbs_harness::child::{Child, role};
use verbs_harness::{PATIENCE, begin};

use super::ends::{SOON, filled, here, patient, pattern, there, works, zeros};

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// The other process: has memory to read from, and echoes a message.
fn echo(port: u16) {
    let pd = there();
    let mut prepared = patient(&pd);
    // On iWARP a message needs a receive that is there before it.
    for len in [5000, 1] {
        let into = pd.reg_mr(vec![0_u8; len]).unwrap();
        prepared.start_receive(into).unwrap();
    }
    let source = pd
        .reg_shared(pattern(9, 3000), AccessFlags::REMOTE)
        .unwrap();
    let remote = source.remote();
    let data = [remote.addr(), remote.len(), u64::from(remote.rkey())]
        .map(u64::to_be_bytes)
        .concat();
    let address = (Ipv4Addr::LOCALHOST, port);
    let Met {
        mut channel,
        private_data: theirs,
        ..
    } = prepared
        .connect(address, Connect::within(PATIENCE).private_data(&data))
        .unwrap();
    assert_eq!(theirs, b"hello");
    let [message, last] = channel.prepared_receives()[..] else {
        panic!("two receives");
    };
    let (_, message) = channel.wait_success(message).unwrap();
    let echo = channel.start_send(message).unwrap();
    channel.wait_success(echo).unwrap();
    // The first process is done with the memory.
    channel.wait_success(last).unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn two_processes_connect_and_exchange_messages() {
    if let Some((port, mut line)) = role() {
        echo(port.parse().unwrap());
        line.write("done");
        return;
    }
    let test = begin!();
    let (listener, address) = listener();
    let mut child = Child::start(&test, &address.port().to_string());
    let prepared = patient(&here());
    let Met {
        mut channel,
        private_data: data,
        ..
    } = prepared
        .accept(&listener, Connect::within(PATIENCE).private_data(b"hello"))
        .unwrap();
    let mut numbers = data
        .chunks(8)
        .map(|number| u64::from_be_bytes(number.try_into().unwrap()));
    let mut next = || numbers.next().unwrap();
    let (addr, len, rkey) = (next(), next(), u32::try_from(next()).unwrap());
    let remote = RemoteMemoryRegion::new(addr, len, rkey).unwrap();
    let from = filled(&channel, 1, 5000);
    let mut into = zeros(&channel, 5000);
    let echoed = channel.scope(|scope| {
        let receive = scope.post_receive(into.scatter_element(..)?)?;
        drop(scope.post_send(from.gather_element(..)?)?);
        Ok::<_, Error>(receive.spin_poll()?)
    });
    assert_eq!(echoed.unwrap().byte_len(), 5000);
    assert!(into[..] == from[..]);
    let mut read = zeros(&channel, 3000);
    channel
        .read(read.scatter_element(..).unwrap(), remote)
        .unwrap();
    assert!(read[..] == pattern(9, 3000));
    channel.send(Vec::<GatherElement<'_>>::new()).unwrap();
    assert_eq!(child.line.read(), "done");
    assert!(child.ended().success());
}

#[test]
#[ignore = "needs an RDMA device"]
fn first_side_to_connect_waits_for_the_other() {
    let _test = begin!();
    let (probe, address) = listener();
    drop(probe);
    thread::scope(|threads| {
        let connecting =
            threads.spawn(|| patient(&here()).connect(address, PATIENCE).unwrap().channel);
        thread::sleep(SOON);
        let listener = TcpListener::bind(address).unwrap();
        let mut b = patient(&there())
            .accept(&listener, PATIENCE)
            .unwrap()
            .channel;
        let mut a = connecting.join().unwrap();
        works(&mut a, &mut b, 1000);
        // The listener still accepts the next peer.
        let connecting =
            threads.spawn(|| patient(&here()).connect(address, PATIENCE).unwrap().channel);
        let mut d = patient(&there())
            .accept(&listener, PATIENCE)
            .unwrap()
            .channel;
        works(&mut connecting.join().unwrap(), &mut d, 1000);
        works(&mut a, &mut b, 1000);
    });
}

/// Connects, and sends this many messages at once, whose device does not retry.
fn send_at_once(address: SocketAddr, messages: usize) {
    let builder = Channel::builder(&there()).timeout(PATIENCE);
    let prepared = builder.rnr_retry(MaxRnrRetries::new(0).unwrap()).build();
    let mut channel = prepared
        .unwrap()
        .connect(address, PATIENCE)
        .unwrap()
        .channel;
    for message in 0..messages {
        let from = filled(&channel, message, 64);
        channel.send(from.gather_element(..).unwrap()).unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn peer_that_sends_at_once_finds_the_prepared_receives() {
    let _test = begin!();
    for _ in 0..10 {
        let (listener, address) = listener();
        let pd = here();
        let pool = BufferPool::new(&pd, 64, 3).unwrap();
        let mut prepared = patient(&pd);
        while let Some(block) = pool.take() {
            prepared.start_receive(block).unwrap();
        }
        let peer = thread::spawn(move || send_at_once(address, 3));
        let mut channel = prepared.accept(&listener, PATIENCE).unwrap().channel;
        peer.join().unwrap();
        for (message, ticket) in channel.prepared_receives().into_iter().enumerate() {
            let (received, block) = channel.wait_success(ticket).unwrap();
            assert!(received.message_in(&block).unwrap() == pattern(message, 64));
        }
        assert_eq!(pool.available(), 3);
    }
}
