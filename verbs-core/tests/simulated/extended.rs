//! Extended queue pairs and completion queues.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use soft_verbs::{Fabric, Host, Profile};
use verbs_core::codes::WcOpcode;
use verbs_core::completion::{CompletionQueueEx, Timestamps, WorkCompletionEx};
use verbs_core::datagram::DatagramQueuePair;
use verbs_core::error::ErrorKind;
use verbs_core::ffi::Destroy;
use verbs_core::memory::{MwType, Sge};
use verbs_core::queue_pair::{QueuePairEx, SendOpsFlags};
use verbs_core::verbs_sys::{ibv_qp_cap, ibv_qp_ex, ibv_qp_to_qp_ex};
use verbs_core::work_request::{
    AtomicWorkRequest, BindWorkRequest, InvalidateWorkRequest, WorkRequest,
};
use verbs_core::{
    AccessFlags, Context, QueuePair, ReadWorkRequest, ReceiveWorkRequest, RemoteMemoryRegion,
    SendWorkRequest, WriteWorkRequest,
};
use verbs_harness::{assert_says, bounded};

use super::{connected, ladder, on_host};

fn queue(context: &Context) -> CompletionQueueEx {
    CompletionQueueEx::builder(context, 64).build().unwrap()
}

/// A queue pair that is connected to itself, and can post these requests.
fn looped(flags: SendOpsFlags) -> (QueuePairEx, CompletionQueueEx) {
    let (context, pd, _) = ladder();
    let cq = queue(&context);
    let qp = QueuePair::builder(&pd, &cq, &cq)
        .send_ops_flags(flags)
        .max_send_wr(16)
        .max_send_sge(2)
        .max_inline_data(16)
        .build()
        .unwrap();
    let endpoint = qp.endpoint();
    let qp = qp.handshake(&endpoint).unwrap();
    (QueuePairEx::new(qp).unwrap(), cq)
}

fn completion(cq: &CompletionQueueEx) -> WorkCompletionEx {
    loop {
        if let Some(done) = cq.poll().unwrap() {
            return done;
        }
    }
}

/// Posts one request in a batch of its own, and waits for it.
fn run<'l>(
    qp: &mut QueuePairEx,
    cq: &CompletionQueueEx,
    request: impl Into<WorkRequest<'l>>,
) -> WcOpcode {
    let mut batch = qp.start();
    // SAFETY: the memory of each request is the caller's, which waits here.
    unsafe { batch.push(request) }.unwrap();
    batch.complete().unwrap();
    completion(cq).result().unwrap().opcode()
}

#[test]
fn refused_batch_leaves_the_queue_pair_to_the_next() {
    on_host(0, |host| {
        let (mut qp, cq) = looped(SendOpsFlags::all());
        let memory = vec![0_u64; 1];
        let memory = qp.pd().reg_shared(memory, AccessFlags::REMOTE).unwrap();
        let remote = memory.remote();
        let ours = qp.pd().reg_mr(vec![1_u8; 8]).unwrap();
        let mut element = ours.gather_element(..).unwrap();
        host.refuse("ibv_wr_complete", libc::ENOMEM);
        let batch = qp.start();
        let error = batch.complete().unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOMEM));
        let write = WriteWorkRequest::new(&mut element, &remote).unwrap();
        bounded(Duration::from_secs(20), || run(&mut qp, &cq, write));
    });
}

#[test]
fn every_kind_of_request_is_posted_in_a_batch() {
    on_host(0, |_host| {
        let (mut qp, cq) = looped(SendOpsFlags::all());
        let access = AccessFlags::REMOTE | AccessFlags::MW_BIND;
        let memory = qp.pd().reg_shared(vec![0_u64; 8], access).unwrap();
        let remote = memory.remote();
        let ours = qp.pd().reg_mr((1..=64).collect::<Vec<u8>>()).unwrap();
        let mut element = ours.gather_element(..8).unwrap();
        let write = WriteWorkRequest::new(&mut element, &remote).unwrap();
        assert_eq!(run(&mut qp, &cq, write), WcOpcode::RDMA_WRITE);
        let mut parts = [4..8, 0..4].map(|part| ours.gather_element(part).unwrap());
        let inline = WriteWorkRequest::new(&mut parts, &remote.slice(8..).unwrap()).unwrap();
        assert_eq!(run(&mut qp, &cq, inline.inline()), WcOpcode::RDMA_WRITE);
        let mut bytes = [0; 16];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8, 1, 2, 3, 4]);
        let mut into = qp.pd().reg_mr(vec![0_u8; 8]).unwrap();
        let mut element = into.scatter_element(..).unwrap();
        let read = ReadWorkRequest::new(&mut element, &remote).unwrap();
        assert_eq!(run(&mut qp, &cq, read), WcOpcode::RDMA_READ);
        assert_eq!(into[..], bytes[..8]);
        let counter = remote.slice(16..24).unwrap();
        let mut before = qp.pd().reg_mr(vec![0_u64]).unwrap();
        for (add, swapped) in [(5, None), (0, Some((5, 9)))] {
            let mut element = before.scatter_element(..).unwrap();
            let atomic = match swapped {
                None => AtomicWorkRequest::fetch_and_add(&mut element, &counter, add),
                Some((old, new)) => {
                    AtomicWorkRequest::compare_and_swap(&mut element, &counter, old, new)
                }
            };
            let opcode = run(&mut qp, &cq, atomic.unwrap());
            assert!([WcOpcode::FETCH_ADD, WcOpcode::COMP_SWAP].contains(&opcode));
        }
        assert_eq!(memory.atomic_u64(16).unwrap().load(Ordering::SeqCst), 9);
        let mut window = qp.pd().alloc_mw(MwType::Type2).unwrap();
        let part = memory.mw_bind_info(.., AccessFlags::REMOTE_WRITE).unwrap();
        let bind = BindWorkRequest::new(&mut window, &part).unwrap();
        assert_eq!(run(&mut qp, &cq, bind), WcOpcode::BIND_MW);
        let invalidate = InvalidateWorkRequest::new(&window).unwrap();
        assert_eq!(run(&mut qp, &cq, invalidate), WcOpcode::LOCAL_INV);
        let bind = BindWorkRequest::new(&mut window, &part).unwrap();
        assert_eq!(run(&mut qp, &cq, bind), WcOpcode::BIND_MW);
        let sends = [
            SendWorkRequest::empty(),
            SendWorkRequest::empty().immediate(7),
            SendWorkRequest::empty().invalidate(window.rkey()),
        ];
        for send in sends {
            // SAFETY: the receive has no memory.
            unsafe { qp.post_receive(&mut [ReceiveWorkRequest::new::<Sge>(&mut [])]) }.unwrap();
            let mut batch = qp.start();
            // SAFETY: the send has no memory.
            unsafe { batch.push(send) }.unwrap();
            batch.complete().unwrap();
            let mut opcodes = [0; 2].map(|_| completion(&cq).result().unwrap().opcode());
            opcodes.sort();
            assert_eq!(opcodes, [WcOpcode::SEND, WcOpcode::RECV]);
        }
    });
}

#[test]
fn a_batch_that_is_dropped_or_leaked_posts_nothing() {
    let dropped_and_leaked = |_: &Host| {
        let (mut qp, cq) = looped(SendOpsFlags::SEND);
        for is_leaked in [false, true] {
            let mut batch = qp.start();
            // SAFETY: the send has no memory.
            unsafe { batch.push(SendWorkRequest::empty().wr_id(1)) }.unwrap();
            if is_leaked {
                let _leaked = ManuallyDrop::new(batch);
            }
        }
        let batch = qp.start();
        batch.complete().unwrap();
        // SAFETY: the receive has no memory.
        unsafe { qp.post_receive(&mut [ReceiveWorkRequest::new::<Sge>(&mut [])]) }.unwrap();
        // SAFETY: the send has no memory.
        unsafe { qp.post_send(&mut [SendWorkRequest::empty().wr_id(2)]) }.unwrap();
        let ids = [0; 2].map(|_| completion(&cq).wr_id());
        assert!(ids.contains(&2) && !ids.contains(&1), "{ids:?}");
        assert!(cq.poll().unwrap().is_none());
    };
    bounded(Duration::from_secs(60), || on_host(0, dropped_and_leaked));
}

#[test]
fn a_batch_that_was_leaked_does_not_keep_the_queue_pair_locked() {
    static ABORTED: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn abort(_: *mut ibv_qp_ex) {
        ABORTED.fetch_add(1, Ordering::SeqCst);
    }
    on_host(0, |_host| {
        let (mut qp, _cq) = looped(SendOpsFlags::SEND);
        let batch = qp.start();
        // SAFETY: the queue pair is alive, and only this thread uses it.
        unsafe { (*batch.as_ptr()).wr_abort = Some(abort) };
        let _leaked = ManuallyDrop::new(batch);
        // A plain post would wait for the lock.
        assert!(qp.cap().max_send_wr > 0);
        assert_eq!(ABORTED.load(Ordering::SeqCst), 1);
        assert!(qp.cap().max_send_wr > 0);
        drop(qp);
        assert_eq!(ABORTED.load(Ordering::SeqCst), 1);
        let (mut qp, _cq) = looped(SendOpsFlags::SEND);
        let batch = qp.start();
        // SAFETY: the queue pair is alive, and only this thread uses it.
        unsafe { (*batch.as_ptr()).wr_abort = Some(abort) };
        let _leaked = ManuallyDrop::new(batch);
        drop(qp);
        assert_eq!(ABORTED.load(Ordering::SeqCst), 2);
    });
}

/// A queue pair that was made with these flags, and is taken over with a configuration that has those.
fn taken_over(made: SendOpsFlags, told: SendOpsFlags) -> DatagramQueuePair {
    let (_, pd, cq) = ladder();
    let config = |flags| DatagramQueuePair::builder(&pd, &cq, &cq).send_ops_flags(flags);
    let owner = config(made).build().unwrap();
    let qp = NonNull::new(owner.as_ptr()).unwrap();
    let cap = owner.cap();
    let cap = ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    };
    let (config, destroy) = (config(told).config(), Destroy::by_owner(owner));
    // SAFETY: the queue pair is of this configuration, and its owner destroys it.
    unsafe { DatagramQueuePair::from_raw(qp, cap, &config, destroy) }.unwrap()
}

#[test]
fn only_a_queue_pair_with_flags_and_all_functions_becomes_an_extended_one() {
    on_host(0, |_host| {
        let (send, none) = (SendOpsFlags::SEND, SendOpsFlags::empty());
        QueuePairEx::new(taken_over(send, send)).unwrap();
        // Without flags, C's function is not to be asked: the queue pair may be shorter than an `ibv_qp_ex`.
        let unsupported = |qp| {
            let error = QueuePairEx::new(qp).unwrap_err();
            assert_eq!(error.error().kind(), ErrorKind::Unsupported);
        };
        unsupported(taken_over(send, none));
        unsupported(taken_over(none, send));
        let removals: [fn(&mut ibv_qp_ex); 4] = [
            |ex| ex.wr_set_ud_addr = None,
            |ex| ex.wr_set_sge = None,
            |ex| ex.wr_set_sge_list = None,
            |ex| ex.wr_set_inline_data = None,
        ];
        for remove in removals {
            let qp = taken_over(send, send);
            // SAFETY: the queue pair is alive, and was created with flags.
            let ex = unsafe { ibv_qp_to_qp_ex(qp.as_ptr()) };
            // SAFETY: only this thread uses it.
            remove(unsafe { &mut *ex });
            unsupported(qp);
        }
    });
}

#[test]
fn requests_that_a_queue_pair_cannot_post_are_rejected_before_c_is_called() {
    on_host(0, |_host| {
        let plain = connected();
        let refused = QueuePairEx::new(plain).unwrap_err();
        assert_eq!(refused.error().kind(), ErrorKind::Unsupported);
        let (mut qp, cq) = looped(SendOpsFlags::SEND);
        let ours = qp.pd().reg_mr(vec![0_u8; 64]).unwrap();
        let mut batch = qp.start();
        let mut three = [ours.gather_element(..1).unwrap(); 3];
        // SAFETY: it is rejected.
        let error = unsafe { batch.push(SendWorkRequest::new(&mut three)) }.unwrap_err();
        assert_says(&error, "3 elements exceed");
        let mut long = ours.gather_element(..).unwrap();
        // SAFETY: it is rejected.
        let error = unsafe { batch.push(SendWorkRequest::new(&mut long).inline()) }.unwrap_err();
        assert_says(&error, "64 bytes inline");
        // SAFETY: it is rejected.
        let error = unsafe { batch.push(SendWorkRequest::empty().immediate(1)) }.unwrap_err();
        assert_says(&error, "send_ops_flags");
        // SAFETY: the send has no memory.
        unsafe { batch.push(SendWorkRequest::empty()) }.unwrap();
        drop(batch);
        // More than the queue has room for: none is posted.
        let room = qp.cap().max_send_wr;
        let mut batch = qp.start();
        for _ in 0..=room {
            // SAFETY: the send has no memory.
            unsafe { batch.push(SendWorkRequest::empty()) }.unwrap();
        }
        let error = batch.complete().unwrap_err();
        assert_eq!((error.posted(), error.is_full()), (0, true));
        assert!(cq.poll().unwrap().is_none());
    });
}

#[test]
fn datagrams_of_a_batch_have_an_address_each() {
    on_host(0, |_host| {
        let (context, pd, _) = ladder();
        let cq = queue(&context);
        let qp = DatagramQueuePair::builder(&pd, &cq, &cq)
            .send_ops_flags(SendOpsFlags::SEND)
            .build()
            .unwrap();
        let mut qp = QueuePairEx::new(qp).unwrap();
        let peer = qp.endpoint();
        let ah = qp.address_handle(&peer).unwrap();
        let mut inbox = pd.reg_mr(vec![0_u8; 64]).unwrap();
        let mut room = inbox.scatter_element(..).unwrap();
        // SAFETY: `inbox` is not accessed before its completion.
        unsafe { qp.post_receive(&mut [ReceiveWorkRequest::new(&mut room)]) }.unwrap();
        let bytes = pd.reg_mr(b"hello".to_vec()).unwrap();
        let mut element = bytes.gather_element(..).unwrap();
        let mut batch = qp.start();
        // SAFETY: `bytes` is not written to before the completion.
        unsafe { batch.push(SendWorkRequest::new(&mut element)) }.unwrap();
        // SAFETY: `ah` is of this domain, and outlives the wait for the completion.
        unsafe { batch.set_ud_addr(&ah, peer.qp_num(), peer.qkey()) };
        batch.complete().unwrap();
        for _ in 0..2 {
            completion(&cq).result().unwrap();
        }
        assert_eq!(&inbox[40..45], b"hello");
    });
}

#[test]
fn completions_have_the_time_stamps_that_their_queue_was_built_with() {
    on_host(0, |_host| {
        let (context, ..) = ladder();
        for flags in [Timestamps::RAW, Timestamps::WALLCLOCK] {
            let error = CompletionQueueEx::builder(&context, 16)
                .timestamps(flags)
                .build();
            assert_eq!(error.unwrap_err().kind(), ErrorKind::Unsupported);
        }
    });
    let fabric = Fabric::seeded(0);
    let host = fabric.host_with("clock", Profile::hostile());
    host.enter(|| {
        let (context, pd, _) = ladder();
        let attr = context.query_device_ex().unwrap();
        assert_eq!(attr.completion_timestamp_mask(), u64::MAX);
        assert_eq!(attr.hca_core_clock(), 1_000_000, "kHz");
        for flags in [
            Timestamps::empty(),
            Timestamps::RAW,
            Timestamps::WALLCLOCK,
            Timestamps::all(),
        ] {
            let cq = CompletionQueueEx::builder(&context, 16)
                .timestamps(flags)
                .build()
                .unwrap();
            let qp = QueuePair::builder(&pd, &cq, &cq)
                .send_ops_flags(SendOpsFlags::RDMA_WRITE)
                .build()
                .unwrap();
            let endpoint = qp.endpoint();
            let mut qp = QueuePairEx::new(qp.handshake(&endpoint).unwrap()).unwrap();
            let ours = pd.reg_mr(vec![0_u8; 8]).unwrap();
            let target = pd.reg_shared(vec![0_u8; 8], AccessFlags::REMOTE_WRITE);
            let target = target.unwrap();
            let mut write = |remote: &RemoteMemoryRegion| {
                let mut element = ours.gather_element(..).unwrap();
                let mut batch = qp.start();
                // SAFETY: `ours` outlives the wait for its completion.
                unsafe { batch.push(WriteWorkRequest::new(&mut element, remote).unwrap()) }
                    .unwrap();
                batch.complete().unwrap();
                completion(&cq)
            };
            let times = [(); 2].map(|()| {
                fabric.run_for(Duration::from_micros(3));
                let done = write(&target.remote());
                let (raw, wall) = (done.completion_ts(), done.completion_wallclock_ns());
                assert_eq!(raw.is_some(), flags.contains(Timestamps::RAW));
                assert_eq!(wall.is_some(), flags.contains(Timestamps::WALLCLOCK));
                done.result().unwrap();
                let now = u64::try_from(fabric.now().as_nanos()).unwrap();
                assert!(raw.is_none_or(|at| at <= now), "{raw:?} {now}");
                raw.or(wall)
            });
            assert!(
                flags.is_empty() || times[0] < times[1],
                "time goes on: {times:?}"
            );
            let nowhere = RemoteMemoryRegion::new(0, 8, 1).unwrap();
            let failed = write(&nowhere);
            assert_eq!(failed.completion_ts(), None);
            assert!(failed.result().is_err());
        }
    });
}
