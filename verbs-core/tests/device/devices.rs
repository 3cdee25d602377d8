//! Devices: how they are found, their attributes, and how they are closed.

use verbs_core::completion::CompletionChannel;
use verbs_core::device::{Guid, NodeType, TransportType};
use verbs_core::error::ErrorKind;
use verbs_core::{CompletionQueue, Device, Error, QueuePair};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{assert_says, begin, context, device_name, peer_name, sysfs};

#[test]
#[ignore = "needs an RDMA device"]
fn a_device_is_found_by_name_guid_and_index() {
    let _test = begin!();
    let names: Vec<_> = Device::list()
        .unwrap()
        .iter()
        .map(|device| device.name().to_owned())
        .collect();
    for name in [device_name(), peer_name()] {
        assert!(names.contains(&name), "{name} in {names:?}");
        let device = Device::by_name(&name).unwrap();
        // Devices may share a GUID, on cards with several ports.
        assert_eq!(
            Device::by_guid(device.guid()).unwrap().guid(),
            device.guid()
        );
        if let Some(index) = device.index() {
            assert_eq!(Device::by_index(index).unwrap().name(), name);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn device_attributes_match_sysfs() {
    let _test = begin!();
    let device = Device::by_name(&device_name()).unwrap();
    assert_eq!(device.guid().to_string(), sysfs("node_guid"));
    assert_eq!(
        device.node_type().as_raw().to_string(),
        sysfs("node_type").split(':').next().unwrap()
    );
    let (node, transport) = match is_iwarp() {
        true => (NodeType::RNIC, TransportType::IWARP),
        false => (NodeType::CA, TransportType::IB),
    };
    assert_eq!(device.node_type(), node);
    assert_eq!(device.transport_type(), transport);
    assert!(device.node().exists(), "{:?}", device.node());
    assert!(format!("{device:?}").contains(device.name()));
    let attr = device.open().unwrap().query_device().unwrap();
    assert_eq!(attr.node_guid().to_string(), sysfs("node_guid"));
    assert_eq!(attr.sys_image_guid().to_string(), sysfs("sys_image_guid"));
    // Where the kernel has no version, the driver makes one up.
    let fw_ver = sysfs("fw_ver");
    assert!(
        fw_ver.is_empty() || attr.fw_ver() == fw_ver,
        "{}",
        attr.fw_ver()
    );
}

#[test]
#[ignore = "needs an RDMA device"]
fn limits_are_usable_and_the_extended_attributes_agree() {
    let _test = begin!();
    let context = context();
    let attr = context.query_device().unwrap();
    let counts = [attr.max_qp(), attr.max_cq(), attr.max_cqe(), attr.max_mr()];
    assert!(!counts.contains(&0) && attr.phys_port_cnt() > 0, "{attr:?}");
    assert!(attr.max_pkeys() > 0 || is_iwarp());
    assert!(attr.max_mr_size() > 1 << 20);
    let extended = context.query_device_ex().unwrap();
    assert_eq!(format!("{:?}", extended.base()), format!("{attr:?}"));
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_device_has_its_place_and_its_rate() {
    let _test = begin!();
    let device = Device::by_name(&device_name()).unwrap();
    assert!(device.sysfs_path().join("node_guid").exists());
    let context = device.open().unwrap();
    for port in context.ports().unwrap() {
        let rate = context.query_port(port).unwrap().active_rate();
        assert_eq!(device.port_rate(port), rate);
    }
    // A virtual device has neither of them.
    let (pci, cpus) = (device.pci_address(), device.near_cpus());
    assert_eq!(pci.is_some(), !cpus.is_empty(), "{pci:?} {cpus:?}");
    let all = Device::list().unwrap().len();
    assert_eq!(Device::near_cpu(0).unwrap().len(), all);
    assert_eq!(Device::near_node(0).unwrap().len(), all);
    assert!(Device::near_cpu(1 << 20).is_err());
}

#[test]
#[ignore = "needs an RDMA device"]
fn unknown_device_error_lists_the_devices() {
    let _test = begin!();
    let error = Device::by_name("no_such_device").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let words = error.to_string();
    assert!(
        words.contains("\"no_such_device\"") && words.contains(&device_name()),
        "{words}"
    );
    let error = Device::by_guid(Guid::new([0xff; 8])).unwrap_err();
    assert_says(&error, &device_name());
    let error = Device::by_index(u32::MAX).unwrap_err();
    assert_says(&error, &device_name());
}

#[test]
#[ignore = "needs an RDMA device"]
fn close_fails_while_objects_are_in_use() {
    let _test = begin!();
    let context = context();
    let clone = context.clone();
    assert!(matches!(context.close(), Err(Error::InUse { .. })));
    let pd = clone.alloc_pd().unwrap();
    assert!(matches!(clone.close(), Err(Error::InUse { .. })));
    let channel = CompletionChannel::create(pd.context()).unwrap();
    let cq = CompletionQueue::builder(pd.context(), 8).channel(&channel);
    let cq = cq.build().unwrap();
    assert!(matches!(channel.close(), Err(Error::InUse { .. })));
    let mr = pd.reg_mr(vec![0_u8; 8]).unwrap();
    let qp = QueuePair::builder(&pd, &cq, &cq).build().unwrap();
    let queue = cq.clone();
    assert!(matches!(cq.close(), Err(Error::InUse { .. })));
    let domain = pd.clone();
    assert!(matches!(pd.close(), Err(Error::InUse { .. })));
    qp.close().unwrap();
    mr.dereg().unwrap();
    let channel = queue.channel().unwrap().clone();
    queue.close().unwrap();
    channel.close().unwrap();
    domain.close().unwrap();
}
