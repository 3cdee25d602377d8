//! Ends on helper threads: of connecting that was given up, and of connections.

use std::time::{Duration, Instant};

use verbs_async::AsyncGroup;
use verbs_async::verbs_channel::__private::{CmExchange, CmStep};
use verbs_async::verbs_channel::{Channel, Connect, Peer};
use verbs_core::{CompletionQueue, QueuePair};

use super::{Held, LONG, alone, device, listener};

fn group() -> AsyncGroup {
    let (pd, events) = device();
    AsyncGroup::new(Channel::builder(&pd), 1, &events).unwrap()
}

#[test]
fn connecting_by_manager_that_is_dropped_destroys_on_a_helper_thread() {
    alone(async || {
        let group = group();
        let (_listener, address) = listener();
        let held = Held::new(&["rdma_connect", "ibv_destroy_qp"]);
        let connecting = tokio::spawn(async move {
            let met = group.connect(Peer::cm(address), Duration::MAX).await;
            drop(met);
        });
        held.begins("rdma_connect").await;
        held.returns();
        connecting.abort();
        assert!(connecting.await.unwrap_err().is_cancelled());
        held.begins("ibv_destroy_qp").await;
        held.returns();
    });
}

#[test]
fn listening_that_is_never_polled_destroys_on_a_helper_thread() {
    alone(async || {
        let group = group();
        let (listener, _) = listener();
        let held = Held::new(&["rdma_destroy_id"]);
        drop(group.listen(listener, LONG));
        held.begins("rdma_destroy_id").await;
        held.returns();
    });
}

/// It was connected by a call that blocks, so its own end would block, too.
#[test]
fn connection_of_a_channel_that_goes_down_is_ended_on_a_helper_thread() {
    alone(async || {
        let group = group();
        let (mut listener, address) = listener();
        let options = Connect::within(LONG).raw_private_data(b"");
        let prepared = group.prepare().unwrap();
        let side = CmExchange::connect(prepared, vec![address], &options, Instant::now());
        let mut side = side.unwrap();
        let step = side.step().unwrap();
        assert!(matches!(step, CmStep::Wait(_)), "{step:?}");
        let request = listener.request(Some(LONG)).unwrap().unwrap();
        let (pd, _) = device();
        let cq = CompletionQueue::create(pd.context(), 8).unwrap();
        let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
        let answers = request.accept(qp, b"").unwrap();
        let CmStep::Connected(mut member) = side.step().unwrap() else {
            panic!("it is not connected");
        };
        side.ready();
        let CmStep::Established(connection) = side.step().unwrap() else {
            panic!("it is not established");
        };
        member.watch_connection(connection);
        let channel = group.join(member).unwrap();
        let held = Held::new(&["rdma_destroy_id"]);
        channel.abort();
        held.begins("rdma_destroy_id").await;
        held.returns();
        // Those of the peer.
        held.returns();
        held.returns();
        drop((answers, listener));
    });
}
