//! Byte streams: bytes in order, whatever both sides do at once.

mod endings;
mod users;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use async_io::Timer;
use futures_util::{AsyncBufReadExt as _, AsyncReadExt as _};
use futures_util::{AsyncWriteExt as _, io::AsyncBufRead as _};
use verbs_async::verbs_channel::verbs_core::{Error as CoreError, ProtectionDomain};
use verbs_async::verbs_channel::{self, Channel};
use verbs_async::{AsyncChannel, AsyncGroup, ByteStream, Error, ReuniteError};
use verbs_harness::{begin, context};

use super::ends::{Way, events, pair, run};

/// Both ends of a stream, each with this number of blocks of this length.
pub(super) fn streams(
    way: Way,
    left: (usize, u16),
    right: (usize, u16),
) -> (AsyncGroup, ByteStream, ByteStream) {
    let (group, to_right, to_left) = pair(way);
    let left = to_right.into_stream_with(left.0, left.1).unwrap();
    let right = to_left.into_stream_with(right.0, right.1).unwrap();
    (group, left, right)
}

/// The output of a future, which fails if it takes too long.
pub(super) async fn soon<T>(future: impl Future<Output = T>) -> T {
    let (mut future, mut timer) = (pin!(future), Timer::after(Duration::from_secs(20)));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(value),
        Poll::Pending => Pin::new(&mut timer)
            .poll(cx)
            .map(|_at| panic!("it is not woken")),
    })
    .await
}

#[test]
#[ignore = "needs an RDMA device"]
fn slices_are_written_in_one_message_and_read_into_many() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::AsyncIo, async {
        let (_group, mut left, mut right) = streams(Way::AsyncIo, (64, 2), (64, 2));
        let out = [b"", &b"gather"[..], b" ", b"and"].map(io::IoSlice::new);
        assert_eq!(soon(left.write_vectored(&out)).await.unwrap(), 10);
        assert_eq!(left.write_vectored(&out[..1]).await.unwrap(), 0);
        let (mut one, mut other, mut rest) = ([0; 3], [0; 4], [0; 9]);
        let mut into = [&mut one[..], &mut [], &mut other, &mut rest].map(io::IoSliceMut::new);
        assert_eq!(soon(right.read_vectored(&mut into)).await.unwrap(), 10);
        assert_eq!(
            [&one[..], &other, &rest].concat(),
            b"gather and\0\0\0\0\0\0"
        );
        // Two messages that are there are read at once, unless another thread takes the second just then.
        let mut rounds = 0..20;
        loop {
            rounds.next().expect("they are read one by one");
            left.write_all(b"one").await.unwrap();
            left.write_all(b"two").await.unwrap();
            left.flush().await.unwrap();
            let mut both = [0; 6];
            let first = soon(right.read(&mut both)).await.unwrap();
            soon(right.read_exact(&mut both[first..])).await.unwrap();
            assert_eq!(&both, b"onetwo");
            if first == 6 {
                break;
            }
        }
        assert_eq!(right.read(&mut []).await.unwrap(), 0);
        // Halves of one stream belong together, and no others.
        let (from_left, to_left) = left.into_split();
        let (from_right, to_right) = right.into_split();
        let ReuniteError(from_left, to_right) = from_left.reunite(to_right).unwrap_err();
        let mut left = from_left.reunite(to_left).unwrap();
        let mut right = from_right.reunite(to_right).unwrap();
        // Bytes can be looked at where they lie.
        left.write_all(b"a line\nand").await.unwrap();
        let mut line = String::new();
        soon(right.read_line(&mut line)).await.unwrap();
        assert_eq!(line, "a line\n");
        let rest = soon(poll_fn(|cx| {
            Pin::new(&mut right).poll_fill_buf(cx).map_ok(<[u8]>::len)
        }));
        assert_eq!(rest.await.unwrap(), 3);
    });
}

/// Asserts that these settings are rejected, with the limits.
fn limits(settings: Result<ByteStream, Error>) -> Option<(&'static str, u64, u64)> {
    match settings {
        Ok(_) => None,
        Err(Error::Channel(verbs_channel::Error::Core(CoreError::OutOfRange {
            what,
            min,
            max,
            ..
        }))) => Some((what, min, max)),
        Err(Error::StreamReceives {
            needed,
            max_recv_wr,
            ..
        }) => Some(("receives", needed.into(), max_recv_wr.into())),
        Err(other) => panic!("{other}"),
    }
}

fn channel_of(pd: &ProtectionDomain, max_recv_wr: u32) -> AsyncChannel {
    let events = events(Way::Thread, pd.context());
    let builder = Channel::builder(pd).max_recv_wr(max_recv_wr);
    let group = AsyncGroup::new(builder, 2, &events).unwrap();
    group.loopback().unwrap().0
}

#[test]
#[ignore = "needs an RDMA device"]
fn invalid_settings_are_rejected() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    let pd = context().alloc_pd().unwrap();
    let port = channel_of(&pd, 16).endpoint().unwrap().port_num();
    let longest = pd.context().query_port(port).unwrap().max_msg_sz();
    let of = |block_len, depth| limits(channel_of(&pd, 16).into_stream_with(block_len, depth));
    assert_eq!(of(19, 1), Some(("block_len", 20, longest.into())));
    assert_eq!(of(usize::MAX, 1), Some(("block_len", 20, longest.into())));
    assert_eq!(of(20, 0), Some(("depth", 1, 65535)));
    assert_eq!(of(20, 13), Some(("receives", 17, 16)));
    assert_eq!(of(20, 12), None);
}
