//! Objects that another library made: taken over, used as any other, and destroyed as they have to be.

use std::error::Error as _;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fake_libibverbs::{announce, announce_last, assert_all_is_well, ladder, posted, with};
use verbs_core::codes::QpState;
use verbs_core::completion::CompletionChannel;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::ffi::Destroy;
use verbs_core::memory::{DmabufRegion, RawRegion, Sge};
use verbs_core::path::AddressHandle;
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::verbs_sys::{
    IBV_QPT_RC, ibv_alloc_pd, ibv_context, ibv_cq, ibv_create_ah, ibv_create_comp_channel,
    ibv_create_cq, ibv_create_qp, ibv_create_srq, ibv_destroy_cq, ibv_destroy_qp, ibv_open_device,
    ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_reg_mr_iova2, ibv_srq_attr, ibv_srq_init_attr,
};
use verbs_core::{
    AccessFlags, CompletionQueue, Context, Device, Error, PreparedQueuePair, ProtectionDomain,
    QueuePair, ReceiveWorkRequest,
};
use verbs_harness::bounded;

/// A queue pair by C's call.
fn made_in_c(pd: &ProtectionDomain, cq: &CompletionQueue) -> (NonNull<ibv_qp>, ibv_qp_cap) {
    let cap = ibv_qp_cap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 32,
    };
    let mut init = ibv_qp_init_attr {
        send_cq: cq.as_ptr(),
        recv_cq: cq.as_ptr(),
        cap,
        qp_type: IBV_QPT_RC,
        ..Default::default()
    };
    // SAFETY: both objects are alive.
    let qp = unsafe { ibv_create_qp(pd.as_ptr(), &raw mut init) };
    (NonNull::new(qp).unwrap(), init.cap)
}

fn calls(verb: &str) -> usize {
    with(|library| library.calls.iter().filter(|call| **call == verb).count())
}

/// An owner, and how often one was dropped.
fn owner() -> (impl Send + Sync + 'static, Arc<AtomicUsize>) {
    struct Owner(Arc<AtomicUsize>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    (Owner(Arc::clone(&drops)), drops)
}

#[test]
fn a_queue_pair_made_in_c_is_driven_as_any_other() {
    let (context, pd, cq) = ladder();
    let (qp, cap) = made_in_c(&pd, &cq);
    let config = QueuePair::builder(&pd, &cq, &cq)
        .qp_access_flags(AccessFlags::empty())
        .config();
    // SAFETY: it is an RC queue pair of these parents, and is destroyed by nothing else.
    let prepared =
        unsafe { PreparedQueuePair::from_raw(qp, cap, &config, Destroy::by_verb()) }.unwrap();
    assert_eq!(prepared.as_ptr(), qp.as_ptr());
    // The granted limits, not the configuration's.
    assert_eq!(
        (prepared.cap().max_send_wr, prepared.cap().max_recv_wr),
        (5, 6)
    );
    assert_eq!(prepared.query().unwrap().qp_state(), QpState::INIT);
    let endpoint = prepared.endpoint();
    let qp = prepared.handshake(&endpoint).unwrap();
    let mut room = [Sge::new(1, 1, 1)];
    // SAFETY: the library touches no buffer.
    unsafe { qp.post_receive(&mut ReceiveWorkRequest::new(&mut room).wr_id(9)) }.unwrap();
    assert_eq!(posted(), [9]);
    let again = qp.reset().unwrap();
    drop((pd, cq, config, context));
    again.close().unwrap();
    assert_eq!(calls("ibv_destroy_qp"), 1);
    assert_all_is_well();
}

#[test]
fn datagrams_address_handles_and_shared_receives_are_taken_over() {
    let (context, pd, cq) = ladder();
    let granted = ibv_srq_attr {
        max_wr: 8,
        max_sge: 2,
        srq_limit: 0,
    };
    let mut init = ibv_srq_init_attr {
        attr: granted,
        ..Default::default()
    };
    // SAFETY: the domain is alive.
    let srq = NonNull::new(unsafe { ibv_create_srq(pd.as_ptr(), &raw mut init) }).unwrap();
    let other = context.alloc_pd().unwrap();
    // SAFETY: it is rejected.
    let refused =
        unsafe { SharedReceiveQueue::from_raw(srq, init.attr, &other, Destroy::by_verb()) };
    let refused = refused.unwrap_err().to_string();
    assert_eq!(
        refused,
        "the shared receive queue was made with another protection domain"
    );
    // SAFETY: it is of this domain, and is destroyed by nothing else.
    let srq = unsafe { SharedReceiveQueue::from_raw(srq, init.attr, &pd, Destroy::by_verb()) };
    let srq = srq.unwrap();
    assert_eq!((srq.max_wr(), srq.max_sge()), (10, 2), "as it was granted");

    let (qp, cap) = made_in_c(&pd, &cq);
    let on_srq = QueuePair::builder(&pd, &cq, &cq).srq(&srq);
    // SAFETY: it is rejected: it has no shared receive queue.
    let refused = unsafe { PreparedQueuePair::from_raw(qp, cap, &on_srq, Destroy::by_verb()) };
    assert!(matches!(refused, Err(Error::ForeignParent { .. })));

    let config = DatagramQueuePair::builder(&pd, &cq, &cq).config();
    let on_other = DatagramQueuePair::builder(&other, &cq, &cq).config();
    // SAFETY: it is rejected.
    let refused = unsafe { DatagramQueuePair::from_raw(qp, cap, &on_other, Destroy::by_verb()) };
    assert!(matches!(refused, Err(Error::ForeignParent { .. })));
    // SAFETY: the library drives it as one for datagrams.
    let qp = unsafe { DatagramQueuePair::from_raw(qp, cap, &config, Destroy::by_verb()) };
    let qp = qp.unwrap();
    assert_eq!(qp.query().unwrap().qp_state(), QpState::RTS);

    let attr = qp.path_to(&qp.endpoint()).unwrap();
    let mut raw = *attr.as_raw();
    // SAFETY: the domain is alive.
    let ah = unsafe { ibv_create_ah(pd.as_ptr(), &raw mut raw) };
    let ah = NonNull::new(ah).unwrap();
    // SAFETY: it is of this domain, and is destroyed by nothing else.
    let ah = unsafe { AddressHandle::from_raw(ah, &attr, &pd, Destroy::by_verb()) }.unwrap();
    assert_eq!(ah.attr().as_raw().port_num, 1);
    drop((
        context, pd, cq, other, srq, qp, ah, config, on_other, on_srq,
    ));
    assert_all_is_well();
}

#[test]
fn a_connected_queue_pair_is_taken_over() {
    let (context, pd, cq) = ladder();
    let config = QueuePair::builder(&pd, &cq, &cq).config();
    let endpoint = config.build().unwrap().endpoint();
    let (qp, cap) = made_in_c(&pd, &cq);
    let before = with(|library| library.modified.len());
    let destroy = Destroy::by_verb();
    // SAFETY: the library's queue pairs are as good as connected.
    let qp = unsafe { QueuePair::from_raw(qp, cap, &config, &endpoint, &endpoint, destroy) };
    let qp = qp.unwrap();
    assert_eq!(
        with(|library| library.modified.len()),
        before,
        "it stays in its state"
    );
    assert_eq!(
        (qp.endpoint(), qp.remote_endpoint()),
        (&endpoint, &endpoint)
    );
    assert_eq!(qp.max_msg_sz(), 1 << 30);
    drop((qp, config, pd, cq, context));
    assert_all_is_well();
}

#[test]
fn a_function_destroys_what_c_has_no_verb_for() {
    let (context, pd, cq) = ladder();
    let config = QueuePair::builder(&pd, &cq, &cq).config();
    for fails in [false, true] {
        let (qp, cap) = made_in_c(&pd, &cq);
        let count = Arc::new(AtomicUsize::new(0));
        let (counted, address) = (Arc::clone(&count), qp.as_ptr().addr());
        let destroy = Destroy::by(move |object: NonNull<ibv_qp>| {
            assert_eq!(object.as_ptr().addr(), address);
            counted.fetch_add(1, Ordering::Relaxed);
            // SAFETY: it is alive, and ends here.
            let code = unsafe { ibv_destroy_qp(object.as_ptr()) };
            assert_eq!(code, 0);
            if fails {
                return Err(io::Error::other("no"));
            }
            Ok(())
        });
        // SAFETY: it is an RC queue pair of these parents, and is destroyed by nothing else.
        let prepared = unsafe { PreparedQueuePair::from_raw(qp, cap, &config, destroy) }.unwrap();
        let closed = prepared.close();
        assert_eq!(count.load(Ordering::Relaxed), 1);
        match closed {
            Ok(()) => assert!(!fails),
            Err(error) => {
                let text = error.to_string();
                assert_eq!(text, "the function that destroys the object failed");
                assert_eq!(error.source().unwrap().to_string(), "no");
            }
        }
    }
    drop((config, pd, cq, context));
    assert_all_is_well();
}

#[test]
fn an_object_with_another_owner_is_not_destroyed() {
    let (context, pd, cq) = ladder();
    let raw = NonNull::new(pd.as_ptr()).unwrap();
    let (owner, drops) = owner();
    let destroy = Destroy::by_owner(owner);
    // SAFETY: `pd` lives to the end.
    let borrowed = unsafe { ProtectionDomain::from_raw(raw, &context, destroy) }.unwrap();
    let qp = QueuePair::builder(&borrowed, &cq, &cq).build().unwrap();
    drop(borrowed);
    assert_eq!(drops.load(Ordering::Relaxed), 0, "the queue pair keeps it");
    drop(qp);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    assert_eq!(calls("ibv_dealloc_pd"), 0);
    pd.close().unwrap();
    drop((cq, context));
    assert_all_is_well();
}

#[test]
fn objects_of_other_parents_are_rejected() {
    let (context, pd, cq) = ladder();
    let (foreign, foreign_pd, foreign_cq) = ladder();
    let (qp, cap) = made_in_c(&pd, &cq);
    let (other_pd, other_cq) = (
        context.alloc_pd().unwrap(),
        CompletionQueue::create(&context, 8),
    );
    let other_cq = other_cq.unwrap();
    let refused = |pd: &ProtectionDomain, send_cq: &CompletionQueue, recv_cq: &CompletionQueue| {
        let (owner, drops) = owner();
        let config = QueuePair::builder(pd, send_cq, recv_cq).config();
        let destroy = Destroy::by_owner(owner);
        // SAFETY: it is rejected.
        let error = unsafe { PreparedQueuePair::from_raw(qp, cap, &config, destroy) };
        assert_eq!(drops.load(Ordering::Relaxed), 1, "`destroy` is dropped");
        error.unwrap_err().to_string()
    };
    let another = "the queue pair was made with another";
    assert_eq!(
        refused(&other_pd, &cq, &cq),
        format!("{another} protection domain")
    );
    assert_eq!(
        refused(&pd, &other_cq, &cq),
        format!("{another} send queue's CQ")
    );
    assert_eq!(
        refused(&pd, &cq, &other_cq),
        format!("{another} receive queue's CQ")
    );
    let words = refused(&foreign_pd, &foreign_cq, &foreign_cq);
    assert!(
        words.starts_with("the queue pair belongs to another device context"),
        "{words}"
    );

    let raw_pd = NonNull::new(foreign_pd.as_ptr()).unwrap();
    let raw_cq = NonNull::new(foreign_cq.as_ptr()).unwrap();
    let channel = CompletionChannel::create(&context).unwrap();
    let raw_channel = NonNull::new(channel.as_ptr()).unwrap();
    // SAFETY: these are rejected.
    unsafe {
        let refused = ProtectionDomain::from_raw(raw_pd, &context, Destroy::by_verb());
        assert!(matches!(refused, Err(Error::ForeignContext { .. })));
        let refused = CompletionQueue::from_raw(raw_cq, &context, None, Destroy::by_verb());
        assert!(matches!(refused, Err(Error::ForeignContext { .. })));
        let refused = CompletionChannel::from_raw(raw_channel, &foreign, Destroy::by_verb());
        assert!(matches!(refused, Err(Error::ForeignContext { .. })));
        let raw_cq = NonNull::new(cq.as_ptr()).unwrap();
        let refused =
            CompletionQueue::from_raw(raw_cq, &context, Some(&channel), Destroy::by_verb());
        assert!(matches!(refused, Err(Error::ForeignParent { .. })));
    }
    // SAFETY: it is the caller's still.
    assert_eq!(unsafe { ibv_destroy_qp(qp.as_ptr()) }, 0);
    drop((
        channel, other_pd, other_cq, pd, cq, context, foreign_pd, foreign_cq, foreign,
    ));
    assert_all_is_well();
}

/// A context by C's call.
fn opened_in_c() -> (Device, NonNull<ibv_context>) {
    let device = Device::by_name("fake1").unwrap();
    // SAFETY: the device is alive.
    let context = unsafe { ibv_open_device(device.as_ptr()) };
    (device, NonNull::new(context).unwrap())
}

#[test]
fn a_whole_ladder_made_in_c_is_taken_over() {
    let (device, raw) = opened_in_c();
    // SAFETY: it is open, and closed by nothing else.
    let context = unsafe { Context::from_raw(raw, Destroy::by_verb()) }.unwrap();
    assert_eq!(
        (context.device().name(), context.as_ptr()),
        (device.name(), raw.as_ptr())
    );
    drop(device);

    // SAFETY: each is new, of these parents, and destroyed by nothing else.
    let (pd, channel, cq) = unsafe {
        let pd = NonNull::new(ibv_alloc_pd(raw.as_ptr())).unwrap();
        let pd = ProtectionDomain::from_raw(pd, &context, Destroy::by_verb()).unwrap();
        let channel = NonNull::new(ibv_create_comp_channel(raw.as_ptr())).unwrap();
        let channel = CompletionChannel::from_raw(channel, &context, Destroy::by_verb()).unwrap();
        let cq: *mut ibv_cq = ibv_create_cq(raw.as_ptr(), 8, ptr::null_mut(), channel.as_ptr(), 0);
        let cq = NonNull::new(cq).unwrap();
        let cq =
            CompletionQueue::from_raw(cq, &context, Some(&channel), Destroy::by_verb()).unwrap();
        (pd, channel, cq)
    };
    assert_eq!(cq.min_capacity(), 7, "what the driver has written");
    announce(&cq);
    let event = channel
        .get_cq_event(Some(Duration::from_millis(20)))
        .unwrap()
        .unwrap();
    assert!(event.is(&cq), "its events are this crate's");
    let none = channel.get_cq_event(Some(Duration::ZERO)).unwrap();
    assert!(none.is_none(), "its descriptor does not block");

    let mut bytes = [0_u8; 64];
    let start = NonNull::from(&mut bytes).cast::<u8>();
    // SAFETY: the bytes live longer than the regions.
    let (region, window) = unsafe {
        let register = || {
            let mr = ibv_reg_mr_iova2(pd.as_ptr(), start.as_ptr().cast(), 64, 0x1000, 1);
            NonNull::new(mr).unwrap()
        };
        let region = RawRegion::from_raw(register(), start, 64, &pd, Destroy::by_verb()).unwrap();
        let window =
            DmabufRegion::from_raw(register(), 0x1000, 64, &pd, Destroy::by_verb()).unwrap();
        (region, window)
    };
    assert_eq!(
        region.sge(8..).unwrap().addr(),
        start.as_ptr().addr() as u64 + 8
    );
    assert_eq!(window.sge(8..).unwrap().addr(), 0x1008);
    let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    // In the order in which C would not have it.
    drop((context, channel, pd, cq, qp, region, window));
    assert_all_is_well();
}

/// A queue by C's call, on this channel.
fn queue_made_in_c(channel: &CompletionChannel) -> NonNull<ibv_cq> {
    let context = channel.context().as_ptr();
    // SAFETY: both are alive.
    let cq = unsafe { ibv_create_cq(context, 8, ptr::null_mut(), channel.as_ptr(), 0) };
    NonNull::new(cq).unwrap()
}

/// Takes over a queue of this channel.
fn taken_over(
    cq: NonNull<ibv_cq>,
    channel: &CompletionChannel,
    destroy: Destroy<ibv_cq>,
) -> CompletionQueue {
    // SAFETY: it was made in C on this channel, has not been armed, and is destroyed by `destroy`, or by
    // its test after that.
    unsafe { CompletionQueue::from_raw(cq, channel.context(), Some(channel), destroy) }.unwrap()
}

#[test]
fn events_of_a_queue_that_outlives_its_taker_are_acknowledged() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let raw = queue_made_in_c(&channel);
    let cq = taken_over(raw, &channel, Destroy::by_owner(()));
    announce(&cq);
    assert!(channel.get_cq_event(None).unwrap().unwrap().is(&cq));
    announce(&cq);
    cq.close().unwrap();
    for _ in 0..2 {
        let none = channel.get_cq_event(Some(Duration::ZERO)).unwrap();
        assert!(none.is_none(), "nobody here has the queue");
        assert!(announce_last());
    }
    // SAFETY: it is alive, and its taker is gone.
    assert_eq!(unsafe { ibv_destroy_cq(raw.as_ptr()) }, 0);
    channel.close().unwrap();
    drop(context);
    assert_all_is_well();
}

#[test]
fn destroying_a_queue_may_use_its_channel() {
    let (context, ..) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let owner = CompletionQueue::builder(&context, 8).channel(&channel);
    let owner = owner.build().unwrap();
    let owned = taken_over(
        queue_made_in_c(&channel),
        &channel,
        Destroy::by(move |cq| {
            // SAFETY: it is alive, and ends here.
            assert_eq!(unsafe { ibv_destroy_cq(cq.as_ptr()) }, 0);
            let events = owner.channel().unwrap();
            assert!(events.get_cq_event(Some(Duration::ZERO)).unwrap().is_none());
            drop(owner);
            Ok(())
        }),
    );
    bounded(Duration::from_secs(60), || owned.close()).unwrap();
    drop((channel, context));
    assert_all_is_well();
}

#[test]
fn a_context_whose_device_is_gone_is_an_error() {
    let (device, raw) = opened_in_c();
    with(|library| library.devices = 1);
    // SAFETY: it is open, and rejected.
    let refused = unsafe { Context::from_raw(raw, Destroy::by_verb()) };
    assert!(matches!(refused, Err(Error::UnknownDevice { .. })));
    with(|library| library.devices = 2);
    // SAFETY: the context is open, and closed by nothing else.
    drop(unsafe { Context::from_raw(raw, Destroy::by_verb()) }.unwrap());
    drop(device);
    assert_all_is_well();
}

#[test]
#[cfg_attr(miri, ignore = "Miri sets no flags of descriptors")]
fn object_whose_descriptor_cannot_be_set_up_is_not_destroyed() {
    let (_device, raw) = opened_in_c();
    // SAFETY: the context is open.
    let channel = NonNull::new(unsafe { ibv_create_comp_channel(raw.as_ptr()) }).unwrap();
    // SAFETY: nothing else uses them. Without these descriptors, `fcntl` fails.
    let (async_fd, fd) = unsafe {
        let async_fd = std::mem::replace(&mut (*raw.as_ptr()).async_fd, i32::MAX);
        let fd = std::mem::replace(&mut (*channel.as_ptr()).fd, i32::MAX);
        (async_fd, fd)
    };
    let never = Destroy::by(|_| panic!("it was not taken over"));
    // SAFETY: it is open, and rejected.
    let refused = unsafe { Context::from_raw(raw, never) };
    assert_eq!(refused.unwrap_err().errno(), Some(libc::EBADF));
    // SAFETY: the context is open, as the call above rejected it.
    unsafe { (*raw.as_ptr()).async_fd = async_fd };
    // SAFETY: it is open, and closed by nothing else.
    let context = unsafe { Context::from_raw(raw, Destroy::by_verb()) }.unwrap();
    let never = Destroy::by(|_| panic!("it was not taken over"));
    // SAFETY: it is alive, and rejected.
    let refused = unsafe { CompletionChannel::from_raw(channel, &context, never) };
    assert_eq!(refused.unwrap_err().errno(), Some(libc::EBADF));
    // SAFETY: the channel is alive, and destroyed by nothing else.
    unsafe {
        (*channel.as_ptr()).fd = fd;
        drop(CompletionChannel::from_raw(channel, &context, Destroy::by_verb()).unwrap());
    }
    drop(context);
}
