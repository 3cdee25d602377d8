//! Ends that C refuses: the errors of `close`, what is kept, and what is handed back.

use std::ptr::NonNull;
use std::sync::Arc;

use verbs_core::codes::QpState;
use verbs_core::error::ErrorKind;
use verbs_core::memory::Buffer;
use verbs_core::{AccessFlags, Error, QueuePair};

use super::{connected, ladder, on_host, prepared};

#[test]
fn close_returns_the_error_of_c() {
    on_host(0, |host| {
        let (context, pd, cq) = ladder();
        let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
        let mr = pd.reg_mr(vec![0_u8; 8]).unwrap();
        let fails = |verb, close: &mut dyn FnMut() -> Result<(), Error>| {
            host.refuse(verb, libc::EIO);
            let error = close().unwrap_err();
            let expected = (Some(libc::EIO), format!("{verb} failed"));
            assert_eq!((error.errno(), error.to_string()), expected);
        };
        let mut all = (Some(qp), Some(mr), Some(cq), Some(pd), Some(context));
        fails("ibv_destroy_qp", &mut || all.0.take().unwrap().close());
        let mut dereg = || all.1.take().unwrap().dereg().map(drop);
        fails("ibv_dereg_mr", &mut dereg);
        fails("ibv_destroy_cq", &mut || all.2.take().unwrap().close());
        fails("ibv_dealloc_pd", &mut || all.3.take().unwrap().close());
        fails("ibv_close_device", &mut || all.4.take().unwrap().close());
    });
}

/// Bytes, and a count of what is left of them.
struct Counted(
    Box<[u8]>,
    #[expect(dead_code, reason = "it counts")] Arc<()>,
);

// SAFETY: the bytes are the box's, which owns them.
unsafe impl Buffer for Counted {
    type Item = u8;

    fn items(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut *self.0)
    }
}

#[test]
fn a_buffer_is_released_only_if_it_is_certain_that_it_is_deregistered() {
    for (errno, left) in [(None, 1), (Some(libc::EIO), 2)] {
        // The leak of the region that is dropped, and the domain, which C keeps for it; that which is deregistered
        // returns the error.
        on_host(if errno.is_some() { 2 } else { 0 }, |host| {
            let (_context, pd, _) = ladder();
            let count = Arc::new(());
            let buffer = || Counted(Box::new([0; 64]), Arc::clone(&count));
            let refuse = || errno.map(|errno| host.refuse("ibv_dereg_mr", errno));
            let mr = pd.reg_mr(buffer()).unwrap();
            refuse();
            drop(mr);
            assert_eq!(Arc::strong_count(&count), left, "dropping the region");
            let count = Arc::new(());
            let buffer = Counted(Box::new([0; 64]), Arc::clone(&count));
            let mr = pd.reg_shared(buffer, AccessFlags::REMOTE_WRITE).unwrap();
            refuse();
            assert_eq!(mr.dereg().is_err(), errno.is_some());
            assert_eq!(Arc::strong_count(&count), left, "deregistering");
        });
    }
}

#[test]
fn a_queue_pair_that_cannot_be_prepared_is_destroyed() {
    on_host(0, |host| {
        let (_context, pd, cq) = ladder();
        host.refuse("ibv_modify_qp", libc::ENODEV);
        let error = QueuePair::builder(&pd, &cq, &cq).build().unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENODEV));
        // Nothing uses it any more.
        cq.close().unwrap();
    });
}

#[test]
fn failed_handshake_returns_the_queue_pair() {
    // To RTR, and to RTS: half-way connected means over RESET to INIT again.
    for steps in 0..2 {
        on_host(0, |host| {
            let qp = prepared();
            let endpoint = qp.endpoint();
            host.refuse_after(steps, "ibv_modify_qp", libc::ETIMEDOUT);
            let refused = qp.handshake(&endpoint).unwrap_err();
            assert_eq!(refused.error().errno(), Some(libc::ETIMEDOUT));
            let qp = refused.into_given();
            assert_eq!(qp.endpoint(), endpoint);
            assert_eq!(qp.query().unwrap().qp_state(), QpState::INIT);
            drop(qp.handshake(&endpoint).unwrap());
        });
    }
}

#[test]
fn failed_reset_returns_the_queue_pair() {
    on_host(0, |host| {
        let qp = connected();
        let number = qp.qp_num();
        host.refuse("ibv_query_port", libc::EIO);
        let refused = qp.reset().unwrap_err();
        assert_eq!(refused.error().to_string(), "ibv_query_port failed");
        let prepared = refused.into_given().reset().unwrap();
        assert_eq!(prepared.qp_num(), number);
    });
}

#[test]
fn queue_that_the_driver_does_not_resize_keeps_its_size() {
    on_host(0, |host| {
        let (_context, _pd, cq) = ladder();
        let before = cq.min_capacity();
        host.refuse("ibv_resize_cq", libc::ENOSYS);
        let error = cq.resize(before + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(cq.min_capacity(), before);
        cq.resize(before + 1).unwrap();
        assert!(cq.min_capacity() > before);
    });
}
