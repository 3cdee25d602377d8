//! Devices and capacities: which are found, and the errors with their texts.

use fake_libibverbs::{ladder, with};
use verbs_core::{CompletionQueue, Context, Device, Error, MaxAckRetries, QueuePair};
use verbs_harness::assert_says;

#[test]
fn no_device_error_explains_how_to_get_one() {
    with(|library| library.devices = 0);
    assert!(Device::list().unwrap().is_empty());
    for error in [
        Device::by_name("rxe0").map(drop),
        Context::first_active().map(drop),
    ] {
        let error = error.unwrap_err();
        assert!(matches!(error, Error::NoDevice { .. }), "{error}");
        let words = error.to_string();
        assert!(
            words.contains("rdma_rxe") || words.contains("libibverbs cannot use "),
            "{words}"
        );
    }
}

#[test]
fn a_kernel_without_rdma_has_no_devices() {
    with(|library| library.refuse.push(("ibv_get_device_list", libc::ENOSYS)));
    assert!(Device::list().unwrap().is_empty());
    with(|library| library.refuse.push(("ibv_get_device_list", libc::ENOMEM)));
    assert_eq!(Device::list().unwrap_err().errno(), Some(libc::ENOMEM));
}

#[test]
fn a_node_that_cannot_be_opened_is_named() {
    for errno in [libc::EACCES, libc::EPERM, libc::ENOENT] {
        with(|library| library.refuse.push(("ibv_open_device", errno)));
        let error = Device::by_name("fake0").unwrap().open().unwrap_err();
        assert_says(&error, "/dev/infiniband/uverbs-fake0");
        // The node is asked itself, and there is none.
        assert_eq!(error.errno(), Some(libc::ENOENT));
    }
    with(|library| library.refuse.push(("ibv_open_device", libc::ENOMEM)));
    let error = Device::by_name("fake0").unwrap().open().unwrap_err();
    assert_eq!(error.to_string(), "ibv_open_device failed");
}

#[test]
fn the_first_device_with_an_active_port_is_taken() {
    with(|library| library.refuse.push(("ibv_open_device", libc::EACCES)));
    let context = Context::first_active().unwrap();
    assert_eq!(
        context.device().name(),
        "fake1",
        "the other one cannot be opened"
    );
    with(|library| library.ports[0].attr.state.0 = 1);
    let error = Context::first_active().unwrap_err();
    assert_says(&error, "no port of any device is ACTIVE");
}

#[test]
fn numbers_too_large_for_their_field_are_rejected() {
    let (context, pd, cq) = ladder();
    let build = || QueuePair::builder(&pd, &cq, &cq);
    let words = |refused: Result<_, Error>| refused.map(drop).unwrap_err().to_string();
    assert_eq!(
        words(build().sl(16).build()),
        "sl 16 is out of range: 0 to 15 are possible"
    );
    assert!(words(build().flow_label(0x10_0000).build()).starts_with("flow_label 1048576"));
    assert!(MaxAckRetries::new(8).is_err());
    let error = CompletionQueue::create(&context, 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cqe 0 is out of range: 1 to 4096 are possible"
    );
    let vector = CompletionQueue::builder(&context, 8)
        .comp_vector(3)
        .build()
        .unwrap_err();
    assert_eq!(
        vector.to_string(),
        "comp_vector 3 is out of range: 0 to 2 are possible"
    );
    assert!(
        CompletionQueue::builder(&context, 8)
            .comp_vector(2)
            .build()
            .is_ok()
    );
}
