//! Memory windows, by which a peer has access for a time.

use verbs_core::codes::{DeviceCapFlags, WcOpcode, WcStatus};
use verbs_core::memory::{MwType, Sge};
use verbs_core::work_request::{BindWorkRequest, InvalidateWorkRequest};
use verbs_core::{
    AccessFlags, ReceiveWorkRequest, RemoteMemoryRegion, SendWorkRequest, WriteWorkRequest,
};
use verbs_harness::begin;
use verbs_harness::pair::{End, Pair};

/// The capabilities of the device.
fn capabilities() -> DeviceCapFlags {
    let context = verbs_harness::context();
    context.query_device().unwrap().device_cap_flags()
}

fn write(end: &End, remote: &RemoteMemoryRegion) -> WcStatus {
    let bytes = end.pd().reg_mr(vec![7_u8; 16]).unwrap();
    let mut element = bytes.gather_element(..).unwrap();
    end.post_one(WriteWorkRequest::new(&mut element, remote).unwrap());
    end.send_status()
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_window_is_given_taken_back_and_given_back() {
    let test = begin!();
    if !capabilities()
        .intersects(DeviceCapFlags::MEM_WINDOW_TYPE_2A | DeviceCapFlags::MEM_WINDOW_TYPE_2B)
    {
        return test.skip("the device has no memory windows of type 2");
    }
    for pair in Pair::everywhere() {
        let memory = pair.b.given(vec![0_u8; 64], AccessFlags::MW_BIND);
        let mut window = pair.b.pd().alloc_mw(MwType::Type2).unwrap();
        let part = memory
            .mw_bind_info(16..32, AccessFlags::REMOTE_WRITE)
            .unwrap();
        for is_given_back in [true, false] {
            let bind = BindWorkRequest::new(&mut window, &part).unwrap();
            let remote = bind.remote();
            pair.b.post_one(bind);
            assert_eq!(pair.b.sent().opcode(), WcOpcode::BIND_MW);
            assert_eq!(write(&pair.a, &remote), WcStatus::SUCCESS);
            if is_given_back {
                pair.b.receive(ReceiveWorkRequest::new::<Sge>(&mut []));
                pair.a
                    .post_one(SendWorkRequest::empty().invalidate(remote.rkey()));
                pair.a.sent();
                let received = pair.b.received();
                assert_eq!(received.invalidated_rkey(), Some(remote.rkey()));
                continue;
            }
            pair.b
                .post_one(InvalidateWorkRequest::new(&window).unwrap());
            assert_eq!(pair.b.sent().opcode(), WcOpcode::LOCAL_INV);
            assert_eq!(write(&pair.a, &remote), WcStatus::REM_ACCESS_ERR);
        }
        let mut bytes = [0; 64];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes.iter().filter(|&&byte| byte == 7).count(), 16);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_window_of_type_1_is_bound_and_unbound() {
    let test = begin!();
    if !capabilities().contains(DeviceCapFlags::MEM_WINDOW) {
        return test.skip("the device has no memory windows of type 1");
    }
    // Neither unbinding it nor binding it again leaves its key valid.
    for (pair, rest) in Pair::everywhere().into_iter().zip([..0, ..64]) {
        let memory = pair.b.given(vec![0_u8; 64], AccessFlags::MW_BIND);
        let mut window = pair.b.pd().alloc_mw(MwType::Type1).unwrap();
        let mut bind = |part, wr_id| {
            let part = memory
                .mw_bind_info(part, AccessFlags::REMOTE_WRITE)
                .unwrap();
            // SAFETY: the queue pair is of this domain, and nothing resets it.
            let remote = unsafe { pair.b.qp.bind_mw(&mut window, &part, wr_id) }.unwrap();
            let done = pair.b.sent();
            assert_eq!((done.wr_id(), done.opcode()), (wr_id, WcOpcode::BIND_MW));
            remote
        };
        let remote = bind(..64, 1);
        assert_eq!(write(&pair.a, &remote), WcStatus::SUCCESS);
        bind(rest, 2);
        assert_eq!(write(&pair.a, &remote), WcStatus::REM_ACCESS_ERR);
    }
}
