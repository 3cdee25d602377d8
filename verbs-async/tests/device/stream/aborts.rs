//! Streams that end early: dropped, with their process, or after the other side has ended.

use std::io;
use std::time::Instant;

use futures_util::future::join;
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use verbs_async::verbs_channel::Channel;
use verbs_async::{AsyncGroup, StreamError};
use verbs_harness::{begin, context, faults};

use super::super::ends::{WAYS, events, once_it_waits, run};
use super::{a_moment, fill, soon, streams};

#[track_caller]
fn is_reset<T: std::fmt::Debug>(result: io::Result<T>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    assert_eq!(inner, Some(&StreamError::Reset));
}

#[test]
#[ignore = "needs an RDMA device"]
fn drop_is_read_as_an_end_after_what_was_written() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    for way in WAYS {
        run(way, async move {
            let (_group, mut left, mut right) = streams(way, (64, 4), (64, 4));
            soon(left.write_all(b"and then")).await.unwrap();
            let start = Instant::now();
            drop(left);
            let mut bytes = [0; 8];
            soon(right.read_exact(&mut bytes)).await.unwrap();
            assert_eq!(&bytes, b"and then");
            assert_eq!(soon(right.read(&mut bytes)).await.unwrap(), 0);
            let what = "nothing: all bytes that it sent are read, then the end";
            faults::seen(faults::CLOSED, "stream", what, faults::at_once(start));
            assert_eq!(soon(right.read(&mut bytes)).await.unwrap(), 0);
            let start = Instant::now();
            let error = soon(right.write(b"x")).await.unwrap_err();
            faults::error(faults::CLOSED, "stream", &error, faults::at_once(start));
            is_reset::<()>(Err(error));
            assert!(right.is_down());
            // Nothing was lost.
            soon(right.close()).await.unwrap();
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn drop_with_unread_data_is_a_reset_after_what_was_written() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    for way in WAYS {
        for comes_first in [true, false] {
            run(way, async move {
                let (_group, mut left, mut right) = streams(way, (64, 4), (64, 4));
                soon(left.write_all(b"and then")).await.unwrap();
                soon(right.write_all(b"not read")).await.unwrap();
                if comes_first {
                    soon(right.flush()).await.unwrap();
                }
                drop(left);
                let mut bytes = [0; 8];
                soon(right.read_exact(&mut bytes)).await.unwrap();
                assert_eq!(&bytes, b"and then");
                is_reset(soon(right.close()).await);
                if comes_first {
                    is_reset(soon(right.read(&mut bytes)).await);
                }
                is_reset(soon(right.close()).await);
            });
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn waiting_tasks_are_woken_by_a_drop() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    for way in WAYS {
        run(way, async move {
            // A reader that has written nothing.
            let (_group, left, mut right) = streams(way, (64, 4), (64, 4));
            let mut bytes = [0; 8];
            let read = once_it_waits(right.read(&mut bytes), || drop(left));
            assert_eq!(soon(read).await.unwrap(), 0);
            // A writer without credits, though the other side had ended its own data.
            let (_group, mut left, mut right) = streams(way, (64, 4), (64, 4));
            soon(left.close()).await.unwrap();
            assert!(fill(&mut right).await > 0);
            let write = once_it_waits(right.write(&[7; 8]), || drop(left));
            is_reset(soon(write).await);
            assert_eq!(soon(right.read(&mut [0; 8])).await.unwrap(), 0);
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn abort_is_an_error_for_the_writing_peer() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    for way in WAYS {
        run(way, async move {
            let (_group, mut left, mut right) = streams(way, (64, 4), (64, 4));
            soon(left.write_all(b"x")).await.unwrap();
            soon(left.flush()).await.unwrap();
            left.abort();
            let ended = async {
                loop {
                    if let Err(error) = right.write_all(b"are you there?").await {
                        return error;
                    }
                    if let Err(error) = right.flush().await {
                        return error;
                    }
                }
            };
            let error = soon(ended).await;
            let kinds = [
                io::ErrorKind::ConnectionReset,
                io::ErrorKind::ConnectionAborted,
            ];
            assert!(kinds.contains(&error.kind()), "{error}");
        });
    }
}

/// Their channels are closed after the last message: the group has room for others.
#[test]
#[ignore = "needs an RDMA device"]
fn dropped_streams_leak_nothing() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    for way in WAYS {
        run(way, async move {
            let pd = context().alloc_pd().unwrap();
            let events = events(way, pd.context());
            let group = AsyncGroup::new(Channel::builder(&pd), 2, &events).unwrap();
            for round in 0..10 {
                let start = Instant::now();
                let (left, right) = loop {
                    match group.loopback() {
                        Ok(pair) => break pair,
                        Err(full) => assert!(start.elapsed().as_secs() < 20, "{full}"),
                    }
                    a_moment().await;
                };
                let mut left = left.into_stream().unwrap();
                let mut right = right.into_stream().unwrap();
                match round % 3 {
                    0 => drop((left, right)),
                    1 => {
                        soon(left.write_all(b"x")).await.unwrap();
                        drop(left);
                        let mut bytes = Vec::new();
                        soon(right.read_to_end(&mut bytes)).await.unwrap();
                        assert_eq!(bytes, b"x");
                    }
                    _ => {
                        let (one, other) = join(left.close(), right.close()).await;
                        one.and(other).unwrap();
                        assert_eq!(soon(left.read(&mut [0; 8])).await.unwrap(), 0);
                        assert_eq!(soon(right.read(&mut [0; 8])).await.unwrap(), 0);
                    }
                }
            }
        });
    }
}

/// The last part of a group may be a stream that was dropped and lingers.
#[test]
#[ignore = "needs an RDMA device"]
fn stream_outlives_its_group_handle() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    for way in WAYS {
        run(way, async move {
            for _ in 0..10 {
                let (group, mut left, right) = streams(way, (64, 4), (64, 4));
                soon(left.write_all(b"x")).await.unwrap();
                drop(group);
                drop(left);
                drop(right);
            }
            a_moment().await;
        });
    }
}
