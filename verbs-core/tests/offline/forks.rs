//! Forks: in the child, objects of the parent are dropped and closed without a trace.

use std::any::Any;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fake_libibverbs::{assert_all_is_well, calls_of, connected, ladder, with};
use verbs_core::codes::Gid;
use verbs_core::completion::CompletionChannel;
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::ffi::Destroy;
use verbs_core::path::{AddressHandle, AhAttr};
use verbs_core::shared_receive_queue::SharedReceiveQueue;
use verbs_core::verbs_sys::ibv_alloc_pd;
use verbs_core::{AccessFlags, CompletionQueue, Error, ProtectionDomain, QueuePair};
use verbs_harness::child::{fork, in_the_child};
use verbs_harness::logged;

fn handle(pd: &ProtectionDomain) -> AddressHandle {
    pd.create_ah(&AhAttr::new(1).dlid(7)).unwrap()
}

fn belongs_to_another(closed: Result<(), Error>, object: &str) {
    match closed {
        Err(Error::OtherProcess { object: of }) => assert_eq!(of, object),
        other => panic!("{object}: {other:?}"),
    }
}

const GROUP: Gid = Gid::new([0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

#[test]
fn a_child_that_drops_every_object_calls_nothing_and_logs_nothing() {
    logged::listen();
    with(|library| library.thread_domains = true);
    let (context, pd, plain) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let cq = CompletionQueue::builder(&context, 8)
        .channel(&channel)
        .build()
        .unwrap();
    fake_libibverbs::announce(&cq);
    assert!(channel.get_cq_event(None).unwrap().is_some());
    let datagrams = DatagramQueuePair::builder(&pd, &cq, &cq).build().unwrap();
    datagrams.attach_mcast(GROUP, 0).unwrap().keep();
    let mut bytes = [0_u8; 64];
    let start = NonNull::from(&mut bytes).cast();
    // SAFETY: the bytes live longer than the region.
    let raw = unsafe { pd.register_raw(start, 64, AccessFlags::empty(), ()) };
    let objects: Vec<Box<dyn Any>> = vec![
        Box::new(connected()),
        Box::new(QueuePair::builder(&pd, &cq, &plain).build().unwrap()),
        Box::new(SharedReceiveQueue::builder(&pd).build().unwrap()),
        Box::new(pd.reg_mr(vec![0_u8; 64]).unwrap()),
        Box::new(
            pd.reg_shared(vec![0_u8; 64], AccessFlags::REMOTE_WRITE)
                .unwrap(),
        ),
        Box::new(raw.unwrap()),
        Box::new(handle(&pd)),
        Box::new(datagrams),
        Box::new(context.alloc_td().unwrap()),
        Box::new((context, pd, plain, channel, cq)),
    ];
    let child = fork();
    let mut objects = Some(objects);
    in_the_child(child, || {
        assert_eq!(calls_of(|| drop(objects.take())), [""; 0]);
        assert_eq!(with(|library| library.wrong.clone()), [""; 0]);
        assert_eq!(logged::lines(), [""; 0]);
    });
    assert!(!calls_of(|| drop(objects)).is_empty());
    assert_all_is_well();
}

#[test]
fn a_close_in_a_child_is_an_error_and_the_parent_closes_afterwards() {
    let close = |is_child: bool, objects| {
        let (context, pd, cq, channel, qp, srq, ah, datagrams, region): (
            _,
            ProtectionDomain,
            CompletionQueue,
            CompletionChannel,
            QueuePair,
            SharedReceiveQueue,
            AddressHandle,
            DatagramQueuePair,
            verbs_core::MemoryRegion<Vec<u8>>,
        ) = objects;
        let context: verbs_core::Context = context;
        let check = |closed: Result<(), Error>, object| match is_child {
            true => belongs_to_another(closed, object),
            false => closed.unwrap(),
        };
        let attachment = datagrams.attach_mcast(GROUP, 0);
        if is_child {
            // Attached by the child itself, which may do that; but not end it for its parent.
            belongs_to_another(
                attachment.unwrap().detach(),
                "attachment to a multicast group",
            );
        } else {
            attachment.unwrap().detach().unwrap();
        }
        let calls = calls_of(|| {
            check(region.dereg().map(drop), "memory region");
            check(ah.close(), "address handle");
            check(datagrams.close(), "queue pair");
            check(qp.close(), "queue pair");
            check(srq.close(), "shared receive queue");
            check(cq.close(), "completion queue");
            check(channel.close(), "completion channel");
            check(pd.close(), "protection domain");
            check(context.close(), "device context");
        });
        assert_eq!(calls.is_empty(), is_child, "{calls:?}");
    };
    let (context, pd, _) = ladder();
    let channel = CompletionChannel::create(&context).unwrap();
    let cq = CompletionQueue::builder(&context, 8)
        .channel(&channel)
        .build()
        .unwrap();
    let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let endpoint = qp.endpoint();
    let mut objects = Some((
        context,
        pd.clone(),
        cq.clone(),
        channel,
        qp.handshake(&endpoint).unwrap(),
        SharedReceiveQueue::builder(&pd).build().unwrap(),
        handle(&pd),
        DatagramQueuePair::builder(&pd, &cq, &cq).build().unwrap(),
        pd.reg_mr(vec![0_u8; 64]).unwrap(),
    ));
    drop((pd, cq));
    in_the_child(fork(), || close(true, objects.take().unwrap()));
    close(false, objects.unwrap());
    assert_all_is_well();
}

#[test]
fn child_neither_calls_nor_drops_values_of_another_library() {
    struct Owner(Arc<AtomicUsize>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (context, pd, _) = ladder();
    let ends = Arc::new(AtomicUsize::new(0));
    let owner = || Owner(Arc::clone(&ends));
    let domain = |destroy| {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { ibv_alloc_pd(context.as_ptr()) }).unwrap();
        // SAFETY: the object is new, and is destroyed by nothing else.
        unsafe { ProtectionDomain::from_raw(raw, &context, destroy) }.unwrap()
    };
    let owned = owner();
    let by = Destroy::by(move |_| {
        drop(owned);
        io::Result::Ok(())
    });
    let mut bytes = [0_u8; 64];
    let start = NonNull::from(&mut bytes).cast();
    // SAFETY: the bytes live longer than the region.
    let region = unsafe { pd.register_raw(start, 64, AccessFlags::empty(), owner()) };
    let mut objects = Some((
        domain(by),
        domain(Destroy::by_owner(owner())),
        region.unwrap(),
    ));
    in_the_child(fork(), || {
        drop(objects.take());
        assert_eq!(ends.load(Ordering::Relaxed), 0);
    });
    drop(objects);
    assert_eq!(ends.load(Ordering::Relaxed), 3);
}

#[test]
fn a_child_without_the_pages_of_a_region_drops_it() {
    let (_context, pd, _cq) = ladder();
    // Long enough for a mapping of its own, in which the allocator has a header, too.
    let len = 1 << 20;
    let mut region = Some(pd.reg_mr(vec![7_u8; len]).unwrap());
    let first = region.as_ref().unwrap().as_ptr().addr() & !0xfff;
    let first = region.as_ref().unwrap().as_ptr().with_addr(first);
    // As `ibv_reg_mr` does after `ibv_fork_init`.
    // SAFETY: the pages are mapped, and stay as they are in this process.
    let hidden = unsafe { libc::madvise(first.cast_mut().cast(), len, libc::MADV_DONTFORK) };
    assert_eq!(hidden, 0);
    in_the_child(fork(), || drop(region.take()));
    assert_eq!(region.unwrap().dereg().unwrap(), vec![7; len]);
}
