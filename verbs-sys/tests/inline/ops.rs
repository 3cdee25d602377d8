//! Verbs through the table inside the context.

use std::ffi::c_int;
use std::ptr;

use verbs_sys::{
    IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_cq, ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info,
    ibv_mw_type, ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc,
};

use crate::fake::{Device, Object as _, Value as _, calls, errno, fake_op, samples, set_errno};

/// Tests verbs that call the operation `$op` of the context that `$object` belongs to.
macro_rules! ops {
    ($($verb:ident($($arg:ident: $type:ty),*) = $object:ident.$op:ident)*) => {$(
        #[test]
        fn $verb() {
            let device = Device::new();
            let context = device.context();
            samples!(context, $($arg: $type),*);
            // A number that is no errno and no count: it comes back as it is.
            let fake = fake_op!(|$($arg: $type),*| -> c_int { -2 });
            // SAFETY: the samples are live objects of the device.
            let answer = unsafe {
                (*context).ops.$op = Some(fake);
                verbs_sys::$verb($($arg),*)
            };
            assert_eq!(answer, -2);
            assert_eq!(calls(), [vec![$($arg.bits()),*]]);
        }
    )*};
}

ops! {
    ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr)
        = qp.post_send
    ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr)
        = qp.post_recv
    ibv_post_srq_recv(
        srq: *mut ibv_srq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr
    ) = srq.post_srq_recv
    ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) = cq.poll_cq
    ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) = cq.req_notify_cq
    ibv_dealloc_mw(mw: *mut ibv_mw) = mw.dealloc_mw
}

#[test]
fn ibv_alloc_mw() {
    const WINDOW: *mut ibv_mw = ptr::without_provenance_mut(0x7700);
    let device = Device::new();
    let context = device.context();
    samples!(context, pd: *mut ibv_pd, kind: ibv_mw_type);

    set_errno(0);
    // SAFETY: the sample is a live object of the device.
    assert!(unsafe { verbs_sys::ibv_alloc_mw(pd, kind) }.is_null());
    assert_eq!(errno(), libc::EOPNOTSUPP);

    let fake = fake_op!(|pd: *mut ibv_pd, kind: ibv_mw_type| -> *mut ibv_mw { WINDOW });
    // SAFETY: the device and its sample `pd` live as long as the test.
    let window = unsafe {
        (*context).ops.alloc_mw = Some(fake);
        verbs_sys::ibv_alloc_mw(pd, kind)
    };
    assert_eq!(window, WINDOW);
    assert_eq!(calls(), [vec![pd.bits(), kind.bits()]]);
}

#[test]
fn ibv_bind_mw() {
    let device = Device::new();
    let context = device.context();
    samples!(context, qp: *mut ibv_qp, mw: *mut ibv_mw, mr: *mut ibv_mr, pd: *mut ibv_pd);
    let other_pd = ibv_pd::make(context);
    let fake = fake_op!(|qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind| -> c_int { 77 });
    // SAFETY: the samples are live objects of the device.
    unsafe {
        (*context).ops.bind_mw = Some(fake);
        (*mw).pd = pd;
        (*mr).pd = pd;
    }
    let bind = |kind: ibv_mw_type, mr: *mut ibv_mr, addr: u64, length: u64| {
        let info = ibv_mw_bind_info {
            mr,
            addr,
            length,
            ..Default::default()
        };
        let mut mw_bind = ibv_mw_bind {
            bind_info: info,
            ..Default::default()
        };
        // SAFETY: the device and the samples live as long as the test.
        let answer = unsafe {
            (*mw).type_ = kind;
            verbs_sys::ibv_bind_mw(qp, mw, &raw mut mw_bind)
        };
        (answer, calls(), (&raw mut mw_bind).bits())
    };

    let (answer, calls, mw_bind) = bind(IBV_MW_TYPE_1, mr, 1, 2);
    assert_eq!(
        (answer, calls),
        (77, vec![vec![qp.bits(), mw.bits(), mw_bind]])
    );
    let (answer, calls, mw_bind) = bind(IBV_MW_TYPE_1, ptr::null_mut(), 0, 0);
    assert_eq!(
        (answer, calls),
        (77, vec![vec![qp.bits(), mw.bits(), mw_bind]]),
        "unbind"
    );

    let refused = |errno: c_int| (errno, Vec::<Vec<u64>>::new());
    let (answer, calls, _) = bind(IBV_MW_TYPE_2, mr, 1, 2);
    assert_eq!(
        (answer, calls),
        refused(libc::EINVAL),
        "type 2 is bound by a work request"
    );
    let (answer, calls, _) = bind(IBV_MW_TYPE_1, ptr::null_mut(), 1, 0);
    assert_eq!(
        (answer, calls),
        refused(libc::EINVAL),
        "an address in no region"
    );
    let (answer, calls, _) = bind(IBV_MW_TYPE_1, ptr::null_mut(), 0, 1);
    assert_eq!(
        (answer, calls),
        refused(libc::EINVAL),
        "a length in no region"
    );
    // SAFETY: `mr` is a sample, which lives as long as the test.
    unsafe { (*mr).pd = other_pd };
    let (answer, calls, _) = bind(IBV_MW_TYPE_1, mr, 1, 2);
    assert_eq!(
        (answer, calls),
        refused(libc::EPERM),
        "a region of another protection domain"
    );
}
