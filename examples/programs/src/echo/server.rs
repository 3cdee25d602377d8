//! The server: sends back each message, for many clients on one group.

use std::collections::VecDeque;
use std::future::Future;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use verbs_async::verbs_channel::verbs_core::Context as Device;
use verbs_async::verbs_channel::{BufferPool, DownReason};
use verbs_async::{AsyncChannel, AsyncGroup, CqEvents};

use super::{Asked, Options, Plan};
use crate::silence::{Moved, Parting, beside, first};
use crate::{Failure, say};

/// A server and its clients.
#[derive(Debug)]
pub struct Server {
    options: Options,
    group: AsyncGroup,
    came: AtomicU64,
    gone: AtomicU64,
    echoed: AtomicU64,
}

impl Server {
    /// Creates a server on this device, with its events on `events`.
    ///
    /// # Errors
    ///
    /// The device has no room for the clients.
    pub fn new(options: &Options, device: &Device, events: &CqEvents) -> Result<Self, Failure> {
        Ok(Self {
            options: options.clone(),
            group: options.group(device, events, options.max_clients)?,
            came: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            echoed: AtomicU64::new(0),
        })
    }

    /// Serves the client at the other end of a stream (and of a clone of its socket) until it leaves, and prints the outcome.
    ///
    /// # Errors
    ///
    /// Standard output cannot be written to. The failure of a client is not an error here.
    pub async fn serve<S: Future>(
        &self,
        tcp: TcpStream,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
        sleep: impl Fn(Duration) -> S,
    ) -> Result<(), Failure> {
        let number = self.came.fetch_add(1, Ordering::Relaxed) + 1;
        let echoed = Moved::default();
        let work = self.meet_and_echo(number, tcp, &mut stream, &echoed, &sleep);
        let silence = async { Err(echoed.silent(self.options.common.limit(), &sleep).await) };
        let ended = first(work, silence).await;
        // The client may be gone: then it needs no message.
        drop(stream.write_all(&Parting::BYE).await);
        let count = echoed.count();
        let _before = self.echoed.fetch_add(count, Ordering::Relaxed);
        let _before = self.gone.fetch_add(1, Ordering::Relaxed);
        match ended {
            Ok(()) => say(format_args!(
                "client {number} left: {count} messages echoed"
            )),
            Err(why) => say(format_args!(
                "client {number} ended after {count} messages: {why}"
            )),
        }
    }

    async fn meet_and_echo<S: Future>(
        &self,
        number: u64,
        tcp: TcpStream,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        echoed: &Moved,
        sleep: impl Fn(Duration) -> S,
    ) -> Result<(), Failure> {
        let (gone, max) = (self.gone.load(Ordering::Relaxed), self.options.max_clients);
        if number.saturating_sub(gone) > u64::from(max) {
            return Err(Failure::new(format!("{max} clients are here already")));
        }
        let own = Plan::encode(None)?;
        let met = super::meet(&self.group, tcp, &self.options, &own).await?;
        let asked = Plan::decode(&met.private_data)?;
        let asked = asked.ok_or_else(|| Failure::new("the peer is a server, too"))?;
        say(format_args!("client {number} is here"))?;
        let parted = |parting| match parting {
            Parting::Bye => Ok(()),
            Parting::Gone => Err(Failure::new("the peer is gone")),
        };
        beside(stream, echo(met.channel, asked, echoed), parted, sleep).await
    }

    /// Whether the number of clients in the options have been served.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let gone = self.gone.load(Ordering::Relaxed);
        self.options.clients.is_some_and(|all| gone >= all)
    }

    /// No client has connected within the wait: a failure, unless one had before.
    ///
    /// # Errors
    ///
    /// No client has ever connected.
    pub fn no_client_comes(&self) -> Result<(), Failure> {
        if self.came.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        let wait = self.options.common.wait;
        Err(Failure::new(format!(
            "no client came in {wait} s (--wait waits longer)"
        )))
    }

    /// Takes all channels down, which the clients notice.
    pub fn end(&self) {
        self.group.abort_all(DownReason::Closed);
    }

    /// Prints what was done.
    ///
    /// # Errors
    ///
    /// Standard output cannot be written to.
    pub fn print(&self) -> Result<(), Failure> {
        let (came, echoed) = (&self.came, &self.echoed);
        say(format_args!(
            "{} clients, {} messages echoed",
            came.load(Ordering::Relaxed),
            echoed.load(Ordering::Relaxed)
        ))
    }
}

/// Sends back the messages in their order, until the channel fails. One receive is posted for each
/// message that the client has in flight. An answer is sent from the buffer of its message, which
/// the buffer of an earlier answer replaces.
async fn echo(channel: AsyncChannel, asked: Asked, echoed: &Moved) -> Result<(), Failure> {
    let (size, window) = asked.numbers()?;
    let pool = BufferPool::new(channel.pd(), size, 2 * window)?;
    let channel = Arc::new(channel);
    let mut incoming = channel.incoming(std::iter::from_fn(|| pool.take()).take(window));
    let mut answers = VecDeque::with_capacity(window);
    while let Some(message) = incoming.next().await {
        let spare = match pool.take() {
            Some(spare) => spare.into(),
            None => match answers.pop_front() {
                Some(oldest) => {
                    let (sent, spare) = oldest.await;
                    let _success = sent?;
                    spare
                }
                None => return Err(Failure::new("no buffer is left")),
            },
        };
        answers.push_back(channel.send(message?.replace(spare)));
        echoed.one();
    }
    Err(Failure::new("the channel is closed"))
}
