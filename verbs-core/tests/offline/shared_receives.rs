//! Shared receive queues: what the driver sees, and who keeps what alive.

use fake_libibverbs::{assert_all_is_well, ladder, with};
use verbs_core::error::ErrorKind;
use verbs_core::memory::Sge;
use verbs_core::queue_pair::{QueuePairConfig, SharedReceives};
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::{CompletionQueue, Device, Error, ProtectionDomain, QueuePair, ReceiveWorkRequest};

fn queue() -> (ProtectionDomain, CompletionQueue, SharedReceiveQueue) {
    let (_, pd, cq) = ladder();
    let srq = SharedReceiveQueue::builder(&pd).max_wr(8).max_sge(2);
    let srq = srq.build().unwrap();
    (pd, cq, srq)
}

fn connected(config: &QueuePairConfig<SharedReceives>) -> QueuePair<SharedReceives> {
    let prepared = config.build().unwrap();
    let endpoint = prepared.endpoint();
    prepared.handshake(&endpoint).unwrap()
}

#[test]
fn failed_post_names_its_verb_and_what_is_posted() {
    let (_, _, srq) = queue();
    let max_wr = srq.max_wr() as usize;
    let mut chain: Vec<_> = (0..=max_wr).map(|_| ReceiveWorkRequest::empty()).collect();
    // SAFETY: there are no buffers.
    let full = unsafe { srq.post_receive(&mut chain) }.unwrap_err();
    assert!(full.is_full());
    assert_eq!(full.posted(), max_wr);
    assert_eq!(
        full.to_string(),
        "ibv_post_srq_recv rejected request 11 of the chain: the queue is full (10 requests): poll \
         completions first"
    );
    drop(srq);

    let (_, _, srq) = queue();
    let mut list = [Sge::new(1, 1, 1); 3];
    let mut chain = [
        ReceiveWorkRequest::empty(),
        ReceiveWorkRequest::new(&mut list),
    ];
    // SAFETY: the library touches no buffer.
    let error = unsafe { srq.post_receive(&mut chain) }.unwrap_err();
    assert_eq!(error.posted(), 1);
    assert_eq!(
        error.to_string(),
        "ibv_post_srq_recv rejected request 2 of the chain: 3 elements exceed this shared receive \
         queue's 2 per request"
    );
    with(|library| library.wrong.clear());
}

#[test]
fn queue_pair_takes_its_receives_from_the_queue_and_has_none_of_its_own() {
    let (pd, cq, srq) = queue();
    // More than the device has: it means nothing here.
    let builder = QueuePair::builder(&pd, &cq, &cq).max_recv_wr(5000);
    let qp = connected(&builder.max_send_wr(3).srq(&srq));
    assert!(qp.srq().is(&srq));
    // SAFETY: it is alive.
    assert_eq!(unsafe { (*qp.as_ptr()).srq }, srq.as_ptr());
    // The library grants 2 more than it is asked for, and 1 more for sends.
    assert_eq!((qp.cap().max_recv_wr, qp.cap().max_send_wr), (2, 4));
    let prepared = qp.reset().unwrap();
    assert!(prepared.srq().is(&srq));
    drop((prepared, srq, pd, cq));
    assert_all_is_well();
}

#[test]
fn queue_pair_keeps_the_queue_which_goes_last() {
    let (pd, cq, srq) = queue();
    let qp = connected(&QueuePair::builder(&pd, &cq, &cq).srq(&srq));
    let other = srq.clone();
    assert!(matches!(srq.close(), Err(Error::InUse { .. })));
    assert!(matches!(other.close(), Err(Error::InUse { .. })));
    assert!(fake_libibverbs::is_alive("ibv_create_srq"));
    qp.close().unwrap();
    assert!(!fake_libibverbs::is_alive("ibv_create_srq"));
    drop((pd, cq));
    assert_all_is_well();
}

#[test]
fn queue_beyond_the_device_s_limits_is_rejected_before_the_driver() {
    let (_, pd, _) = ladder();
    let error = |max_wr, max_sge| {
        let builder = SharedReceiveQueue::builder(&pd).max_wr(max_wr);
        builder.max_sge(max_sge).build().unwrap_err().to_string()
    };
    assert_eq!(error(1001, 1), "max_wr 1001 exceeds this device's 1000");
    assert_eq!(error(1, 5), "max_sge 5 exceeds this device's 4");
    assert_eq!(
        error(0, 1),
        "max_wr 0 is out of range: 1 to 1000 are possible"
    );
    with(|library| library.attr.max_srq = 0);
    let none = SharedReceiveQueue::create(&pd, 1).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Unsupported);
    assert!(with(|library| !library.calls.contains(&"ibv_create_srq")));
}

#[test]
fn queue_of_another_context_is_rejected() {
    let (pd, cq, _) = queue();
    let other = Device::by_name("fake1").unwrap().open().unwrap();
    let srq = SharedReceiveQueue::create(&other.alloc_pd().unwrap(), 4).unwrap();
    let error = QueuePair::builder(&pd, &cq, &cq).srq(&srq).build();
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("the shared receive queue belongs to another"));
}
