//! Texts of errors, alone and with their sources.

use verbs_harness::chains::{
    Explained, assert_debug_is_text, assert_explained, assert_repeats_nothing, parts,
};

use super::examples::{poll_error, post_errors, work_error};
use super::*;
use crate::codes::{Gid, QpType};

#[test]
fn errors_name_the_limit() {
    let error = Error::Limit {
        what: "max_send_wr",
        asked: 100_000,
        max: Some(16_384),
    };
    assert_eq!(
        error.to_string(),
        "max_send_wr 100000 exceeds this device's 16384"
    );
    assert_eq!(error.kind(), ErrorKind::Limit);
}

#[test]
fn io_error_keeps_kind_and_text() {
    let io = io::Error::from(Error::UnknownDevice {
        wanted: "name \"x\"".into(),
        available: vec!["rxe0".into(), "rxe1".into()],
    });
    assert_eq!(io.kind(), io::ErrorKind::NotFound);
    assert_eq!(
        io.to_string(),
        "no RDMA device has the name \"x\"; available: rxe0, rxe1"
    );
}

/// One of each variant, and more where it prints in several ways.
fn all() -> Vec<Error> {
    let source = || io::Error::other("the cause");
    let path = |local| GidPath {
        local,
        sgid_index: 3,
        remote: Gid::new([2; 16]),
    };
    let transition = |missing, extra, path, source| Error::Transition {
        from: QpState::INIT,
        to: QpState::RTR,
        missing,
        extra,
        path,
        source,
    };
    let none = QpAttrMask::empty();
    let invalid = || errno::io_error(libc::EINVAL);
    let endpoint = [
        EndpointError::Version { version: 7 },
        EndpointError::Number {
            what: "qp_num",
            value: 1,
            min: 2,
            max: 9,
        },
        EndpointError::NoAddress,
        EndpointError::NoGid,
        EndpointError::NoLid,
        EndpointError::Length {
            len: 3,
            expected: 37,
        },
        EndpointError::QpType {
            ours: QpType::Rc,
            theirs: QpType::Uc,
        },
    ];
    let mut all = vec![
        Error::Verb {
            verb: "ibv_reg_mr",
            source: source(),
        },
        Error::Unsupported { verb: "ibv_reg_mr" },
        Error::NoLibrary,
        Error::NeedsRdmaCm {
            device: "siw0".into(),
        },
        Error::NoDevice { kernel: Vec::new() },
        Error::UnknownPlace {
            path: "/sys/bus/pci/devices/0000:3b:00.0".into(),
        },
        Error::NoDevice {
            kernel: vec!["rxe0".into()],
        },
        Error::UnknownDevice {
            wanted: "name \"x\"".into(),
            available: vec!["rxe0".into()],
        },
        Error::DeviceNode {
            path: "/dev/infiniband/uverbs0".into(),
            source: source(),
        },
        Error::NoActivePort {
            device: "rxe0".into(),
        },
        Error::PortNotActive {
            port: 1,
            state: PortState::DOWN,
        },
        Error::UnknownPort {
            port: 3,
            device: "rxe0".into(),
            ports: 1,
        },
        Error::EmptyGid {
            port: 1,
            index: 3,
            filled: vec![0],
        },
        Error::NoGid { port: 1 },
        Error::GidRemoved {
            port: 1,
            gid: crate::codes::Gid::new([1; 16]),
        },
        Error::PkeyRemoved {
            port: 1,
            pkey: 0x8001,
        },
        Error::Limit {
            what: "cqe",
            asked: 2,
            max: Some(1),
        },
        Error::Limit {
            what: "cqe",
            asked: 2,
            max: None,
        },
        Error::OutOfRange {
            what: "sl",
            value: 17,
            min: 0,
            max: 15,
        },
        Error::OutOfRange {
            what: "a memory region of length",
            value: 0,
            min: 1,
            max: u64::MAX,
        },
        Error::OutOfBounds {
            start: 1,
            end: 2,
            len: 1,
        },
        Error::RemoteTooShort {
            local: 2,
            remote: 1,
        },
        Error::Misaligned { addr: 1, len: 8 },
        Error::Memlock {
            len: 2,
            limit: 1,
            source: source(),
        },
        Error::Registration {
            len: 2,
            source: source(),
        },
        Error::RemoteAccess,
        Error::RemoteLength {
            len: 3,
            expected: 20,
        },
        transition(QpAttrMask::AV, none, None, invalid()),
        transition(none, QpAttrMask::AV, None, invalid()),
        transition(QpAttrMask::AV, QpAttrMask::PORT, None, invalid()),
        transition(none, QpAttrMask::STATE, None, invalid()),
        transition(none, none, None, invalid()),
        transition(none, none, Some(path(None)), invalid()),
        transition(none, none, Some(path(Some(Gid::new([1; 16])))), source()),
        Error::Unreachable {
            path: path(None),
            source: source(),
        },
        Error::ForeignContext { child: "the CQ" },
        Error::InUse { object: "the CQ" },
        Error::Destroyed { object: "the CQ" },
        Error::OtherProcess { object: "the CQ" },
        Error::HugePages {
            len: 3 << 20,
            page_size: Some(2 << 20),
            source: source(),
        },
        Error::HugePages {
            len: 3,
            page_size: None,
            source: source(),
        },
        Error::ForeignParent {
            child: "the queue pair",
            parent: "protection domain",
        },
        Error::Poll(poll_error()),
        Error::Work(work_error()),
    ];
    #[cfg(feature = "rdmacm")]
    all.extend([
        Error::ConnectionManager {
            step: "connecting",
            failure: Box::new(cm_failure::CmFailure::GONE),
        },
        Error::TimedOut {
            what: "connecting",
            after: std::time::Duration::from_secs(1),
        },
        Error::NoLocalAddr {
            device: "siw0".into(),
        },
    ]);
    all.extend(post_errors().map(Error::Post));
    all.extend(endpoint.map(Error::Endpoint));
    all
}

#[test]
fn no_error_repeats_its_source() {
    let types: [Explained<'_>; 2] = [
        ("Error", &[""], include_str!("mod.rs")),
        ("EndpointError", &["Endpoint"], include_str!("endpoint.rs")),
    ];
    let debugs: Vec<_> = all().iter().map(|error| format!("{error:?}")).collect();
    let absent = [
        ("Error::ConnectionManager", "needs rdma_cm"),
        ("Error::TimedOut", "needs rdma_cm"),
        ("Error::NoLocalAddr", "needs rdma_cm"),
    ];
    let absent = if cfg!(feature = "rdmacm") {
        &[]
    } else {
        &absent[..]
    };
    assert_explained(&types, &debugs, absent);
    for error in all() {
        let alone = parts(&error);
        assert_repeats_nothing(&error);
        assert_debug_is_text(&error);
        if let Error::Endpoint(error) = &error {
            assert_repeats_nothing(error);
            assert_debug_is_text(error);
        }
        assert_eq!(ErrorChain::new(&error).to_string(), alone.join(": "));
        // A `Rejected` prints the same text, once.
        let refused = Rejected::new(error, ());
        assert_eq!(parts(&refused), alone);
        assert_debug_is_text(&refused);
        let io = io::Error::from(Error::from(refused));
        assert_eq!(parts(&io), alone);
    }
    assert_repeats_nothing(&crate::device::ParseGuidError);
    assert_debug_is_text(&crate::device::ParseGuidError);
    assert_debug_is_text(&"x".parse::<PortState>().unwrap_err());
    assert_debug_is_text(&poll_error());
    assert_debug_is_text(&work_error());
    for error in post_errors() {
        assert_debug_is_text(&error);
    }
}

#[test]
fn range_without_an_upper_end_has_only_the_lower() {
    let error = |max| {
        let (what, value, min) = ("sl", 0, 1);
        let error = Error::OutOfRange {
            what,
            value,
            min,
            max,
        };
        error.to_string()
    };
    assert_eq!(error(9), "sl 0 is out of range: 1 to 9 are possible");
    assert_eq!(error(1), "sl 0 is out of range: only 1 is possible");
    assert_eq!(
        error(u64::MAX),
        "sl 0 is out of range: at least 1 is needed"
    );
}

#[test]
fn main_prints_what_to_do() {
    let error = Error::NoDevice { kernel: Vec::new() };
    let text = error.to_string();
    let boxed: Box<dyn std::error::Error> = error.into();
    assert_eq!(format!("{boxed:?}"), format!("{text} [NoDevice]"));
    let error = Rejected::new(Error::from(EndpointError::NoGid), ());
    assert_eq!(
        format!("{error:?}"),
        "the peer's endpoint is not usable: \
         this side's port is addressed by GID and the peer gave none [Endpoint(NoGid)]"
    );
}
