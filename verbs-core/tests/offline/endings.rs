//! How objects end: their order, the errors of `close`, and what is kept when C fails.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fake_libibverbs::{assert_all_is_well, connected, ladder, with};
use verbs_core::{
    AccessFlags, Buffer, CompletionChannel, CompletionQueue, Error, ErrorKind, QueuePair,
    QueuePairEndpoint,
};
use verbs_harness::drops::{drop_in, orders};

#[test]
fn parents_outlive_their_children_in_every_order_of_drops() {
    // Under Miri there is time for a few of them.
    let (orders, count) = match cfg!(miri) {
        true => (vec![(0..7).collect(), (0..7).rev().collect()], 2),
        false => (orders(7), 5040),
    };
    assert_eq!(orders.len(), count);
    for order in orders {
        let (context, pd, plain) = ladder();
        let channel = CompletionChannel::create(&context).unwrap();
        let cq = CompletionQueue::builder(&context, 8)
            .channel(&channel)
            .build()
            .unwrap();
        let mr = pd.reg_mr(vec![0_u8; 64]).unwrap();
        let qp = QueuePair::builder(&pd, &cq, &plain).build().unwrap();
        let endpoint = qp.endpoint();
        let qp = qp.handshake(&endpoint).unwrap();
        drop_in(
            order,
            [
                Box::new(context),
                Box::new(pd),
                Box::new(plain),
                Box::new(channel),
                Box::new(cq),
                Box::new(mr),
                Box::new(qp),
            ],
        );
        assert_all_is_well();
    }
}

#[test]
fn close_fails_while_clones_exist_and_the_last_clone_destroys() {
    let (context, pd, cq) = ladder();
    let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let in_use = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::InUse);
        error.to_string()
    };
    assert_eq!(
        in_use(context.close().unwrap_err()),
        "the device context is still in use: drop its clones, and what was created from it, first"
    );
    assert_eq!(
        in_use(pd.close().unwrap_err()),
        "the protection domain is still in use: drop its clones, and what was created from it, first"
    );
    assert_eq!(
        in_use(cq.close().unwrap_err()),
        "the completion queue is still in use: drop its clones, and what was created from it, first"
    );
    qp.close().unwrap();
    assert_all_is_well();
}

#[test]
fn close_returns_the_error_of_c() {
    let (context, pd, cq) = ladder();
    let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let mr = pd.reg_mr(vec![0_u8; 8]).unwrap();
    let refuse = |verb| with(|library| library.refuse.push((verb, libc::EIO)));
    let closing = |closed: Result<(), Error>| closed.unwrap_err().to_string();
    refuse("ibv_destroy_qp");
    assert_eq!(closing(qp.close()), "ibv_destroy_qp failed");
    refuse("ibv_dereg_mr");
    assert_eq!(closing(mr.dereg().map(drop)), "ibv_dereg_mr failed");
    refuse("ibv_destroy_cq");
    assert_eq!(closing(cq.close()), "ibv_destroy_cq failed");
    refuse("ibv_dealloc_pd");
    assert_eq!(closing(pd.close()), "ibv_dealloc_pd failed");
    refuse("ibv_close_device");
    let error = context.close().unwrap_err();
    assert_eq!(
        (error.errno(), error.to_string()),
        (Some(libc::EIO), "ibv_close_device failed".into())
    );
}

#[test]
fn failed_drop_does_not_panic() {
    let qp = connected();
    let mr = qp.pd().reg_mr(vec![0_u8; 8]).unwrap();
    with(|library| {
        let verbs = [
            "ibv_destroy_qp",
            "ibv_dereg_mr",
            "ibv_destroy_cq",
            "ibv_dealloc_pd",
        ];
        library.refuse.extend(verbs.map(|verb| (verb, libc::EIO)));
    });
    drop((mr, qp));
    assert_eq!(with(|library| library.refuse.clone()), []);
}

/// Records its drop.
struct Watched {
    bytes: Box<[u8]>,
    dropped: Arc<AtomicBool>,
    dereg_before: bool,
}

// SAFETY: the bytes are the box's, which owns them.
unsafe impl Buffer for Watched {
    type Item = u8;

    fn items(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut *self.bytes)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let deregistered = with(|library| library.calls.contains(&"ibv_dereg_mr"));
        assert_eq!(deregistered, self.dereg_before);
        self.dropped.store(true, Ordering::Relaxed);
    }
}

fn watched(dereg_before: bool) -> (Watched, Arc<AtomicBool>) {
    let dropped = Arc::new(AtomicBool::new(false));
    let watched = Watched {
        bytes: Box::new([0; 64]),
        dropped: Arc::clone(&dropped),
        dereg_before,
    };
    (watched, dropped)
}

#[test]
fn a_buffer_is_released_after_its_registration() {
    let (_, pd, _) = ladder();
    let (buffer, dropped) = watched(true);
    drop(pd.reg_mr(buffer).unwrap());
    assert!(dropped.load(Ordering::Relaxed));
    let (buffer, dropped) = watched(true);
    drop(pd.reg_shared(buffer, AccessFlags::REMOTE_WRITE).unwrap());
    assert!(dropped.load(Ordering::Relaxed));
}

#[test]
fn buffer_that_may_still_be_registered_is_never_released() {
    let (_, pd, _) = ladder();
    let refuse = || with(|library| library.refuse.push(("ibv_dereg_mr", libc::EIO)));
    let (buffer, dropped) = watched(true);
    let mr = pd.reg_mr(buffer).unwrap();
    refuse();
    drop(mr);
    assert!(!dropped.load(Ordering::Relaxed), "dropping the region");
    let (buffer, dropped) = watched(true);
    let mr = pd.reg_shared(buffer, AccessFlags::REMOTE_WRITE).unwrap();
    refuse();
    assert!(mr.dereg().is_err());
    assert!(!dropped.load(Ordering::Relaxed), "deregistering");
}

#[test]
fn a_queue_pair_that_cannot_be_prepared_is_destroyed() {
    let (context, pd, cq) = ladder();
    with(|library| library.closed_state = Some((1, libc::ENODEV)));
    let error = QueuePair::builder(&pd, &cq, &cq).build().unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENODEV));
    drop((context, pd, cq));
    assert_all_is_well();
}

#[test]
fn failed_handshake_returns_the_queue_pair() {
    // To RTR, and to RTS.
    for (state, prepares_again) in [(2, false), (3, true)] {
        let qp = fake_libibverbs::prepared();
        let number = qp.qp_num();
        let endpoint = qp.endpoint();
        with(|library| {
            library.closed_state = Some((state, libc::ETIMEDOUT));
            library.modified.clear();
        });
        let refused = qp.handshake(&endpoint).unwrap_err();
        assert_eq!(refused.error().errno(), Some(libc::ETIMEDOUT));
        let states = with(|library| {
            library.closed_state = None;
            let modified = std::mem::take(&mut library.modified);
            modified
                .iter()
                .map(|(attr, _)| attr.qp_state.0)
                .collect::<Vec<_>>()
        });
        // Half-way connected means over RESET to INIT again.
        let expected: &[u32] = if prepares_again { &[2, 3, 0, 1] } else { &[2] };
        assert_eq!(states, expected);
        let qp = refused.into_given();
        assert_eq!((qp.qp_num(), qp.endpoint()), (number, endpoint));
        drop(qp.handshake(&endpoint).unwrap());
        assert_all_is_well();
    }
}

#[test]
fn endpoint_without_an_address_for_this_port_returns_the_queue_pair() {
    let qp = fake_libibverbs::prepared();
    let psn = qp.endpoint().psn();
    let lid_only = QueuePairEndpoint::builder(5, psn).lid(9).build().unwrap();
    let refused = qp.handshake(&lid_only).unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::InvalidPeer);
    let qp = refused.into_given();
    let endpoint = qp.endpoint();
    assert!(qp.handshake(&endpoint).is_ok());
}

#[test]
fn failed_reset_returns_the_queue_pair() {
    let qp = connected();
    let number = qp.qp_num();
    with(|library| library.ports[0].attr.state.0 = 1);
    let refused = qp.reset().unwrap_err();
    assert!(
        matches!(refused.error(), Error::NoActivePort { .. }),
        "{refused}"
    );
    with(|library| library.ports[0].attr.state.0 = 4);
    let prepared = refused.into_given().reset().unwrap();
    assert_eq!(prepared.qp_num(), number);
}
