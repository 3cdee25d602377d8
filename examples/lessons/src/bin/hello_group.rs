//! A server for many clients: a group of channels with one completion queue.
//!
//! A queue for each client would have to be polled for each client. The channels of a group share
//! one: a single call waits for all of them, and what it returns names its channel.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use verbs_channel::verbs_core::Context;
use verbs_channel::verbs_core::codes::WcOpcode;
use verbs_channel::{BufferPool, Channel};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
const CLIENTS: u32 = 3;
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = listener.local_addr()?;
    thread::scope(|threads| {
        let ask = |number| threads.spawn(move || ask(server, number));
        let clients: Vec<_> = (1..=CLIENTS).map(ask).collect();
        serve(&listener)?;
        for client in clients {
            client.join().map_err(|_panic| "a client panicked")??;
        }
        println!("{CLIENTS} clients got their answers from one queue");
        Ok(())
    })
}

/// Answers a question of each client: a number, by its double.
fn serve(listener: &TcpListener) -> Result<()> {
    let pd = Context::first_active()?.alloc_pd()?;
    let mut group = Channel::builder(&pd).group(CLIENTS)?;
    let pool = BufferPool::new(&pd, 4, CLIENTS as usize)?;
    for _ in 0..CLIENTS {
        // Only `join` needs `&mut group`: to connect can be left to another thread.
        let id = group.join(group.prepare()?.accept(listener, TIMEOUT)?.channel)?;
        let block = pool.take().ok_or("the pool is empty")?;
        let _ticket = group.channel(id)?.start_receive(block)?;
    }
    let mut answered = 0;
    while answered < CLIENTS {
        // Whatever completes next, of all channels.
        let completed = group.wait_completed(TIMEOUT).ok_or("no client asks")?;
        if completed.result?.opcode() == WcOpcode::SEND {
            answered += 1;
            continue;
        }
        let mut buffer = completed.buffer.ok_or("the buffer was leaked")?;
        let number = u32::from_be_bytes(buffer[..].try_into()?);
        buffer.copy_from_slice(&(2 * number).to_be_bytes());
        let _ticket = group.channel(completed.channel)?.start_send(buffer)?;
    }
    Ok(())
}

fn ask(server: SocketAddr, number: u32) -> Result<()> {
    let pd = Context::first_active()?.alloc_pd()?;
    let mut channel = Channel::builder(&pd)
        .build()?
        .connect(server, TIMEOUT)?
        .channel;
    let question = pd.reg_mr(number.to_be_bytes().to_vec())?;
    let mut answer = pd.reg_mr(vec![0_u8; 4])?;
    channel.scope(|scope| {
        scope.post_receive(answer.scatter_element(..)?)?;
        scope.post_send(question.gather_element(..)?)?;
        Ok::<_, verbs_channel::Error>(())
    })?;
    assert_eq!(answer[..], (2 * number).to_be_bytes());
    Ok(())
}
