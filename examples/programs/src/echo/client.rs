//! The client: sends messages, and measures how long their echoes take.

use std::collections::VecDeque;
use std::future::Future;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use verbs_async::verbs_channel::BufferPool;
use verbs_async::verbs_channel::verbs_core::Context as Device;
use verbs_async::{AsyncChannel, AsyncGroup, CqEvents};

use super::{Asked, Options, Plan};
use crate::silence::{Moved, Parting, beside, first};
use crate::{Context as _, Failure, Latencies, Measured, Pattern, Progress, say};

/// A client whose connections share a group.
#[derive(Debug)]
pub struct Client {
    options: Options,
    group: AsyncGroup,
    asked: Asked,
}

impl Client {
    /// Creates a client on this device, with its events on `events`.
    ///
    /// # Errors
    ///
    /// The device has no room for the connections, or cannot send such messages.
    pub fn new(options: &Options, device: &Device, events: &CqEvents) -> Result<Self, Failure> {
        let &Options { size, window, .. } = options;
        let asked = Asked { size, window };
        asked.check()?;
        let group = options.group(device, events, options.connections)?;
        let port_num = group.prepare()?.endpoint().port_num();
        crate::check_size(device, port_num, size.into())?;
        let options = options.clone();
        Ok(Self {
            options,
            group,
            asked,
        })
    }

    /// Sends all messages of one connection, the one of this number from 0, over a stream to the
    /// server, and a clone of its socket: how long each took to come back.
    ///
    /// # Errors
    ///
    /// The server is gone, silent, or sends something else; or the connection fails.
    pub async fn run<S: Future>(
        &self,
        number: u32,
        tcp: TcpStream,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        sleep: impl Fn(Duration) -> S,
    ) -> Result<Vec<Duration>, Failure> {
        let answered = Moved::default();
        let work = self.meet_and_send(number, tcp, &mut stream, &answered, &sleep);
        let silence = async { Err(answered.silent(self.options.common.limit(), &sleep).await) };
        let took = first(work, silence).await;
        let took = took.context(|| format!("after {} answers", answered.count()))?;
        // Everything is done: if this message does not arrive, the server notices the end.
        drop(stream.write_all(&Parting::BYE).await);
        Ok(took)
    }

    async fn meet_and_send<S: Future>(
        &self,
        number: u32,
        tcp: TcpStream,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        answered: &Moved,
        sleep: impl Fn(Duration) -> S,
    ) -> Result<Vec<Duration>, Failure> {
        let own = Plan::encode(Some(self.asked))?;
        let met = super::meet(&self.group, tcp, &self.options, &own).await?;
        if Plan::decode(&met.private_data)?.is_some() {
            return Err(Failure::new("the peer is no server"));
        }
        let parted = |parting| {
            Err(Failure::new(match parting {
                Parting::Bye => "the server ends",
                Parting::Gone => "the server is gone",
            }))
        };
        beside(
            stream,
            self.send(number, met.channel, answered),
            parted,
            sleep,
        )
        .await
    }

    /// Keeps a window of messages in flight. The receive for each answer is posted before its
    /// message is sent.
    async fn send(
        &self,
        number: u32,
        channel: AsyncChannel,
        answered: &Moved,
    ) -> Result<Vec<Duration>, Failure> {
        let (size, window) = self.asked.numbers()?;
        let count = usize::try_from(self.options.count)?;
        let pool = BufferPool::new(channel.pd(), size, 2 * window)?;
        let channel = Arc::new(channel);
        let mut incoming = channel.incoming(std::iter::from_fn(|| pool.take()).take(window));
        let mut under_way = VecDeque::with_capacity(window);
        let mut took = Vec::with_capacity(count);
        let mut progress = (number == 0).then(|| Progress::new("messages", count as u64));
        for index in 0..count + window {
            if let Some(answer) = index.checked_sub(window) {
                let Some((start, sent)) = under_way.pop_front() else {
                    break;
                };
                let came = incoming.next().await.transpose();
                let came = came?.ok_or_else(|| Failure::new("the channel is closed"))?;
                let start: Instant = start;
                took.push(start.elapsed());
                let (sent, _block) = sent.await;
                let _success = sent?;
                check(number, answer, size, &came)
                    .context(|| format!("the answer to message {answer}"))?;
                answered.one();
                if let Some(progress) = &mut progress {
                    progress.at(answer as u64);
                }
            }
            if index < count {
                let block = pool.take();
                let mut block = block.ok_or_else(|| Failure::new("no buffer is left"))?;
                block.copy_from_slice(&pattern(number, index).bytes(0, size));
                under_way.push_back((Instant::now(), channel.send(block)));
            }
        }
        Ok(took)
    }

    /// Prints how long all connections together took.
    ///
    /// # Errors
    ///
    /// Standard output cannot be written to.
    pub fn print(
        &self,
        op: &'static str,
        took: Vec<Duration>,
        all: Duration,
    ) -> Result<(), Failure> {
        let Asked { size, window } = self.asked;
        let (connections, count) = (self.options.connections, took.len());
        let seconds = all.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "shown without digits")]
        let rate = count as f64 / seconds;
        say(format_args!(
            "{count} messages of {size} bytes, {connections} connections with {window} in flight: \
             {seconds:.2} seconds, {rate:.0} messages/s, each byte checked"
        ))?;
        say(Latencies::new(took))?;
        Measured::new(op, size.into(), count as u64, all, true).print()
    }
}

/// The contents of a message.
fn pattern(number: u32, index: usize) -> Pattern {
    Pattern::new(u64::from(number) << 32 ^ index as u64)
}

fn check(number: u32, index: usize, size: usize, came: &[u8]) -> Result<(), Failure> {
    if came.len() != size {
        let len = came.len();
        return Err(Failure::new(format!(
            "{len} bytes came where {size} were due"
        )));
    }
    Ok(pattern(number, index).check(0, came)?)
}
