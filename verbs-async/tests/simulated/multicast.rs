//! Multicast groups whose members attach on helper threads.

use std::time::Duration;

use verbs_async::verbs_channel::exchange::ExchangeError;
use verbs_async::verbs_channel::verbs_core::path::QKey;
use verbs_async::verbs_channel::{self, Datagrams, DownReason};
use verbs_async::{AsyncDatagrams, Error};

use super::{Held, LONG, alone, device};

const LOCAL: [u8; 4] = [10, 0, 0, 1];
const GROUP: [u8; 4] = [239, 1, 2, 3];

/// A datagram endpoint that can join multicast groups.
fn joinable() -> AsyncDatagrams {
    let (pd, events) = device();
    let builder = Datagrams::builder(&pd).qkey(QKey::RDMA_UDP);
    AsyncDatagrams::create(builder, &events).unwrap()
}

#[test]
fn closing_waits_for_the_thread_that_attaches_and_keeps_no_other_from_leaving() {
    alone(async || {
        let datagrams = joinable();
        let held = Held::new(&["ibv_attach_mcast", "ibv_destroy_qp"]);
        let joining = datagrams.clone();
        let join = async move { joining.join_cm(LOCAL.into(), GROUP.into(), LONG).await };
        let join = tokio::spawn(join);
        held.begins("ibv_attach_mcast").await;
        let closing = datagrams.clone();
        let close = tokio::spawn(async move { closing.close().await });
        tokio::time::sleep(LONG / 1000).await;
        assert!(held.begun.try_recv().is_err(), "the other thread needs it");
        held.returns();
        held.begins("ibv_destroy_qp").await;
        let stranger = datagrams.endpoint();
        assert!(!datagrams.leave_cm(&stranger).await.unwrap());
        assert!(!close.is_finished());
        held.returns();
        close.await.unwrap().unwrap();
        let error = join.await.unwrap().unwrap_err();
        assert_eq!(error.down_reason(), Some(DownReason::Closed));
    });
}

#[test]
fn attaching_to_a_multicast_group_is_within_the_timeout_and_is_undone_after_it() {
    alone(async || {
        let datagrams = joinable();
        let held = Held::new(&["ibv_attach_mcast", "ibv_detach_mcast"]);
        let timeout = Duration::from_millis(200);
        let join = datagrams.join_cm(LOCAL.into(), GROUP.into(), timeout);
        let Error::Channel(verbs_channel::Error::Exchange(failure)) = join.await.unwrap_err()
        else {
            panic!("another error");
        };
        assert!(matches!(failure.error, ExchangeError::TimedOut { .. }));
        for verb in ["ibv_attach_mcast", "ibv_detach_mcast"] {
            held.begins(verb).await;
            held.returns();
        }
    });
}
