//! The server of the guide, whose chapter *A server* goes through it: it answers with the same bytes in capitals.
//!
//! `hello_server` is the server, `hello_server HOST:7471 QUESTION` a client.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a lesson prints")]

use std::env;
use std::net::TcpListener;
use std::time::Duration;

use verbs_channel::error::ErrorChain;
use verbs_channel::verbs_core::{Context, ProtectionDomain};
use verbs_channel::{Channel, DownReason, Error, PollStrategy, Result};

fn open() -> Result<ProtectionDomain> {
    // The first device with an active port. To name one: `Device::by_name("mlx5_0")?.open()?`.
    let context = Context::first_active()?;
    println!("using {}", context.device().name());
    Ok(context.alloc_pd()?)
}

fn accept(pd: &ProtectionDomain, listener: &TcpListener) -> Result<Channel> {
    let sleeps = PollStrategy::Notify { after: 1000 }; // after this many empty polls
    let prepared = Channel::builder(pd).strategy(sleeps).build()?; // not connected yet
    Ok(prepared.accept(listener, Duration::from_secs(60))?.channel)
}

fn serve(channel: &mut Channel) -> Result<()> {
    // Two regions, registered once. Both are used again for each message.
    let mut inbox = channel.pd().reg_mr(vec![0_u8; 4096])?;
    let mut outbox = channel.pd().reg_mr(vec![0_u8; 4096])?;
    loop {
        // Posts a receive and waits for the message. A client that sends before that waits (not on iWARP).
        let received = match channel.receive(inbox.scatter_element(..)?) {
            Ok(received) => received,
            // The client has left, as clients do.
            Err(error) if error.down_reason().is_some_and(DownReason::is_peer_closed) => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let len = received.byte_len() as usize;
        outbox[..len].copy_from_slice(&inbox[..len]);
        outbox[..len].make_ascii_uppercase();
        channel.send(outbox.gather_element(..len)?)?;
    }
}

fn ask(pd: &ProtectionDomain, server: &str, question: &str) -> Result<String> {
    let timeout = Duration::from_secs(10);
    let prepared = Channel::builder(pd).timeout(timeout).build()?;
    let mut channel = prepared.connect(server, timeout)?.channel; // "HOST:7471"
    let outbox = pd.reg_mr(question.as_bytes().to_vec())?;
    let mut inbox = pd.reg_mr(vec![0_u8; 4096])?;
    let received = channel.scope(|scope| {
        let answer = scope.post_receive(inbox.scatter_element(..)?)?;
        scope.post_send(outbox.gather_element(..)?)?;
        Ok::<_, Error>(answer.spin_poll()?)
    })?;
    let answer = &inbox[..received.byte_len() as usize];
    Ok(String::from_utf8_lossy(answer).into_owned())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    if !matches!(args.len(), 0 | 2) {
        return Err("arguments: none, or HOST:7471 QUESTION".into());
    }
    let pd = open()?;
    if let [server, question] = &args[..] {
        println!("{}", ask(&pd, server, question)?);
        return Ok(());
    }
    let listener = TcpListener::bind("0.0.0.0:7471")?;
    loop {
        let served = accept(&pd, &listener).and_then(|mut channel| serve(&mut channel));
        if let Err(error) = served {
            eprintln!("not served: {}", ErrorChain::new(&error));
        }
    }
}
