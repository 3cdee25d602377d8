//! Datagrams: one endpoint for any number of peers, without connections.
//!
//! A datagram is one packet, and may be lost. The peer's endpoint must be known to send to it; each
//! datagram that comes has its sender's.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::time::Duration;

use verbs_channel::verbs_core::Context;
use verbs_channel::verbs_core::path::DatagramEndpoint;
use verbs_channel::{BufferPool, Datagrams};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(1));
const CLIENTS: u8 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Context::first_active()?.alloc_pd()?;
    let mut server = Datagrams::builder(&pd).build()?;
    // Usually this goes to another process, by any means: it is 32 bytes.
    let address = server.endpoint().to_bytes();

    let pool = BufferPool::new(&pd, 64, CLIENTS.into())?;
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let mut client = Datagrams::builder(&pd).build()?;
        let to = DatagramEndpoint::from_bytes(&address)?;
        let question = pool.take_with(&[number])?.ok_or("the pool is empty")?;
        // It returns when the datagram is posted. Its buffer is free when the datagram has left.
        client.send_to(&to, question)?;
        clients.push(client);
    }

    // One endpoint answers them all: nothing is kept for a client.
    for _ in 0..CLIENTS {
        let question = server.receive_from(TIMEOUT)?.ok_or("no datagram came")?;
        let from = question.from();
        let mut answer = question.into_buffer();
        if let Some(number) = answer.first_mut() {
            *number += 100;
        }
        server.send_to(&from, answer)?;
    }

    for (number, client) in (0..CLIENTS).zip(&mut clients) {
        // A program sends its question again if no answer comes: either may have been lost.
        let answer = client.receive_from(TIMEOUT)?.ok_or("no answer came")?;
        assert_eq!(answer[..], [number + 100]);
    }
    println!("{CLIENTS} clients got their answers from one endpoint");
    Ok(())
}
