//! Tests of connecting without a device: the handshakes are fake, the TCP connections are real.

use std::future::{Future, ready};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use async_io::{Async, Timer};
use futures_io::{AsyncRead, AsyncWrite};
use verbs_channel::exchange::{Exchange, ExchangeError, RefusalCode};
use verbs_channel::verbs_core::{PacketSequenceNumber, QueuePairEndpoint};
use verbs_channel::{ConnectedMember, PreparedChannel};

use super::adapter::Tokio;
use super::exchange::meet;
use super::tcp::reject_self_connect;
use crate::error::{Error, Result};
use crate::group::AsyncGroup;

const SOON: Duration = Duration::from_millis(50);
/// A timeout that only a hang reaches.
const LONG: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug)]
enum Way {
    Tokio,
    AsyncIo,
}

const WAYS: [Way; 2] = [Way::Tokio, Way::AsyncIo];

/// A TCP connection of either runtime.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Way {
    /// Runs a future on a thread of its own, so that one that blocks fails too.
    fn run<T: Send + 'static>(self, future: impl Future<Output = T> + Send + 'static) -> T {
        println!("on {self:?}");
        verbs_harness::within(LONG, move || match self {
            Self::Tokio => tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(future),
            Self::AsyncIo => async_io::block_on(future),
        })
    }

    fn stream(self, stream: TcpStream) -> Box<dyn Stream> {
        stream.set_nonblocking(true).unwrap();
        match self {
            Self::Tokio => {
                let stream = tokio::net::TcpStream::from_std(stream).unwrap();
                Box::new(Tokio(stream))
            }
            Self::AsyncIo => Box::new(Async::new_nonblocking(stream).unwrap()),
        }
    }
}

/// The output of a future, unless it takes longer.
async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut timer) = (pin!(future), Timer::after(time));
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Pin::new(&mut timer).poll(cx).map(|_at| None),
    })
    .await
}

fn begin(qp_num: u32, private_data: &[u8]) -> Exchange {
    let psn = PacketSequenceNumber::new(7).unwrap();
    let endpoint = QueuePairEndpoint::builder(qp_num, psn).lid(1).build();
    Exchange::new(&endpoint.unwrap(), private_data).unwrap()
}

fn frame(version: u16, kind: u16, len: u32, payload: &[u8]) -> Vec<u8> {
    let (version, kind) = (version.to_be_bytes(), kind.to_be_bytes());
    [b"VRBC", &version[..], &kind, &len.to_be_bytes(), payload].concat()
}

/// Two ends of a TCP connection.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let right = listener.accept().unwrap().0;
    for stream in [&left, &right] {
        stream.set_read_timeout(Some(LONG)).unwrap();
    }
    (left, right)
}

/// The error of this side when a peer sends `theirs` and then closes the stream or waits, and the
/// bytes that the peer received.
fn of(way: Way, theirs: Vec<u8>, hangs_up: bool) -> (ExchangeError, Vec<u8>) {
    let (ours, mut peer) = connection();
    let peer = thread::spawn(move || {
        peer.write_all(&theirs).unwrap();
        if hangs_up {
            peer.shutdown(std::net::Shutdown::Write).unwrap();
        }
        let mut received = Vec::new();
        // Our side may close before it has read everything.
        drop(peer.read_to_end(&mut received));
        received
    });
    let failed = way.run(async move {
        let met = meet(way.stream(ours), begin(2, b""), |_remote| ready(Ok(())));
        met.await.unwrap_err()
    });
    (exchange(failed), peer.join().unwrap())
}

fn exchange(error: Error) -> ExchangeError {
    match error {
        Error::Channel(verbs_channel::Error::Exchange(failure)) => failure.error,
        other => panic!("{other}"),
    }
}

/// The code of the refusal that follows our endpoint.
fn refused_with(received: &[u8]) -> &[u8] {
    let after = &received[12 + QueuePairEndpoint::BYTES..];
    assert_eq!(&after[..8], b"VRBC\0\x01\0\x03");
    &after[12..14]
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn both_sides_connect_and_keep_their_streams() {
    for (here, there) in [(Way::Tokio, Way::AsyncIo), (Way::AsyncIo, Way::Tokio)] {
        let (ours, theirs) = connection();
        let side = |way: Way, stream: TcpStream, qp_num| async move {
            let kept = stream.try_clone().unwrap();
            let mut stream = way.stream(stream);
            let handshake = |remote: QueuePairEndpoint| ready(Ok(remote.qp_num()));
            let private_data = [u8::try_from(qp_num).unwrap(); 1024];
            let met = meet(&mut stream, begin(qp_num, &private_data), handshake).await;
            kept.set_nonblocking(false).unwrap();
            (&kept).write_all(b"more").unwrap();
            let mut more = [0; 4];
            (&kept).read_exact(&mut more).unwrap();
            assert_eq!(&more, b"more");
            met.unwrap()
        };
        let peer = thread::spawn(move || there.run(side(there, theirs, 3)));
        assert_eq!(here.run(side(here, ours, 2)), (3, vec![3; 1024]));
        assert_eq!(peer.join().unwrap(), (2, vec![2; 1024]));
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn hang_up_and_foreign_protocol_are_different_errors() {
    for way in WAYS {
        let (error, _) = of(way, frame(1, 1, 37, &[0; 5]), true);
        let is_cut = matches!(
            error,
            ExchangeError::HungUp {
                got: 5,
                expected: 37
            }
        );
        assert!(is_cut, "{error}");
        let (error, received) = of(way, b"BAD\n".to_vec(), false);
        assert!(
            matches!(error, ExchangeError::NotOurs(magic) if &magic == b"BAD\n"),
            "{error}"
        );
        assert_eq!(received.len(), 12 + QueuePairEndpoint::BYTES);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn rejected_peer_gets_the_reason_and_the_end_of_the_stream() {
    for way in WAYS {
        let (error, received) = of(way, frame(9, 1, 0, b""), false);
        assert!(matches!(error, ExchangeError::Version(9)), "{error}");
        assert_eq!(refused_with(&received), [0, 1]);
        let (error, received) = of(way, frame(1, 1, u32::MAX, b""), false);
        assert!(matches!(error, ExchangeError::TooLong { .. }), "{error}");
        assert_eq!(refused_with(&received), [0, 2]);
        let (error, received) = of(way, frame(1, 1, 37, &[0xff; 37]), false);
        assert!(matches!(error, ExchangeError::Endpoint(_)), "{error}");
        assert_eq!(refused_with(&received), [0, 3]);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn error_of_a_rejection_contains_the_peers_reason() {
    for way in WAYS {
        let (error, _) = of(way, frame(1, 3, 6, b"\0\x04full"), true);
        assert_eq!(
            error.to_string(),
            "the peer refused the connection: \"full\""
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn failed_handshake_is_reported_to_the_peer() {
    for way in WAYS {
        let (ours, theirs) = connection();
        let peer = thread::spawn(move || {
            way.run(async move {
                let failed = meet(way.stream(theirs), begin(3, b""), |_| {
                    ready(Err::<(), _>(verbs_channel::Error::GroupFull(4).into()))
                });
                failed.await.unwrap_err()
            })
        });
        let error = way.run(async move {
            let met = meet(way.stream(ours), begin(2, b""), |_remote| ready(Ok(())));
            met.await.unwrap_err()
        });
        match exchange(error) {
            ExchangeError::Refused { code, words } => {
                assert_eq!(code, RefusalCode::HANDSHAKE);
                assert!(words.contains("its max_channels is 4"), "{words}");
            }
            other => panic!("{other}"),
        }
        let own = peer.join().unwrap();
        assert!(
            matches!(own, Error::Channel(verbs_channel::Error::GroupFull(4))),
            "{own}"
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn dropping_the_future_closes_the_stream_of_a_silent_peer() {
    for way in WAYS {
        let (ours, mut peer) = connection();
        let met = way.run(async move {
            let met = meet(way.stream(ours), begin(2, b""), |_remote| ready(Ok(())));
            within(SOON, met).await
        });
        assert!(met.is_none());
        let mut received = Vec::new();
        peer.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), 12 + QueuePairEndpoint::BYTES);
    }
}

/// A stream that reads one byte at a time and buffers writes until it is flushed.
struct Buffered {
    kept: Vec<u8>,
    is_broken: bool,
    stream: Box<dyn Stream>,
}

impl AsyncRead for Buffered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_read(cx, &mut buffer[..1])
    }
}

impl AsyncWrite for Buffered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let bytes = &bytes[..bytes.len().min(40)];
        self.kept.extend(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self {
            kept,
            is_broken,
            stream,
        } = self.get_mut();
        if *is_broken {
            return Poll::Ready(Err(io::Error::other("cannot flush")));
        }
        while !kept.is_empty() {
            match Pin::new(&mut *stream).poll_write(cx, kept) {
                Poll::Ready(written) => drop(kept.drain(..written?)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn buffering_stream_is_flushed() {
    for way in WAYS {
        let (ours, theirs) = connection();
        let side = move |stream, qp_num| async move {
            let stream = Buffered {
                kept: Vec::new(),
                is_broken: false,
                stream: way.stream(stream),
            };
            let met = meet(stream, begin(qp_num, b"data"), |_remote| ready(Ok(())));
            within(LONG / 2, met).await.expect("it waits forever")
        };
        let peer = thread::spawn(move || way.run(side(theirs, 3)));
        assert_eq!(way.run(side(ours, 2)).unwrap().1, b"data");
        assert_eq!(peer.join().unwrap().unwrap().1, b"data");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no timeouts of sockets")]
fn failed_flush_is_an_error() {
    for way in WAYS {
        let (ours, _theirs) = connection();
        let failed = way.run(async move {
            let stream = Buffered {
                kept: Vec::new(),
                is_broken: true,
                stream: way.stream(ours),
            };
            let met = meet(stream, begin(2, b""), |_remote| ready(Ok(())));
            within(LONG / 2, met).await.expect("it waits forever")
        });
        let ExchangeError::Tcp { source, .. } = exchange(failed.unwrap_err()) else {
            panic!("no error of the stream's");
        };
        assert_eq!(source.to_string(), "cannot flush");
    }
}

#[test]
fn connection_to_itself_is_refused() {
    let (here, there) = (([127, 0, 0, 1], 7).into(), ([127, 0, 0, 1], 8).into());
    reject_self_connect(Ok(here), Ok(there)).unwrap();
    let ExchangeError::NotListening { source, .. } =
        exchange(reject_self_connect(Ok(here), Ok(here)).unwrap_err())
    else {
        panic!("another error");
    };
    assert_eq!(source.kind(), io::ErrorKind::ConnectionRefused);
}

/// The futures of connecting can be spawned.
#[expect(dead_code, reason = "it need only compile")]
fn futures_are_send(
    group: &'static AsyncGroup,
    [stream, another]: [Async<TcpStream>; 2],
    prepared: PreparedChannel<ConnectedMember>,
    listener: &'static Async<TcpListener>,
    tokio_listener: &'static tokio::net::TcpListener,
) {
    fn is_send<T>(_future: impl Future<Output = Result<T>> + Send + 'static) {}
    is_send(group.exchange(stream, b""));
    is_send(group.exchange_prepared(prepared, another, b""));
    is_send(group.connect_tokio("localhost:1", b""));
    is_send(group.accept_tokio(tokio_listener, b""));
    is_send(group.connect_async_io("localhost:1", b""));
    is_send(group.connect_tokio_within("localhost:1", LONG, b""));
    is_send(group.connect_async_io_within("localhost:1", LONG, b""));
    is_send(group.accept_async_io(listener, b""));
}
