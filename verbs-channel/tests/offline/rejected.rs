//! Posts that the driver rejects: no request is lost, and no buffer is released too early.

use fake_libibverbs::with;
use verbs_channel::verbs_core::error::ErrorKind;
use verbs_channel::{BufferPool, DownReason, Error, Outgoing, RejectReason, TransportError};

use crate::fake_device::{called, channel, pd, posted, region, succeeds};

/// The driver rejects this request of the next post, with `ENOMEM`.
fn refuse_at(place: usize) {
    with(|library| library.refuse_post = Some((place, libc::ENOMEM, true)));
}

#[test]
fn request_rejected_by_the_driver_is_handed_back_and_can_be_posted_again() {
    let mut channel = channel();
    let mut buffer = Some(region(&channel));
    // Far more often than there is room for.
    for _ in 0..100 {
        refuse_at(0);
        let rejected = channel.start_send(buffer.take().unwrap()).unwrap_err();
        let RejectReason::Post(error) = *rejected.error() else {
            panic!("{rejected}");
        };
        assert_eq!(
            (error.posted(), rejected.error().is_backpressure()),
            (0, false)
        );
        refuse_at(0);
        let rejected = channel.start_receive(rejected.into_given()).unwrap_err();
        assert!(matches!(*rejected.error(), RejectReason::Post(_)));
        buffer = Some(rejected.into_given().into_region().unwrap());
        refuse_at(0);
        let element = buffer.as_ref().unwrap().gather_element(..).unwrap();
        let error = channel.run_batch([Outgoing::send(element); 4]).unwrap_err();
        assert!(
            matches!(error, TransportError::Rejected(RejectReason::Post(_))),
            "{error}"
        );
    }
    assert!(!channel.is_down());
    let ticket = channel.start_send(buffer.unwrap()).unwrap();
    succeeds(*posted().last().unwrap());
    channel.poll(ticket).unwrap().unwrap().result.unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri ends where memory does")]
fn pool_larger_than_memory_is_an_error() {
    let pd = pd();
    let kind = |block_len, count| match BufferPool::new(&pd, block_len, count) {
        Err(Error::Core(error)) => error.kind(),
        other => panic!("{other:?}"),
    };
    assert_eq!(kind(1 << 40, 1 << 20), ErrorKind::OutOfMemory);
    for (block_len, count) in [(0, 1), (1, 0), (0, 0)] {
        assert!(BufferPool::new(&pd, block_len, count).is_err());
    }
}

#[test]
fn borrowed_batch_of_which_the_device_may_have_a_part_destroys_the_queue_pair_first() {
    for is_named in [true, false] {
        let mut channel = channel();
        let from = region(&channel);
        let owned = channel.start_receive(region(&channel)).unwrap();
        with(|library| library.refuse_post = Some((2, libc::ENOMEM, is_named)));
        let batch = [Outgoing::send(from.gather_element(..).unwrap()); 4];
        let error = channel.run_batch(batch).unwrap_err();
        let TransportError::Rejected(RejectReason::Post(error)) = error else {
            panic!("{error:?}");
        };
        // The device will not complete what it has.
        assert!(called("ibv_destroy_qp"));
        assert_eq!(channel.down_reason(), Some(DownReason::Post(error)));
        let ended = channel.poll(owned).unwrap().unwrap();
        assert!(ended.result.is_err() && ended.buffer.is_some());
    }
}
