//! Verbs that fall back on an exported one, check, or initialise.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use verbs_sys::{
    IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_PD,
    IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_context,
    ibv_device_attr_ex, ibv_ops_wr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex,
    ibv_query_device_ex_input, ibv_srq, ibv_srq_init_attr_ex, ibv_wq, ibv_wq_init_attr, ibv_xrcd,
};

use crate::exported::{EXPORTED, EXPORTED_QP, EXPORTED_SRQ};
use crate::fake::{Device, Object as _, Value as _, calls, errno, fake_op, samples, set_errno};

/// Devices whose provider, and whose library, lacks all operations.
fn devices_without_operations() -> [Device; 2] {
    [Device::new(), Device::oldest()]
}

#[test]
fn ibv_query_port() {
    let mut attr = ibv_port_attr::default();
    let attr = &raw mut attr;
    let query = |context| {
        // SAFETY: the device and the attributes live as long as the test.
        unsafe {
            (*attr).flags = 1;
            (*attr).port_cap_flags2 = 1;
            let answer = verbs_sys::ibv_query_port(context, 3, attr);
            (answer, (*attr).flags, (*attr).port_cap_flags2)
        }
    };

    for device in devices_without_operations() {
        assert_eq!(
            query(device.context()),
            (EXPORTED, 0, 0),
            "the old symbol fills less"
        );
        assert_eq!(calls(), [[device.context().bits(), 3, attr.bits()]]);
    }

    let device = Device::new();
    // SAFETY: the device and the attributes live as long as the test.
    unsafe {
        (*device.vctx()).query_port = Some(fake_op!(|context: *mut ibv_context,
                                                     port: u8,
                                                     attr: *mut ibv_port_attr,
                                                     len: usize|
         -> c_int { 77 }));
    }
    assert_eq!(query(device.context()), (77, 1, 1));
    let len = size_of::<ibv_port_attr>().bits();
    assert_eq!(calls(), [[device.context().bits(), 3, attr.bits(), len]]);
}

thread_local! {
    /// Answer of the operation below.
    static ANSWER: Cell<c_int> = const { Cell::new(0) };
}

#[test]
fn ibv_query_device_ex() {
    let mut attr = ibv_device_attr_ex::default();
    let attr = &raw mut attr;
    let mut input = ibv_query_device_ex_input { comp_mask: 0 };
    let input = &raw mut input;
    let device = Device::new();
    let query = |device: &Device, input: *const ibv_query_device_ex_input| {
        // SAFETY: the device, the input and the attributes live as long as the test.
        unsafe {
            (*attr).comp_mask = 1;
            let answer = verbs_sys::ibv_query_device_ex(device.context(), input, attr);
            (answer, (*attr).comp_mask, calls())
        }
    };
    // SAFETY: the device lives as long as the test.
    unsafe {
        (*device.vctx()).query_device_ex =
            Some(fake_op!(|context: *mut ibv_context,
                           input: *const ibv_query_device_ex_input,
                           attr: *mut ibv_device_attr_ex,
                           len: usize|
             -> c_int { ANSWER.get() }));
    }
    let (context, len) = (
        device.context().bits(),
        size_of::<ibv_device_attr_ex>().bits(),
    );
    let operation = |input: u64| vec![context, input, attr.bits(), len];
    let plain = |context: u64| vec![context, attr.bits()];
    let both = vec![operation(input.bits()), plain(context)];
    for (answer, input, result, mask, seen) in [
        (0, input.cast_const(), 0, 1, vec![operation(input.bits())]),
        // An error of the operation's own stays.
        (libc::EIO, ptr::null(), libc::EIO, 1, vec![operation(0)]),
        // The kernel lacks it.
        (libc::EOPNOTSUPP, input, EXPORTED, 0, both.clone()),
        (libc::ENOSYS, input, EXPORTED, 0, both),
    ] {
        ANSWER.set(answer);
        assert_eq!(query(&device, input), (result, mask, seen));
    }
    for device in devices_without_operations() {
        let seen = vec![plain(device.context().bits())];
        assert_eq!(query(&device, input), (EXPORTED, 0, seen));
    }
    // SAFETY: the input lives as long as the test.
    unsafe { (*input).comp_mask = 1 };
    let unknown_input = (libc::EINVAL, 1, vec![]);
    assert_eq!(query(&device, input), unknown_input);
}

#[test]
fn ibv_create_qp_ex() {
    const MADE: *mut ibv_qp = ptr::without_provenance_mut(0x7700);
    let device = Device::new();
    let context = device.context();
    samples!(context, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr_ex);
    let create = |context: *mut ibv_context, comp_mask: u32| {
        set_errno(0);
        // SAFETY: the samples live as long as the test.
        unsafe {
            (*attr).pd = pd;
            (*attr).comp_mask = comp_mask;
            verbs_sys::ibv_create_qp_ex(context, attr)
        }
    };
    let beyond_plain = (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS).0;

    for device in devices_without_operations() {
        assert_eq!(create(device.context(), IBV_QP_INIT_ATTR_PD.0), EXPORTED_QP);
        assert_eq!(calls(), [[pd.bits(), attr.bits()]]);
        for comp_mask in [0, beyond_plain] {
            assert!(create(device.context(), comp_mask).is_null());
            assert_eq!(errno(), libc::EOPNOTSUPP);
        }
    }

    // SAFETY: the device lives as long as the test.
    unsafe {
        (*device.vctx()).create_qp_ex = Some(fake_op!(|context: *mut ibv_context,
                                                       attr: *mut ibv_qp_init_attr_ex|
         -> *mut ibv_qp { MADE }));
    }
    for comp_mask in [0, beyond_plain] {
        assert_eq!(create(context, comp_mask), MADE);
        assert_eq!(calls(), [[context.bits(), attr.bits()]]);
    }
    assert_eq!(create(context, IBV_QP_INIT_ATTR_PD.0), EXPORTED_QP);
    assert_eq!(calls(), [[pd.bits(), attr.bits()]]);
}

#[test]
fn ibv_create_srq_ex() {
    const MADE: *mut ibv_srq = ptr::without_provenance_mut(0x7700);
    const PD: u32 = IBV_SRQ_INIT_ATTR_PD.0;
    const TYPE: u32 = IBV_SRQ_INIT_ATTR_TYPE.0;
    const XRCD: u32 = IBV_SRQ_INIT_ATTR_XRCD.0;
    let plain = [
        (PD, IBV_SRQT_BASIC),
        (PD, IBV_SRQT_XRC),
        (PD | TYPE, IBV_SRQT_BASIC),
    ];
    let extended = [
        (0, IBV_SRQT_BASIC),
        (TYPE, IBV_SRQT_BASIC),
        (PD | TYPE, IBV_SRQT_XRC),
        (PD | TYPE | XRCD, IBV_SRQT_BASIC),
    ];
    let device = Device::new();
    let context = device.context();
    samples!(context, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr_ex);
    let create = |context: *mut ibv_context, (comp_mask, srq_type)| {
        set_errno(0);
        // SAFETY: the samples live as long as the test.
        unsafe {
            (*attr).pd = pd;
            (*attr).comp_mask = comp_mask;
            (*attr).srq_type = srq_type;
            verbs_sys::ibv_create_srq_ex(context, attr)
        }
    };

    for device in devices_without_operations() {
        for attributes in extended {
            assert!(
                create(device.context(), attributes).is_null(),
                "{attributes:?}"
            );
            assert_eq!(errno(), libc::EOPNOTSUPP);
        }
    }

    // SAFETY: the device lives as long as the test.
    unsafe {
        (*device.vctx()).create_srq_ex = Some(fake_op!(|context: *mut ibv_context,
                                                        attr: *mut ibv_srq_init_attr_ex|
         -> *mut ibv_srq { MADE }));
    }
    for attributes in plain {
        assert_eq!(create(context, attributes), EXPORTED_SRQ, "{attributes:?}");
        assert_eq!(calls(), [[pd.bits(), attr.bits()]]);
    }
    for attributes in extended {
        assert_eq!(create(context, attributes), MADE, "{attributes:?}");
        assert_eq!(calls(), [[context.bits(), attr.bits()]]);
    }
}

#[test]
fn ibv_post_srq_ops() {
    let device = Device::new();
    let context = device.context();
    samples!(context, op: *mut ibv_ops_wr, bad_op: *mut *mut ibv_ops_wr);
    let post = |context: *mut ibv_context| {
        let srq = ibv_srq::make(context);
        // SAFETY: the samples live as long as the test.
        unsafe {
            *bad_op = ptr::null_mut();
            (
                verbs_sys::ibv_post_srq_ops(srq, op, bad_op),
                *bad_op,
                srq.bits(),
            )
        }
    };

    for device in devices_without_operations() {
        let (answer, bad, _) = post(device.context());
        assert_eq!(
            (answer, bad),
            (libc::EOPNOTSUPP, op),
            "not even the first is posted"
        );
    }

    // SAFETY: the device lives as long as the test.
    unsafe {
        (*device.vctx()).post_srq_ops = Some(fake_op!(|srq: *mut ibv_srq,
                                                       op: *mut ibv_ops_wr,
                                                       bad_op: *mut *mut ibv_ops_wr|
         -> c_int { 77 }));
    }
    let (answer, bad, srq) = post(context);
    assert_eq!((answer, bad), (77, ptr::null_mut()));
    assert_eq!(calls(), [[srq, op.bits(), bad_op.bits()]]);
}

#[test]
fn ibv_create_wq() {
    let device = Device::new();
    let context = device.context();
    samples!(context, attr: *mut ibv_wq_init_attr);
    for device in devices_without_operations() {
        set_errno(0);
        // SAFETY: the sample lives as long as the test.
        assert!(unsafe { verbs_sys::ibv_create_wq(device.context(), attr) }.is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }

    // SAFETY: the device and the sample live as long as the test.
    let wq = unsafe {
        (*attr).wq_context = ptr::without_provenance_mut(0x5500);
        (*device.vctx()).create_wq = Some(fake_op!(|context: *mut ibv_context,
                                                    attr: *mut ibv_wq_init_attr|
         -> *mut ibv_wq {
            let wq = ibv_wq::make(context);
            // The wrapper must overwrite these; a lock whose bytes are all ones hangs.
            // SAFETY: just made.
            unsafe {
                (*wq).events_completed = u32::MAX;
                (&raw mut (*wq).mutex).write_bytes(0xff, 1);
                (&raw mut (*wq).cond).write_bytes(0xff, 1);
            }
            wq
        }));
        verbs_sys::ibv_create_wq(context, attr)
    };
    assert_eq!(calls(), [[context.bits(), attr.bits()]]);
    // SAFETY: the fake made it, and the verb initialised what these read.
    unsafe {
        assert_eq!((*wq).wq_context.addr(), 0x5500);
        assert_eq!((*wq).events_completed, 0);
        assert_eq!(libc::pthread_mutex_trylock(&raw mut (*wq).mutex), 0);
        assert_eq!(libc::pthread_mutex_unlock(&raw mut (*wq).mutex), 0);
        assert_eq!(libc::pthread_cond_destroy(&raw mut (*wq).cond), 0);
    }

    // SAFETY: the device and the attributes live as long as the test.
    let failed = unsafe {
        (*device.vctx()).create_wq = Some(fake_op!(|context: *mut ibv_context,
                                                    attr: *mut ibv_wq_init_attr|
         -> *mut ibv_wq { ptr::null_mut() }));
        verbs_sys::ibv_create_wq(context, attr)
    };
    assert!(failed.is_null());
}

#[test]
fn ibv_close_xrcd() {
    let device = Device::new();
    let xrcd = ibv_xrcd::make(device.context());
    // SAFETY: the device lives as long as the test.
    let answer = unsafe {
        (*device.vctx()).close_xrcd = Some(fake_op!(|xrcd: *mut ibv_xrcd| -> c_int { 77 }));
        verbs_sys::ibv_close_xrcd(xrcd)
    };
    assert_eq!(answer, 77);
    assert_eq!(calls(), [[xrcd.bits()]]);
}
