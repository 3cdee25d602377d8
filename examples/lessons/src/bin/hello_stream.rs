//! A channel as a stream of bytes, for code that was written for TCP.
//!
//! `into_stream` makes a channel what tokio's `AsyncRead` and `AsyncWrite` are for: writes of any
//! size, backpressure by the peer's reader, and an end. hyper, codecs and `tokio::io::copy` run over
//! it unchanged.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::time::Duration;

use tokio::io::{self, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use verbs_async::verbs_channel::{Channel, verbs_core::Context};
use verbs_async::{AsyncGroup, ByteStream, CqEvents};

const LEN: usize = 1_000_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pd = Context::first_active()?.alloc_pd()?;
    let events = CqEvents::create_tokio(pd.context())?;
    let group = AsyncGroup::new(Channel::builder(&pd), 2, &events)?;
    // Both ends of a channel become streams. Between hosts: `connect` and `listen`.
    let (client, server) = group.loopback()?;
    let (client, server) = (client.into_stream()?, server.into_stream()?);

    let server = tokio::spawn(echo(server));
    let bytes: Vec<u8> = (0..=250).cycle().take(LEN).collect();
    let answer = timeout(Duration::from_secs(60), ask(client, &bytes)).await??;
    server.await??;

    assert!(answer == bytes, "the answer differs");
    println!("{LEN} bytes went there and back");
    Ok(())
}

/// Sends back what comes in until the peer shuts its side down, and then shuts this one down.
async fn echo(stream: ByteStream) -> io::Result<()> {
    let (mut read, mut write) = stream.into_split();
    io::copy(&mut read, &mut write).await?;
    // Waits until the peer has confirmed the end. A stream that is dropped does not wait.
    write.shutdown().await
}

async fn ask(stream: ByteStream, question: &[u8]) -> io::Result<Vec<u8>> {
    // Owned halves: one task can write while another reads.
    let (mut read, mut write) = stream.into_split();
    let mut answer = Vec::new();
    let write = async {
        write.write_all(question).await?;
        write.shutdown().await
    };
    tokio::try_join!(write, read.read_to_end(&mut answer))?;
    Ok(answer)
}
