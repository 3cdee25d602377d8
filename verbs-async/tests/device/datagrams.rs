//! Awaited datagram endpoints: questions and answers, in every way to wait.

use futures_util::future::join;
use verbs_async::AsyncDatagrams;
use verbs_async::verbs_channel::verbs_core::Device;
use verbs_async::verbs_channel::{BufferPool, Datagrams};
use verbs_harness::{begin, device_name, peer_name};

#[test]
#[ignore = "needs an RDMA device"]
fn questions_are_answered_in_their_order() {
    let _test = begin!();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let [here, there] = [device_name(), peer_name()]
            .map(|name| Device::by_name(&name).unwrap().open().unwrap());
        let [here, there] = [here, there].map(|context| context.alloc_pd().unwrap());
        let asks = AsyncDatagrams::create_tokio(&Datagrams::builder(&here).max_send_wr(4));
        let answers = AsyncDatagrams::create_thread(&Datagrams::builder(&there).max_send_wr(4));
        let (asks, answers) = (asks.unwrap(), answers.unwrap());
        let pool = BufferPool::new(&here, 64, 8).unwrap();
        let server = answers.endpoint();
        let client = async {
            for number in 0..200_u32 {
                let block = pool.take_when_free().await;
                let question = block.filled(&number.to_be_bytes()).unwrap();
                asks.send_to(&server, question).await.unwrap();
                let answer = asks.receive_from().await.unwrap();
                assert_eq!(answer[..], number.to_be_bytes());
                assert_eq!(answer.from().qp_num(), server.qp_num());
            }
        };
        let serve = async {
            for _ in 0..200 {
                let question = answers.receive_from().await.unwrap();
                let from = question.from();
                answers
                    .send_to(&from, question.into_buffer())
                    .await
                    .unwrap();
            }
        };
        join(client, serve).await;
        join(asks.flush(), answers.flush()).await;
        assert_eq!(pool.available(), pool.capacity());
        asks.close().unwrap();
        answers.close().unwrap();
    });
}
