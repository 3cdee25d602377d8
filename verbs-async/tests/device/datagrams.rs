//! Awaited datagram endpoints: questions and answers, in every way to wait.

use std::thread;

use futures_util::future::join;
use verbs_async::verbs_channel::connect::DatagramListener;
use verbs_async::verbs_channel::verbs_core::{Device, ProtectionDomain};
use verbs_async::verbs_channel::{BufferPool, Channel, Connect, Datagrams, Peer};
use verbs_async::{AsyncDatagrams, AsyncGroup, CqEvents};
use verbs_harness::{PATIENCE, begin, device_name, peer_name};

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// A domain of each end of the wire.
fn domains() -> [ProtectionDomain; 2] {
    [device_name(), peer_name()]
        .map(|name| Device::by_name(&name).unwrap().open().unwrap())
        .map(|context| context.alloc_pd().unwrap())
}

#[test]
#[ignore = "needs an RDMA device"]
fn questions_are_answered_in_their_order() {
    let _test = begin!(iwarp lacks "datagrams");
    runtime().block_on(async {
        let [here, there] = domains();
        let asks = AsyncDatagrams::create(
            Datagrams::builder(&here).max_send_wr(4),
            &CqEvents::create_tokio(here.context()).unwrap(),
        );
        let answers = AsyncDatagrams::create(
            Datagrams::builder(&there).max_send_wr(4),
            &CqEvents::create_thread(there.context()).unwrap(),
        );
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
        asks.close().await.unwrap();
        answers.close().await.unwrap();
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn async_client_connects_over_datagrams_to_a_blocking_server() {
    let _test = begin!(iwarp lacks "datagrams");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let [here, there] = domains();
    let datagrams = Datagrams::builder(&there).build().unwrap();
    let mut listener = DatagramListener::new(datagrams).unwrap();
    let server = listener.endpoint();
    let serve = thread::spawn(move || {
        let prepared = Channel::builder(&there).timeout(PATIENCE).build().unwrap();
        let options = Connect::within(PATIENCE).private_data(b"welcome");
        let met = prepared.accept(&mut listener, options).unwrap();
        assert_eq!(met.private_data, b"hello");
        let mut channel = met.channel;
        let mut inbox = there.reg_mr(vec![0_u8; 64]).unwrap();
        let received = channel.receive(inbox.scatter_element(..).unwrap()).unwrap();
        assert_eq!(received.byte_len(), 5);
        assert_eq!(&inbox[..5], b"first");
    });
    runtime.block_on(async {
        let events = CqEvents::create_tokio(here.context()).unwrap();
        let group = AsyncGroup::new(Channel::builder(&here), 1, &events).unwrap();
        let datagrams = AsyncDatagrams::create(
            Datagrams::builder(&here),
            &CqEvents::create_tokio(here.context()).unwrap(),
        )
        .unwrap();
        let options = Connect::within(PATIENCE).private_data(b"hello");
        let met = group.connect(Peer::Datagrams(&datagrams, server), options);
        let met = met.await.unwrap();
        assert_eq!(met.private_data, b"welcome");
        let channel = met.channel;
        let message = here.reg_mr(b"first".to_vec()).unwrap();
        channel.send(message).await.0.unwrap();
    });
    serve.join().unwrap();
}
