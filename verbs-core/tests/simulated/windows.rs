//! Memory windows: keys that are given and taken back.

use verbs_core::codes::{WcOpcode, WcStatus};
use verbs_core::memory::{MemoryWindow, MwType};
use verbs_core::work_request::{BindWorkRequest, InvalidateWorkRequest, WorkRequest};
use verbs_core::{
    AccessFlags, Error, PollSlot, QueuePair, RemoteMemoryRegion, SharedRegion, WorkCompletion,
    WriteWorkRequest,
};

use super::{ladder, on_host};

/// Two queue pairs that are connected to each other, and memory that a peer can reach by windows only.
fn pair() -> (QueuePair, QueuePair, SharedRegion<Vec<u8>>) {
    let (_, pd, cq) = ladder();
    let [a, b] = [(); 2].map(|()| QueuePair::builder(&pd, &cq, &cq).build().unwrap());
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let access = AccessFlags::MW_BIND;
    let memory = pd.reg_shared(vec![0; 64], access).unwrap();
    (
        a.handshake(&to_b).unwrap(),
        b.handshake(&to_a).unwrap(),
        memory,
    )
}

fn completion(qp: &QueuePair) -> WorkCompletion {
    let mut slots = [const { PollSlot::new() }; 1];
    loop {
        if let Some(done) = qp.send_cq().poll(&mut slots).unwrap().first() {
            return *done;
        }
    }
}

/// Posts a request, and waits for its completion.
fn run<'l>(qp: &QueuePair, request: impl Into<WorkRequest<'l>>) -> WorkCompletion {
    // SAFETY: the memory of each request is the caller's, which waits here.
    unsafe { qp.post(&mut [request.into()]) }.unwrap();
    completion(qp)
}

/// Writes this number of bytes to the start of the peer's memory.
fn write(qp: &QueuePair, remote: &RemoteMemoryRegion, len: usize) -> WcStatus {
    let bytes = qp.pd().reg_mr(vec![7_u8; 64]).unwrap();
    let mut element = bytes.gather_element(..len).unwrap();
    run(qp, WriteWorkRequest::new(&mut element, remote).unwrap()).status()
}

fn bind(
    qp: &QueuePair,
    window: &mut MemoryWindow,
    memory: &SharedRegion<Vec<u8>>,
) -> RemoteMemoryRegion {
    let part = memory.mw_bind_info(16..32, AccessFlags::REMOTE_WRITE);
    let bind = BindWorkRequest::new(window, &part.unwrap()).unwrap();
    let remote = bind.remote();
    let done = run(qp, bind).result().unwrap();
    assert_eq!(done.opcode(), WcOpcode::BIND_MW);
    remote
}

#[test]
fn a_window_of_type_2_opens_its_part_until_it_is_invalidated() {
    // Writes to its part, past its end, after the invalidation, and after it was bound again.
    for attempt in 0..4 {
        on_host(0, |_host| {
            let (a, b, memory) = pair();
            let mut window = b.pd().alloc_mw(MwType::Type2).unwrap();
            let first = bind(&b, &mut window, &memory);
            assert_eq!((first.len(), first.rkey()), (16, window.rkey()));
            assert_eq!(write(&a, &first, 16), WcStatus::SUCCESS);
            let mut bytes = [0; 33];
            memory.read(0, &mut bytes).unwrap();
            let expected: [u8; 33] = std::array::from_fn(|at| if at / 16 == 1 { 7 } else { 0 });
            assert_eq!(bytes, expected);
            let wider = RemoteMemoryRegion::new(first.addr(), 64, first.rkey()).unwrap();
            if attempt == 1 {
                assert_eq!(write(&a, &wider, 17), WcStatus::REM_ACCESS_ERR);
                return;
            }
            let invalidate = InvalidateWorkRequest::new(&window).unwrap();
            let done = run(&b, invalidate).result().unwrap();
            assert_eq!(done.opcode(), WcOpcode::LOCAL_INV);
            if attempt == 2 {
                assert_eq!(write(&a, &first, 1), WcStatus::REM_ACCESS_ERR);
                return;
            }
            let second = bind(&b, &mut window, &memory);
            assert_ne!(second.rkey(), first.rkey());
            let (tried, status) = match attempt {
                3 => (first, WcStatus::REM_ACCESS_ERR),
                _ => (second, WcStatus::SUCCESS),
            };
            assert_eq!(write(&a, &tried, 1), status);
            window.close().unwrap();
        });
    }
}

#[test]
fn a_window_whose_bind_was_not_posted_is_bound_again() {
    on_host(0, |host| {
        let (a, b, memory) = pair();
        let mut window = b.pd().alloc_mw(MwType::Type2).unwrap();
        let before = window.rkey();
        host.refuse("ibv_post_send", libc::ENOMEM);
        let part = memory.mw_bind_info(.., AccessFlags::REMOTE_WRITE).unwrap();
        let refused = BindWorkRequest::new(&mut window, &part).unwrap();
        // SAFETY: the request has no memory.
        unsafe { b.post(&mut [refused.into()]) }.unwrap_err();
        // The key of something else does not become the window's.
        window.set_rkey(before ^ 0xffff_ff00);
        assert_eq!(window.rkey(), before);
        let remote = bind(&b, &mut window, &memory);
        assert_eq!(write(&a, &remote, 1), WcStatus::SUCCESS);
    });
}

#[test]
fn a_window_ends_before_its_region_or_the_region_is_leaked() {
    on_host(0, |_host| {
        let (_a, b, memory) = pair();
        let mut window = b.pd().alloc_mw(MwType::Type2).unwrap();
        bind(&b, &mut window, &memory);
        drop(window);
        memory.dereg().unwrap();
    });
    // The region, and its domain.
    on_host(2, |_host| {
        let (_a, b, memory) = pair();
        let mut window = b.pd().alloc_mw(MwType::Type2).unwrap();
        bind(&b, &mut window, &memory);
        drop(memory);
    });
}

#[test]
fn a_window_that_cannot_be_deallocated_is_an_error_of_close_or_logged() {
    // The window that is dropped, and the domain of both.
    on_host(2, |host| {
        let (_, pd, _) = ladder();
        let [closed, dropped] = [(); 2].map(|()| pd.alloc_mw(MwType::Type2).unwrap());
        host.refuse("ibv_dealloc_mw", libc::EBUSY);
        assert_eq!(closed.close().unwrap_err().errno(), Some(libc::EBUSY));
        host.refuse("ibv_dealloc_mw", libc::EBUSY);
        drop(dropped);
    });
}

#[test]
fn a_window_is_bound_in_the_way_of_its_type_and_within_its_domain_to_some_bytes() {
    on_host(0, |_host| {
        let (_a, b, memory) = pair();
        let part = memory.mw_bind_info(.., AccessFlags::REMOTE).unwrap();
        let of_type = |error: Error| assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
        let mut one = b.pd().alloc_mw(MwType::Type1).unwrap();
        of_type(BindWorkRequest::new(&mut one, &part).unwrap_err());
        of_type(InvalidateWorkRequest::new(&one).unwrap_err());
        let mut two = b.pd().alloc_mw(MwType::Type2).unwrap();
        // SAFETY: nothing is posted.
        of_type(unsafe { b.bind_mw(&mut two, &part, 0) }.unwrap_err());
        let key = two.rkey();
        let nothing = memory.mw_bind_info(..0, AccessFlags::REMOTE).unwrap();
        of_type(BindWorkRequest::new(&mut two, &nothing).unwrap_err());
        assert_eq!(two.rkey(), key);
        let elsewhere = b.pd().context().alloc_pd().unwrap();
        let mut foreign = elsewhere.alloc_mw(MwType::Type2).unwrap();
        let error = BindWorkRequest::new(&mut foreign, &part).unwrap_err();
        let text = "the memory window was made with another protection domain than the region";
        assert_eq!(error.to_string(), text);
        let error = memory.mw_bind_info(..65, AccessFlags::REMOTE).unwrap_err();
        assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
    });
}
