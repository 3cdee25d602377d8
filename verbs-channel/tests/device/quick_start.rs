//! The examples of the documentation, run: the quick start, the README's and the group's.

use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::Duration;

use verbs_channel::verbs_core::Context;
use verbs_channel::{BufferPool, Channel};
use verbs_harness::begin;

use super::ends::pattern;

type Anything = Box<dyn std::error::Error>;

fn quick_start() -> Result<(), Anything> {
    let pd = Context::first_active()?.alloc_pd()?;
    let (mut left, mut right) = Channel::loopback(&pd)?;

    let hello = pd.reg_mr(b"hello".to_vec())?;
    let mut inbox = pd.reg_mr(vec![0_u8; 64])?;

    let received = right.scope(|scope| {
        let receive = scope.post_receive(inbox.scatter_element(..)?)?;
        left.send(hello.gather_element(..)?)?;
        Ok::<_, verbs_channel::Error>(receive.spin_poll()?)
    })?;
    assert_eq!(&inbox[..received.byte_len() as usize], b"hello");
    Ok(())
}

fn group(listener: &TcpListener) -> Result<Vec<u8>, Anything> {
    let pd = Context::first_active()?.alloc_pd()?;
    let pool = BufferPool::new(&pd, 4096, 1024)?;
    let mut group = Channel::builder(&pd).max_recv_wr(8).group(100)?;
    let member = group
        .prepare()?
        .accept(listener, Duration::from_secs(5))?
        .channel;
    let at = group.join(member)?;
    let block = pool.take().unwrap();
    let _ticket = group.channel(at)?.start_receive(block)?;
    let completed = group.wait_completed(Some(Duration::from_secs(5))).unwrap();
    let len = completed.result?.byte_len() as usize;
    Ok(completed.buffer.unwrap()[..len].to_vec())
}

fn readme(server: (Ipv4Addr, u16), message: Vec<u8>) -> Result<(), Anything> {
    let pd = Context::first_active()?.alloc_pd()?;
    let message = pd.reg_mr(message)?;
    let prepared = Channel::builder(&pd)
        .timeout(Duration::from_secs(5))
        .build()?;
    let mut channel = prepared.connect(server, Duration::from_secs(10))?.channel;
    channel.send(message.gather_element(..)?)?;
    Ok(())
}

#[test]
#[ignore = "needs an RDMA device"]
fn quick_start_works_as_written() {
    let _test = begin!();
    quick_start().unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn client_and_server_examples_work_as_written() {
    let _test = begin!(iwarp lacks "connecting over TCP");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::scope(|threads| {
        let client = threads.spawn(move || {
            let sent = readme((Ipv4Addr::LOCALHOST, port), pattern(1, 1000));
            sent.map_err(|error| error.to_string())
        });
        assert!(group(&listener).unwrap() == pattern(1, 1000));
        client.join().unwrap().unwrap();
    });
}
