//! Properties of TCP that a message queue lacks: windows of bytes, confirmed ends, drops that
//! lose nothing, and bounds for peers that do not cooperate.

use std::time::{Duration, Instant};

use futures_util::future::join;
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use verbs_async::verbs_channel::Channel;
use verbs_async::{AsyncChannel, AsyncGroup, ByteStream, ReuniteError};
use verbs_harness::{begin, context};

use super::super::ends::{WAYS, Way, connect, events, meet, run};
use super::{BYTES, a_moment, soon, streams};

/// A group of `count` streams whose peers post no receive.
fn streams_without_receives(
    way: Way,
    count: u32,
) -> (AsyncGroup, Vec<AsyncChannel>, Vec<ByteStream>) {
    let pd = context().alloc_pd().unwrap();
    let events = events(way, pd.context());
    let [group, peers] =
        [(); 2].map(|()| AsyncGroup::new(Channel::builder(&pd), count, &events).unwrap());
    let pairs = (0..count).map(|_| connect(&group, &peers));
    let (here, there): (Vec<_>, Vec<_>) = pairs.unzip();
    let streams = here.into_iter().map(|here| here.into_stream().unwrap());
    let streams = streams.collect();
    (group, there, streams)
}

/// Waits until the group has room for this many channels.
async fn has_room(group: &AsyncGroup, count: u32, within: Duration) {
    let pd = context().alloc_pd().unwrap();
    let peers = AsyncGroup::new(
        Channel::builder(&pd),
        count,
        &events(Way::Thread, pd.context()),
    );
    let (peers, start) = (peers.unwrap(), Instant::now());
    let mut joined = Vec::new();
    while joined.len() < count as usize {
        let (member, _peer) = meet(group.prepare().unwrap(), peers.prepare().unwrap());
        match group.join(member) {
            Ok(channel) => joined.push(channel),
            Err(full) => {
                assert!(start.elapsed() < within, "{full}");
                a_moment().await;
            }
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn peers_without_receives_free_their_place_in_time() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    for (way, linger) in [
        (Way::Tokio, Some(Duration::from_millis(300))),
        (Way::Thread, None),
    ] {
        run(way, async move {
            let (group, _peers, streams) = streams_without_receives(way, 4);
            for mut stream in streams {
                if let Some(linger) = linger {
                    stream.set_linger(linger);
                }
                soon(stream.write_all(b"in vain")).await.unwrap();
            }
            // As long as a stream lingers unless set, and some more.
            has_room(&group, 4, Duration::from_secs(25)).await;
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn cancelled_shutdown_frees_its_place() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Tokio, async {
        let (group, _peers, streams) = streams_without_receives(Way::Tokio, 2);
        for mut stream in streams {
            stream.set_linger(Duration::from_millis(300));
            stream.write_all(b"in vain").await.unwrap();
            let short = Duration::from_millis(20);
            assert!(tokio::time::timeout(short, stream.flush()).await.is_err());
            assert!(tokio::time::timeout(short, stream.close()).await.is_err());
        }
        has_room(&group, 2, Duration::from_secs(20)).await;
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn abort_frees_the_place_when_the_queue_pair_is_destroyed() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    for way in WAYS {
        run(way, async move {
            let (group, _peers, streams) = streams_without_receives(way, 2);
            for stream in streams {
                stream.abort();
            }
            group.closed().await.unwrap();
            has_room(&group, 2, Duration::ZERO).await;
            let (group, _peers, streams) = streams_without_receives(way, 2);
            for stream in streams {
                stream.set_linger(Duration::ZERO);
            }
            group.closed().await.unwrap();
            has_room(&group, 2, Duration::ZERO).await;
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn owned_halves_read_write_and_reunite() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    for way in WAYS {
        run(way, async move {
            let (_group, left, right) = streams(way, (512, 2), (512, 2));
            let (mut from_right, mut to_right) = left.into_split();
            let (mut from_left, mut to_left) = right.into_split();
            let (mut there, mut here) = (vec![0; 5000], vec![0; 5000]);
            let all = join(
                join(
                    to_right.write_all(&BYTES[..5000]),
                    to_left.write_all(&BYTES[..5000]),
                ),
                join(
                    from_left.read_exact(&mut there),
                    from_right.read_exact(&mut here),
                ),
            );
            let ((one, other), (a, b)) = soon(all).await;
            one.and(other).and(a).and(b).unwrap();
            assert!(here == there && here == BYTES[..5000]);
            let ReuniteError(from_left, to_right) = from_left.reunite(to_right).unwrap_err();
            let mut left = from_right.reunite(to_right).unwrap();
            // A writing half that is dropped ends the data, and the other half goes on.
            drop(to_left);
            assert_eq!(soon(left.read(&mut here)).await.unwrap(), 0);
            soon(left.write_all(b"still there")).await.unwrap();
            soon(left.close()).await.unwrap();
            let mut text = String::new();
            let mut from_left = from_left;
            soon(from_left.read_to_string(&mut text)).await.unwrap();
            assert_eq!(text, "still there");
        });
    }
}
