//! Awaited datagram endpoints: questions and answers, in every way to wait.

use std::thread;
use std::time::Instant;

use futures_util::future::join;
use verbs_async::verbs_channel::datagram_exchange::{Connector, Step};
use verbs_async::verbs_channel::verbs_core::{DatagramEndpoint, Device, ProtectionDomain};
use verbs_async::verbs_channel::{BufferPool, Channel, DatagramListener, Datagrams};
use verbs_async::{AsyncChannel, AsyncDatagrams, AsyncGroup, CqEvents};
use verbs_harness::{PATIENCE, begin, device_name, peer_name};

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
        asks.close().await.unwrap();
        answers.close().await.unwrap();
    });
}

/// Connects to a blocking listener, as the documentation of `AsyncDatagrams` does.
async fn connect(pd: &ProtectionDomain, server: &DatagramEndpoint) -> (AsyncGroup, AsyncChannel) {
    let events = CqEvents::create_tokio(pd.context()).unwrap();
    let group = AsyncGroup::new(Channel::builder(pd), 1, &events).unwrap();
    let datagrams = AsyncDatagrams::create_tokio(&Datagrams::builder(pd)).unwrap();
    let pool = BufferPool::new(pd, 1024, 4).unwrap();
    let prepared = group.prepare().unwrap();
    let (ours, max, now) = (prepared.endpoint(), datagrams.max_payload(), Instant::now());
    let connector = Connector::new(server, &ours, b"hello", max, now, PATIENCE);
    let mut connector = connector.unwrap();
    let (mut prepared, mut channel) = (Some(prepared), None);
    loop {
        match connector.step(Instant::now()).unwrap() {
            Step::Send(bytes) => {
                if let Some(block) = pool.take_with(bytes).unwrap() {
                    datagrams.send_to(server, block).await.unwrap();
                }
            }
            Step::Wait(until) => {
                let received = tokio::time::timeout_at(until.into(), datagrams.receive_from());
                if let Ok(datagram) = received.await {
                    connector.received(&datagram.unwrap());
                }
            }
            Step::Done(peer) => match prepared.take() {
                Some(prepared) => {
                    assert_eq!(peer.private_data, b"welcome");
                    let met = group.handshake(prepared, &peer.endpoint).await;
                    channel = Some(met.unwrap());
                    connector.ready();
                }
                None => break,
            },
        }
    }
    datagrams.flush().await;
    (group, channel.unwrap())
}

#[test]
#[ignore = "needs an RDMA device"]
fn async_client_connects_over_datagrams_to_a_blocking_server() {
    let _test = begin!();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let [here, there] =
        [device_name(), peer_name()].map(|name| Device::by_name(&name).unwrap().open().unwrap());
    let [here, there] = [here, there].map(|context| context.alloc_pd().unwrap());
    let datagrams = Datagrams::builder(&there).build().unwrap();
    let mut listener = DatagramListener::new(datagrams).unwrap();
    let server = listener.endpoint();
    let serve = thread::spawn(move || {
        let prepared = Channel::builder(&there).timeout(PATIENCE).build().unwrap();
        let met = prepared.accept_over_datagrams(&mut listener, PATIENCE, b"welcome");
        let (mut channel, data) = met.unwrap();
        assert_eq!(data, b"hello");
        let mut inbox = there.reg_mr(vec![0_u8; 64]).unwrap();
        let received = channel.receive(inbox.scatter_element(..).unwrap()).unwrap();
        assert_eq!(received.byte_len(), 5);
        assert_eq!(&inbox[..5], b"first");
    });
    runtime.block_on(async {
        let (_group, channel) = connect(&here, &server).await;
        let message = here.reg_mr(b"first".to_vec()).unwrap();
        channel.send(message).await.0.unwrap();
    });
    serve.join().unwrap();
}
