//! A check of debug builds: elements of another protection domain are rejected when they are
//! posted.
#![cfg(debug_assertions)]

use std::ptr::NonNull;

use fake_libibverbs::{assert_all_is_well, connected, ladder, posted, with};
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::{ErrorKind, PostError};
use verbs_core::ffi::Destroy;
use verbs_core::memory::{RawRegion, Sge};
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::verbs_sys::{ibv_alloc_pd, ibv_reg_mr_iova2};
use verbs_core::work_request::{AtomicWorkRequest, DatagramWorkRequest, RequestChain};
use verbs_core::{
    AccessFlags, ProtectionDomain, QueuePair, ReadWorkRequest, ReceiveWorkRequest,
    RemoteMemoryRegion, SendWorkRequest, WriteWorkRequest,
};

fn remote() -> RemoteMemoryRegion {
    RemoteMemoryRegion::new(0x7000, 64, 0x99).unwrap()
}

/// A region of 64 bytes, which are leaked.
fn raw(pd: &ProtectionDomain) -> RawRegion {
    let bytes = NonNull::from(Box::leak(Box::new([0_u8; 64]))).cast();
    // SAFETY: the bytes stay, and are never borrowed.
    unsafe { pd.register_raw(bytes, 64, AccessFlags::LOCAL_WRITE, ()) }.unwrap()
}

/// 8 bytes of a region as an element.
fn part(region: &RawRegion) -> Sge {
    region.sge(8..16).unwrap()
}

fn is_rejected(post: Result<(), PostError>) {
    let error = post.unwrap_err();
    assert_eq!((error.posted(), error.errno()), (0, None));
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let text = error.to_string();
    assert!(text.contains("another protection domain"), "{text}");
    assert!(posted().is_empty(), "{:?}", posted());
}

#[test]
fn element_of_another_domain_is_rejected_in_each_way_to_post_it() {
    let qp = connected();
    let pd = qp.pd().context().alloc_pd().unwrap();
    let (region, own) = (raw(&pd), raw(qp.pd()));
    let (mut list, mut one) = ([part(&own), part(&region)], part(&region));
    // SAFETY: nothing accesses the memory, and nothing is posted.
    unsafe {
        let mut send = [SendWorkRequest::empty(), SendWorkRequest::new(&mut list)];
        is_rejected(qp.post_send(&mut send));
        is_rejected(qp.post_write(&mut WriteWorkRequest::new(&mut list, &remote()).unwrap()));
        is_rejected(qp.post_read(&mut ReadWorkRequest::new(&mut list, &remote()).unwrap()));
        let mut add = AtomicWorkRequest::fetch_and_add(&mut one, &remote(), 1).unwrap();
        is_rejected(qp.post_atomic(&mut add));
        is_rejected(qp.post_receive(&mut ReceiveWorkRequest::new(&mut list)));
    }
    let mut sends = RequestChain::sends(3, 2).unwrap();
    sends.set(0, part(&own)).unwrap();
    sends.set_list(2, list).unwrap();
    let mut receives = RequestChain::receives(1, 1).unwrap();
    receives.set(0, one).unwrap();
    // SAFETY: nothing accesses the memory, and nothing is posted.
    unsafe {
        is_rejected(qp.post_chain(&mut sends, ..));
        is_rejected(qp.post_chain(&mut sends, 2..));
        is_rejected(qp.post_receive_chain(&mut receives, ..));
    }
    let srq = SharedReceiveQueue::create(qp.pd(), 4).unwrap();
    let datagrams = DatagramQueuePair::builder(qp.pd(), qp.send_cq(), qp.send_cq());
    let datagrams = datagrams.build().unwrap();
    let peer = datagrams.endpoint();
    let ah = datagrams.address_handle(&peer).unwrap();
    // SAFETY: nothing accesses the memory, and nothing is posted.
    unsafe {
        is_rejected(srq.post_receive(&mut ReceiveWorkRequest::new(&mut list)));
        is_rejected(srq.post_receive_chain(&mut receives, ..));
        is_rejected(datagrams.post_send(&mut DatagramWorkRequest::to(&mut one, &ah, &peer)));
        is_rejected(datagrams.post_receive(&mut ReceiveWorkRequest::new(&mut list)));
        is_rejected(datagrams.post_receive_chain(&mut receives, ..));
    }
    let text = |error: PostError, of: &str| {
        let expected = format!(
            "the memory of request 1 is of another protection domain than {of}: register it in \
             that domain; nothing was posted"
        );
        assert_eq!(error.to_string(), expected);
    };
    let error = unsafe_post(&qp, &mut [part(&own), part(&region)]).unwrap_err();
    text(error, "this queue pair");
    // SAFETY: nothing accesses the memory, and nothing is posted.
    let posted_shared = unsafe { srq.post_receive(&mut ReceiveWorkRequest::new(&mut list)) };
    text(posted_shared.unwrap_err(), "this shared receive queue");
    // A part of the chain that has only memory of this domain.
    // SAFETY: nothing accesses the memory.
    unsafe { qp.post_chain(&mut sends, ..2) }.unwrap();
    unsafe_post(&qp, &mut [part(&own)]).unwrap();
    assert_eq!(posted().len(), 3);
}

/// Posts a send of elements that stay registered.
fn unsafe_post(qp: &QueuePair, list: &mut [Sge]) -> Result<(), PostError> {
    // SAFETY: nothing accesses the memory.
    unsafe { qp.post_send(&mut SendWorkRequest::new(list)) }
}

#[test]
fn every_kind_of_region_is_known_until_it_is_deregistered() {
    let qp = connected();
    let pd = qp.pd().context().alloc_pd().unwrap();
    let mut private = pd.reg_mr(vec![0_u8; 64]).unwrap();
    let mut element = private.scatter_element(8..16).unwrap();
    // SAFETY: nothing is posted.
    is_rejected(unsafe { qp.post_send(&mut SendWorkRequest::new(&mut element)) });
    let shared = pd.reg_shared(vec![0_u8; 64], AccessFlags::LOCAL_WRITE);
    let shared = shared.unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let fd = std::os::fd::AsFd::as_fd(&file);
    // SAFETY: there is no such memory.
    let dmabuf = unsafe { pd.reg_dmabuf_mr(fd, 0, 64, 0xd000_0000, AccessFlags::empty(), ()) };
    let (dmabuf, raw) = (dmabuf.unwrap(), raw(&pd));
    let parts = [shared.element(..8), dmabuf.element(56..), raw.element(..)];
    let mut parts = parts.map(|part| Sge::from(part.unwrap()));
    for part in &mut parts {
        is_rejected(unsafe_post(&qp, std::slice::from_mut(part)));
    }
    drop((private, dmabuf));
    drop((shared.dereg().unwrap(), raw.dereg().unwrap()));
    // Unknown memory is left to the driver; the device has no such key.
    for part in &mut parts {
        unsafe_post(&qp, std::slice::from_mut(part)).unwrap();
    }
}

#[test]
fn keys_that_are_not_used_or_not_known_are_not_checked() {
    let qp = connected();
    let context = qp.pd().context();
    let (pd, region) = (context.alloc_pd().unwrap(), raw(qp.pd()));
    let other = raw(&pd);
    // Inline bytes are copied, whatever their key is.
    let mut list = [part(&other)];
    // SAFETY: the bytes are read during the call, and nothing writes to them.
    unsafe { qp.post_send(&mut SendWorkRequest::new(&mut list).inline()) }.unwrap();
    let outside = Sge::new(other.remote().addr() + 60, 8, other.lkey());
    unsafe_post(&qp, &mut [outside]).unwrap();
    // The same key and the same memory in this domain, as several devices may give it.
    let (addr, key) = (other.remote().addr(), other.lkey());
    let start = std::ptr::with_exposed_provenance_mut(usize::try_from(addr).unwrap());
    // SAFETY: the bytes stay.
    let mr = unsafe { ibv_reg_mr_iova2(qp.pd().as_ptr(), start, 64, addr, 1) };
    let (mr, start) = (
        NonNull::new(mr).unwrap(),
        NonNull::new(start.cast()).unwrap(),
    );
    // SAFETY: this test alone has it.
    unsafe { (*mr.as_ptr()).lkey = key };
    // SAFETY: the region is over these bytes, and its verb alone deregisters it.
    let same = unsafe { RawRegion::from_raw(mr, start, 64, qp.pd(), Destroy::by_verb()) }.unwrap();
    unsafe_post(&qp, &mut [part(&same), part(&region)]).unwrap();
    drop(same);
    is_rejected_after(unsafe_post(&qp, &mut [part(&other)]));
}

fn is_rejected_after(post: Result<(), PostError>) {
    with(|library| library.posted.clear());
    is_rejected(post);
}

#[test]
fn parent_domains_and_domains_of_other_libraries_are_accepted() {
    let (context, pd, cq) = ladder();
    with(|library| library.thread_domains = true);
    let td = context.alloc_td().unwrap();
    // SAFETY: one thread uses everything here.
    let parent = unsafe { pd.alloc_parent_domain(&td) }.unwrap();
    // SAFETY: the context is open.
    let made = NonNull::new(unsafe { ibv_alloc_pd(context.as_ptr()) }).unwrap();
    // SAFETY: the region is alive, and destroyed by its verb.
    let foreign =
        unsafe { ProtectionDomain::from_raw(made, &context, Destroy::by_verb()) }.unwrap();
    for (of, posted_in) in [
        (&pd, &parent),
        (&parent, &pd),
        (&pd, &foreign),
        (&foreign, &pd),
    ] {
        let region = raw(of);
        let srq = SharedReceiveQueue::create(posted_in, 4).unwrap();
        let mut room = part(&region);
        // SAFETY: nothing accesses the memory.
        unsafe { srq.post_receive(&mut ReceiveWorkRequest::new(&mut room)) }.unwrap();
        srq.close().unwrap();
    }
    drop((context, pd, cq, td, parent, foreign));
    assert_all_is_well();
}
