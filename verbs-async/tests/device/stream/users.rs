//! Code that uses a stream as it uses TCP: tokio's split, codecs, h2.

use std::io;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt as _};
use http::{Request, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::bytes::Bytes;
use tokio_util::codec::{Framed, LengthDelimitedCodec, LinesCodec};
use verbs_async::ByteStream;
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

/// Sends the body of each request back.
async fn echo(mut connection: h2::server::Connection<ByteStream, Bytes>) {
    while let Some(accepted) = connection.accept().await {
        let (request, mut respond) = match accepted {
            Ok(accepted) => accepted,
            // A client that has had its answers leaves without reading the last frames about its
            // windows: that is a reset, as with TCP, and comes before or after its GOAWAY is read.
            Err(error) => {
                let kind = error.into_io().map(|error| error.kind());
                assert_eq!(kind, Some(io::ErrorKind::ConnectionReset));
                return;
            }
        };
        tokio::spawn(async move {
            let mut answer = respond.send_response(Response::new(()), false).unwrap();
            let mut body = request.into_body();
            while let Some(bytes) = body.data().await {
                let bytes = bytes.unwrap();
                body.flow_control().release_capacity(bytes.len()).unwrap();
                answer.send_data(bytes, false).unwrap();
            }
            answer.send_data(Bytes::new(), true).unwrap();
        });
    }
}

/// Large windows, and many requests at once: both sides have more to write than the stream holds.
#[test]
#[ignore = "needs an RDMA device"]
fn concurrent_http_2_requests_are_answered() {
    const WINDOW: u32 = 4 << 20;
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Tokio, async {
        let (_group, left, right) = streams(Way::Tokio, (16 << 10, 16), (16 << 10, 16));
        let mut server = h2::server::Builder::new();
        server
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        let serve = tokio::spawn(async move { echo(server.handshake(right).await.unwrap()).await });
        let mut client = h2::client::Builder::new();
        client
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        let (requests, connection) = client.handshake::<_, Bytes>(left).await.unwrap();
        let connection = tokio::spawn(connection);
        let answers = (0..32_u8).map(|at| {
            let mut requests = requests.clone();
            tokio::spawn(async move {
                let body = Bytes::from(vec![at; 100_000]);
                let request = Request::post("https://peer/echo").body(()).unwrap();
                let (answer, mut sent) = requests.send_request(request, false).unwrap();
                sent.send_data(body.clone(), true).unwrap();
                let mut came = answer.await.unwrap().into_body();
                let mut bytes = Vec::new();
                while let Some(data) = came.data().await {
                    let data = data.unwrap();
                    came.flow_control().release_capacity(data.len()).unwrap();
                    bytes.extend_from_slice(&data);
                }
                assert!(bytes == body, "request {at}");
            })
        });
        for answer in answers.collect::<Vec<_>>() {
            answer.await.unwrap();
        }
        drop(requests);
        connection.await.unwrap().unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(20), serve).await;
        ended.expect("the server sees the end").unwrap();
    });
}
