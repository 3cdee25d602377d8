//! A server in tokio and its client: a task for each connection, and a time limit around each wait.
//!
//! `hello_async_server` is the server, `hello_async_server HOST:7472 QUESTION` a client. It answers in capitals.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a lesson prints")]

use std::{env, error::Error, time::Duration};

use tokio::time::{sleep, timeout};
use verbs_async::verbs_channel::verbs_core::Context;
use verbs_async::verbs_channel::{BufferPool, Channel, DownReason};
use verbs_async::{AsyncChannel, AsyncGroup, CqEvents, ErrorChain};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const CLIENTS: u32 = 100;
const PATIENCE: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    if !matches!(args.len(), 0 | 2) {
        return Err("arguments: none, or HOST:7472 QUESTION".into());
    }
    let pd = Context::first_active()?.alloc_pd()?;
    let events = CqEvents::create_tokio(pd.context())?;
    let pool = BufferPool::new(&pd, 4096, 256)?;
    if let [server, question] = &args[..] {
        let met = AsyncChannel::connect(&pd, &events, server, PATIENCE).await?;
        println!("{}", ask(&met.channel, &pool, question).await?);
        return Ok(met.channel.close().await?);
    }
    let group = AsyncGroup::new(Channel::builder(&pd), CLIENTS, &events)?;
    let mut listener = group.listen("0.0.0.0:7472", PATIENCE).await?;
    loop {
        let accepted = listener.accept().await;
        let Ok(arrival) = accepted.inspect_err(|error| eprintln!("{error}")) else {
            sleep(Duration::from_millis(100)).await; // too many open files, for example
            continue;
        };
        let peer = arrival.peer.map(|peer| peer.to_string());
        let (peer, pool) = (peer.unwrap_or_default(), pool.clone());
        tokio::spawn(async move {
            let served = match arrival.outcome {
                Ok(met) => serve(&met.channel, &pool).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = served {
                eprintln!("{peer}: {}", ErrorChain::new(&*error));
            }
        });
    }
}

/// Answers until the client leaves. The channel is closed when it is dropped.
async fn serve(channel: &AsyncChannel, pool: &BufferPool) -> Result<()> {
    loop {
        let block = pool.take_when_free().await;
        let (received, mut block) = timeout(PATIENCE, channel.receive(block)).await?;
        let len = match received {
            Ok(received) => received.byte_len() as usize,
            Err(error) if error.down_reason().is_some_and(DownReason::is_peer_closed) => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        block[..len].make_ascii_uppercase();
        block.set_range(..len)?; // only these bytes are sent
        timeout(PATIENCE, channel.send(block).result()).await??;
    }
}

async fn ask(channel: &AsyncChannel, pool: &BufferPool, question: &str) -> Result<String> {
    // Begins here, before the question is sent.
    let answer = channel.receive(pool.take_when_free().await);
    let block = pool.take_when_free().await.filled(question.as_bytes())?;
    timeout(PATIENCE, channel.send(block).result()).await??;
    let (received, block) = timeout(PATIENCE, answer).await?;
    let answer = received?.message_in(&block).ok_or("it is not a message")?;
    Ok(String::from_utf8_lossy(answer).into_owned())
}
