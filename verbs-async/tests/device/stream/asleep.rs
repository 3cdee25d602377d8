//! Tasks that sleep until something was sent: woken, although their own poll sent it.

use std::thread;
use std::time::Duration;

use futures_util::future::join;
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use verbs_harness::begin;

use super::super::ends::{Way, pair, run};
use super::super::stream::{soon, streams};

#[test]
#[ignore = "needs an RDMA device"]
fn block_longer_than_the_peers_is_sent_while_its_task_only_reads() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Thread, async {
        let (_group, to_right, to_left) = pair(Way::Thread);
        let mut left = to_right.into_stream_with(4096, 4).unwrap();
        // Before the HELLO of the peer, whose blocks are shorter.
        soon(left.write_all(&[7; 4096])).await.unwrap();
        let mut right = to_left.into_stream_with(64, 4).unwrap();
        let asks = async {
            let mut answer = [0];
            left.read_exact(&mut answer).await.unwrap();
            answer
        };
        let answers = async {
            let mut request = vec![0; 4096];
            right.read_exact(&mut request).await.unwrap();
            assert_eq!(request, [7; 4096]);
            right.write_all(b"x").await.unwrap();
            right.flush().await.unwrap();
        };
        let (answer, ()) = soon(join(asks, answers)).await;
        assert_eq!(&answer, b"x");
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn flush_that_sends_the_rest_is_woken_when_it_has_arrived() {
    let _test = begin!(iwarp lacks "the immediates that streams need");
    run(Way::Thread, async {
        let (_group, mut left, mut right) = streams(Way::Thread, (4096, 32), (4096, 32));
        for round in 0..20_u8 {
            // Some are in flight, and what follows is joined until they have arrived.
            for _ in 0..6 {
                soon(left.write_all(&[round; 10])).await.unwrap();
            }
            // Meanwhile no task polls the stream.
            thread::sleep(Duration::from_millis(5));
            soon(left.flush()).await.unwrap();
            let mut came = [0; 60];
            soon(right.read_exact(&mut came)).await.unwrap();
            assert_eq!(came, [round; 60]);
        }
    });
}
