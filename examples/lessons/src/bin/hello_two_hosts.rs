//! A question and its answer between two hosts, which meet over TCP.
//!
//! Start `hello_two_hosts listen 7471` on one host and `hello_two_hosts connect HOST:7471` on the
//! other. They exchange their endpoints over TCP, and the channel keeps that connection: if either
//! process ends, the other one's channel goes down. All else goes over RDMA.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::env;
use std::error::Error;
use std::net::TcpListener;
use std::time::Duration;

use verbs_channel::verbs_core::{Context, ProtectionDomain};
use verbs_channel::{Channel, PreparedChannel};

const PORT: u16 = 7471;
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["listen"] => listen(PORT),
        ["listen", port] => listen(port.parse()?),
        ["connect", host_and_port] => connect(host_and_port),
        _ => Err("usage: hello_two_hosts listen [PORT] | connect HOST:PORT".into()),
    }
}

/// Makes this side's end: a queue pair on the first device with an active port.
fn prepare() -> Result<(ProtectionDomain, PreparedChannel), Box<dyn Error>> {
    let pd = Context::first_active()?.alloc_pd()?;
    let prepared = Channel::builder(&pd).timeout(TIMEOUT).build()?;
    Ok((pd, prepared))
}

fn listen(port: u16) -> Result<(), Box<dyn Error>> {
    let (pd, mut prepared) = prepare()?;
    // Posted before the peer can send. Otherwise the question waits for a receive, but not on iWARP.
    prepared.start_receive(pd.reg_mr(vec![0_u8; 4096])?)?;
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    println!("listening on port {}", listener.local_addr()?.port());
    let mut channel = prepared.accept(&listener, TIMEOUT)?.channel;

    let ticket = channel.prepared_receives().pop().ok_or("no receive")?;
    let (received, inbox) = channel.wait_success(ticket)?;
    let question = received.message_in(&inbox).ok_or("it is not a message")?;
    let question = String::from_utf8_lossy(question);
    println!("question: {question}");

    let answer = pd.reg_mr(question.to_uppercase().into_bytes())?;
    // Returns when the answer is in the peer's memory, so this process can end now.
    channel.send(answer.gather_element(..)?)?;
    println!("answered");
    Ok(())
}

fn connect(peer: &str) -> Result<(), Box<dyn Error>> {
    let (pd, prepared) = prepare()?;
    // A peer that does not listen yet is tried again until the timeout.
    let mut channel = prepared.connect(peer, TIMEOUT)?.channel;

    let question = pd.reg_mr(b"is anybody there?".to_vec())?;
    let mut inbox = pd.reg_mr(vec![0_u8; 4096])?;
    // In a scope the receive is posted before the question is sent: the answer finds it there.
    let received = channel.scope(|scope| {
        let answer = scope.post_receive(inbox.scatter_element(..)?)?;
        scope.post_send(question.gather_element(..)?)?;
        Ok::<_, verbs_channel::Error>(answer.spin_poll()?)
    })?;
    let answer = &inbox[..received.byte_len() as usize];
    assert_eq!(answer, b"IS ANYBODY THERE?");
    println!("answer: {}", String::from_utf8_lossy(answer));
    Ok(())
}
