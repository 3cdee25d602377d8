//! Echo over async channels, on any runtime: what `async_echo` and `smol_echo` share.
//!
//! A runtime brings streams that connect, timers, and whatever drives the futures. The TCP
//! connection stays open beside the channel: each side notices by it at once when the other is gone.

mod client;
mod server;

pub use client::Client;
pub use server::Server;

use std::net::TcpStream;
use std::os::fd::AsFd;

use clap::Args;
use serde::{Deserialize, Serialize};
use verbs_async::verbs_channel::Connect;
use verbs_async::verbs_channel::connect::Met;
use verbs_async::verbs_channel::verbs_core::{Context as Device, MinRnrTimer};
use verbs_async::{AsyncChannel, AsyncGroup, CqEvents};

use crate::{Common, Context as _, Failure, Hello};

/// The socket of a runtime's stream, for the exchange.
///
/// # Errors
///
/// No descriptor is left.
pub fn socket(stream: &impl AsFd) -> Result<TcpStream, Failure> {
    Ok(TcpStream::from(stream.as_fd().try_clone_to_owned()?))
}

/// Connects a channel over a stream, by which each side notices itself when the other is gone.
async fn meet(
    group: &AsyncGroup,
    tcp: TcpStream,
    options: &Options,
    own: &[u8],
) -> Result<Met<AsyncChannel>, Failure> {
    let options = Connect::within(options.common.limit()).private_data(own);
    let met = group.exchange(tcp, options.watch_peer(false)).await;
    met.context(|| "cannot connect")
}

/// The longest message, in bytes.
const MAX_SIZE: u32 = 64 << 20;
/// The most messages that a client has in flight.
const MAX_WINDOW: u32 = 64;
/// The most bytes that a client has in flight.
const MAX_UNDER_WAY: u64 = 256 << 20;

/// The options.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Where the peer is, which device to use, and how long to wait.
    #[command(flatten)]
    pub common: Common,

    /// Client: bytes in a message
    #[arg(short, long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SIZE)))]
    size: u32,

    /// Client: how many messages go to and fro on each connection
    #[arg(short = 'n', long, visible_alias = "iters", value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    count: u32,

    /// Client: messages in flight at once on each connection
    #[arg(short, long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WINDOW)))]
    window: u32,

    /// Client: connections at once
    #[arg(short, long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub connections: u32,

    /// Server: clients at once
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    max_clients: u32,

    /// Server: end when this many clients have come and gone
    #[arg(long, value_name = "COUNT")]
    clients: Option<u64>,

    /// Poll for so long before going to sleep: shorter latency, for a processor
    #[arg(short, long, value_name = "MICROSECONDS", default_value_t = 0)]
    busy_poll: u64,
}

/// The private data of each side; the server asks for nothing.
#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    hello: Hello,
    asked: Option<Asked>,
}

/// Messages of this length, this many of them in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Asked {
    size: u32,
    window: u32,
}

impl Options {
    /// Creates a group for this many channels with these options.
    fn group(
        &self,
        device: &Device,
        events: &CqEvents,
        channels: u32,
    ) -> Result<AsyncGroup, Failure> {
        let pd = device.alloc_pd()?;
        let mut config = self.common.channels(&pd);
        config.max_send_wr = MAX_WINDOW;
        config.max_recv_wr = MAX_WINDOW;
        // A client's first messages may come before the server's receives are posted.
        config.min_rnr_timer = MinRnrTimer::new(1)?;
        let group = AsyncGroup::new(config, channels, events);
        let group = group.context(|| format!("cannot have {channels} connections at once"))?;
        group.set_busy_poll(std::time::Duration::from_micros(self.busy_poll));
        Ok(group)
    }
}

impl Plan {
    fn encode(asked: Option<Asked>) -> Result<Vec<u8>, Failure> {
        let hello = Hello::new("async_echo", 1);
        Ok(serde_json::to_vec(&Self { hello, asked })?)
    }

    /// Parses the peer's private data, and checks that the values are in range.
    fn decode(bytes: &[u8]) -> Result<Option<Asked>, Failure> {
        let Self { hello, asked } =
            serde_json::from_slice(bytes).context(|| "the peer is no async_echo or smol_echo")?;
        Hello::new("async_echo", 1).meet(&hello)?;
        if asked.is_some_and(|asked| asked.check().is_err()) {
            return Err(Failure::new("the peer asks for more than is possible"));
        }
        Ok(asked)
    }
}

impl Asked {
    fn check(self) -> Result<(), Failure> {
        let Self { size, window } = self;
        let bytes = u64::from(size) * u64::from(window);
        let possible = (1..=MAX_SIZE).contains(&size) && (1..=MAX_WINDOW).contains(&window);
        if possible && bytes <= MAX_UNDER_WAY {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{window} messages of {size} bytes at once are too many: at most {MAX_UNDER_WAY} bytes are possible"
        )))
    }

    /// The length and the number of the messages in flight.
    fn numbers(self) -> Result<(usize, usize), Failure> {
        Ok((usize::try_from(self.size)?, usize::try_from(self.window)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_out_of_range_are_rejected() {
        let decoded = |size, window| {
            let asked = Some(Asked { size, window });
            Plan::decode(&Plan::encode(asked).unwrap()).map(|decoded| decoded == asked)
        };
        assert!(decoded(1, 1).unwrap());
        assert!(decoded(MAX_SIZE, 4).unwrap());
        for (size, window) in [
            (0, 1),
            (1, 0),
            (MAX_SIZE + 1, 1),
            (1, MAX_WINDOW + 1),
            (MAX_SIZE, 5),
        ] {
            assert!(decoded(size, window).is_err(), "{size} {window}");
        }
        assert_eq!(Plan::decode(&Plan::encode(None).unwrap()).unwrap(), None);
        for bytes in [&b""[..], b"{}", b"\xff\0", b"[1,2]"] {
            assert!(Plan::decode(bytes).is_err());
        }
        let hello = Hello::new("async_echo", 2);
        let other = serde_json::to_vec(&Plan { hello, asked: None }).unwrap();
        let error = Plan::decode(&other).unwrap_err().to_string();
        assert!(
            error.contains("version 2, this is async_echo version 1"),
            "{error}"
        );
    }
}
