//! How both sides get a stream: a device, a group, an exchange over TCP.

use std::os::fd::AsFd as _;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use programs::{Context as _, Failure, Hello};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::sleep;
use verbs_async::verbs_channel::{Connect, verbs_core::Context};
use verbs_async::{AsyncGroup, ByteStream, CqEvents};

use crate::Options;
use crate::patient::Patient;

/// A stream with the traits that hyper requires.
pub(crate) type Io = TokioIo<Patient<ByteStream>>;

/// Creates a group of at most this many channels.
pub(crate) fn group(
    options: &Options,
    context: &Context,
    max_channels: u32,
) -> Result<AsyncGroup, Failure> {
    let pd = context.alloc_pd()?;
    let events = CqEvents::create_tokio(context)?;
    let channels = options.common.channels(&pd);
    Ok(AsyncGroup::new(channels, max_channels, &events)?)
}

/// Meets the peer at the other end of a TCP connection, which stays open to detect a peer that dies.
pub(crate) async fn meet(
    options: &Options,
    group: &AsyncGroup,
    tcp: &mut TcpStream,
) -> Result<Io, Failure> {
    let ours = Hello::new("http_over_rdma", 1);
    let limit = options.common.limit();
    let hello = serde_json::to_vec(&ours)?;
    let socket = std::net::TcpStream::from(tcp.as_fd().try_clone_to_owned()?);
    let met = group.exchange(socket, Connect::within(limit).private_data(&hello));
    let met = met.await?;
    let theirs: Hello =
        serde_json::from_slice(&met.private_data).context(|| "the peer is no http_over_rdma")?;
    ours.meet(&theirs)?;
    Ok(TokioIo::new(Patient::new(
        met.channel.into_stream()?,
        limit,
    )))
}

/// How long the stream may take, at most, to detect that its peer has ended.
const DETECTION: Duration = Duration::from_secs(5);

/// Waits until the peer's process is gone. If it ended in order, the stream has ended by then.
pub(crate) async fn gone(tcp: &mut TcpStream) -> Failure {
    // Nothing more is sent on it.
    let _ended = tcp.read(&mut [0; 1]).await;
    sleep(DETECTION).await;
    Failure::new("the peer is gone: it closed the TCP connection")
}
