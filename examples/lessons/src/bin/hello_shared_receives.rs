//! A server whose clients share their receives: its memory does not grow with their number.
//!
//! In `hello_group` each channel posts its own receives, so a thousand idle clients keep a thousand
//! buffers. Here all messages arrive in the blocks of one queue, and come out of the group with the id of
//! their channel. A block that is dropped is posted again.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use verbs_channel::verbs_core::Context;
use verbs_channel::{BufferPool, Channel, DownReason};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
const CLIENTS: u32 = 4;
const MESSAGES: u32 = 10;
/// For all clients together.
const BLOCKS: u32 = 2;
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = listener.local_addr()?;
    thread::scope(|threads| {
        let send = |number| threads.spawn(move || send(server, number));
        let clients: Vec<_> = (1..=CLIENTS).map(send).collect();
        let sum = serve(&listener)?;
        for client in clients {
            client.join().map_err(|_panic| "a client panicked")??;
        }
        assert_eq!(sum, MESSAGES * (1..=CLIENTS).sum::<u32>());
        println!("{CLIENTS} clients sent {MESSAGES} messages each through {BLOCKS} blocks");
        Ok(())
    })
}

/// Adds up the numbers that clients send, until the last client has left.
fn serve(listener: &TcpListener) -> Result<u32> {
    let pd = Context::first_active()?.alloc_pd()?;
    let pool = BufferPool::new(&pd, 4, BLOCKS as usize)?;
    let builder = Channel::builder(&pd).shared_receives(&pool, BLOCKS);
    let mut group = builder.group(CLIENTS)?;
    for _ in 0..CLIENTS {
        group.join(group.prepare()?.accept(listener, TIMEOUT)?.channel)?;
    }
    let (mut sum, mut left) = (0, 0);
    while left < CLIENTS {
        let message = group.wait_message(TIMEOUT).ok_or("no message")?;
        match (message.bytes(), message.end()) {
            // The next message for this block may come when `message` is dropped.
            (Some(bytes), _) => sum += u32::from_be_bytes(bytes.try_into()?),
            // After all messages of that channel.
            (None, Some(DownReason::PeerClosed)) => {
                group.remove(message.channel)?;
                left += 1;
            }
            (None, reason) => return Err(format!("{}: {reason:?}", message.channel).into()),
        }
    }
    Ok(sum)
}

fn send(server: SocketAddr, number: u32) -> Result<()> {
    let pd = Context::first_active()?.alloc_pd()?;
    let mut channel = Channel::builder(&pd)
        .build()?
        .connect(server, TIMEOUT)?
        .channel;
    let number = pd.reg_mr(number.to_be_bytes().to_vec())?;
    for _ in 0..MESSAGES {
        // While no block is free, the device tries again.
        channel.send(number.gather_element(..)?)?;
    }
    Ok(())
}
