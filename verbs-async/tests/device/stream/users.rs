//! Code that uses a stream as it uses TCP: tokio's split, and codecs.

use futures_util::{SinkExt, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::bytes::Bytes;
use tokio_util::codec::{Framed, LengthDelimitedCodec, LinesCodec};
use verbs_harness::begin;

use super::{Way, run, streams};

#[test]
#[ignore = "needs an RDMA device"]
fn lines_and_frames_arrive_whole() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Tokio, async {
        let (_group, left, right) = streams(Way::Tokio, (64, 2), (50, 3));
        let (mut left, mut right) = (
            Framed::new(left, LengthDelimitedCodec::new()),
            Framed::new(right, LengthDelimitedCodec::new()),
        );
        let sender = tokio::spawn(async move {
            for len in 0..200_u8 {
                let frame = vec![len; usize::from(len) * 3];
                left.send(Bytes::from(frame)).await.unwrap();
            }
            SinkExt::<Bytes>::close(&mut left).await.unwrap();
        });
        for len in 0..200_u8 {
            let frame = right.next().await.unwrap().unwrap();
            assert_eq!(frame, vec![len; usize::from(len) * 3]);
        }
        assert!(right.next().await.is_none());
        sender.await.unwrap();

        let (_group, left, right) = streams(Way::Tokio, (64, 2), (50, 3));
        let mut left = Framed::new(left, LinesCodec::new());
        let mut right = Framed::new(right, LinesCodec::new());
        left.send("a line").await.unwrap();
        assert_eq!(right.next().await.unwrap().unwrap(), "a line");
        drop(left);
        assert!(right.next().await.is_none());
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn stream_works_with_tokio_split_and_copy() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Tokio, async {
        let (_group, left, right) = streams(Way::Tokio, (512, 4), (512, 4));
        let echo = tokio::spawn(async move {
            let (mut from, mut to) = tokio::io::split(right);
            let copied = tokio::io::copy(&mut from, &mut to).await.unwrap();
            to.shutdown().await.unwrap();
            copied
        });
        let (mut from, mut to) = tokio::io::split(left);
        let sent: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let message = sent.clone();
        let writer = tokio::spawn(async move {
            to.write_all(&message).await.unwrap();
            to.shutdown().await.unwrap();
        });
        let mut came = Vec::new();
        from.read_to_end(&mut came).await.unwrap();
        assert!(came == sent);
        writer.await.unwrap();
        assert_eq!(echo.await.unwrap(), 400_000);
    });
}
