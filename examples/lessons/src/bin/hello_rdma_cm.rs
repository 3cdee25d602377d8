//! A message and its answer between two hosts, which meet by `rdma_cm`: without TCP.
//!
//! Start `hello_rdma_cm listen ADDRESS:PORT` on one host, with the IP address of its RDMA device, and
//! `hello_rdma_cm connect ADDRESS:PORT` on the other. Storage protocols connect so, and iWARP always
//! does. If either process ends, the other one's channel goes down, as over TCP.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::env;
use std::error::Error;
use std::time::Duration;

use verbs_channel::verbs_core::{Context, ProtectionDomain, rdmacm::Listener};
use verbs_channel::{Channel, Peer, PreparedChannel};

const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["listen", address] => listen(address),
        ["connect", address] => connect(address),
        _ => Err("usage: hello_rdma_cm listen ADDRESS:PORT | connect ADDRESS:PORT".into()),
    }
}

/// Makes this side's end. The device has to be the one that `rdma_cm` finds for the address.
fn prepare() -> Result<(ProtectionDomain, PreparedChannel), Box<dyn Error>> {
    let pd = Context::first_active()?.alloc_pd()?;
    let prepared = Channel::builder(&pd).timeout(TIMEOUT).build()?;
    Ok((pd, prepared))
}

fn listen(address: &str) -> Result<(), Box<dyn Error>> {
    let (pd, mut prepared) = prepare()?;
    // Posted before the peer is accepted: its first message finds the receive.
    prepared.start_receive(pd.reg_mr(vec![0_u8; 4096])?)?;
    let mut listener = Listener::bind(address.parse()?, 1)?;
    let address = listener.local_addr().ok_or("no address")?;
    println!("listening at {address}");
    let mut channel = prepared.accept(&mut listener, TIMEOUT)?.channel;

    let received = channel.wait_completed(TIMEOUT).ok_or("no message")?;
    received.result?;
    let text = String::from_utf8_lossy(received.message().ok_or("no message")?);
    println!("received \"{text}\"");

    let answer = pd.reg_mr(text.to_uppercase().into_bytes())?;
    // Returns when the answer is in the peer's memory, so this process can end now.
    channel.send(answer.gather_element(..)?)?;
    println!("answered");
    Ok(())
}

fn connect(address: &str) -> Result<(), Box<dyn Error>> {
    let (pd, mut prepared) = prepare()?;
    prepared.start_receive(pd.reg_mr(vec![0_u8; 4096])?)?;
    // A peer that does not listen yet is tried again until the timeout.
    let mut channel = prepared.connect(Peer::cm(address), TIMEOUT)?.channel;

    let message = pd.reg_mr(b"hello".to_vec())?;
    channel.send(message.gather_element(..)?)?;

    let received = channel.wait_completed(TIMEOUT).ok_or("no answer")?;
    received.result?;
    let answer = received.message().ok_or("no answer")?;
    assert_eq!(answer, b"HELLO");
    println!("answer: \"{}\"", String::from_utf8_lossy(answer));
    Ok(())
}
