//! The error texts in the guide are those that the code prints.

use std::fs;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use fake_libibverbs::{ladder, with};
use rustix::io::Errno;
use verbs_channel::error::Queue;
use verbs_channel::exchange::{ExchangeError, ExchangeFailure, RefusalCode};
use verbs_channel::verbs_core::codes::{QpType, WcOpcode, WcStatus};
use verbs_channel::verbs_core::error::EndpointError;
use verbs_channel::verbs_core::verbs_sys::{IBV_PORT_ACTIVE, IBV_PORT_DOWN};
use verbs_channel::verbs_core::{Context, Device, Error as Core, QueuePair, WorkError};
use verbs_channel::{Channel, ChannelConfig, DownReason, Error, RejectReason, TransportError};
use verbs_harness::chains;

use crate::fake_device::pd;

/// The files of the guide.
const FILES: [&str; 15] = [
    include_str!("../../src/guide/rdma_and_tcp.md"),
    include_str!("../../src/guide/layers.md"),
    include_str!("../../src/guide/memory.md"),
    include_str!("../../src/guide/lending.md"),
    include_str!("../../src/guide/endings.md"),
    include_str!("../../src/guide/server.md"),
    include_str!("../../src/guide/performance.md"),
    include_str!("../../src/guide/containers.md"),
    include_str!("../../src/guide/debugging.md"),
    include_str!("../../src/guide/testing.md"),
    include_str!("../../src/guide/faults.md"),
    include_str!("../../src/guide/from_rust.md"),
    include_str!("../../src/guide/troubleshooting/machine.md"),
    include_str!("../../src/guide/troubleshooting/connecting.md"),
    include_str!("../../src/guide/troubleshooting/running.md"),
];

/// Sections whose texts other tests compare: those of the build script, of `verbs-async` and of `cargo soft-roce`. The
/// connection manager is there with its feature only.
fn is_elsewhere(section: &str) -> bool {
    let title = section.lines().next().unwrap_or_default();
    let is_of_manager = title == "Connecting by `rdma_cm`";
    matches!(
        title,
        "Building" | "With verbs-async" | "With `cargo soft-roce`"
    ) || (is_of_manager && !cfg!(feature = "rdmacm"))
}

/// Each section, whose first line is its heading.
fn sections(file: &str) -> impl Iterator<Item = &str> {
    let file = file.strip_prefix("# ").unwrap_or(file);
    file.split("\n# ")
}

/// The texts that the guide quotes: each block of the language `text`, as one line.
fn quoted() -> Vec<String> {
    let sections = FILES.iter().flat_map(|file| sections(file));
    let sections = sections.filter(|section| !is_elsewhere(section));
    sections.flat_map(chains::quoted).collect()
}

fn no_memory() -> io::Error {
    Errno::NOMEM.into()
}

/// Errors of a device and its ports, in the situations that they explain. Their numbers and names are those of the
/// guide's examples.
fn of_devices() -> Vec<String> {
    let text = |error: Core| format!("{:?}", Error::from(error));
    let open = || Device::by_name("fake0")?.open();
    let prepare = |set: fn(&mut ChannelConfig)| {
        let mut config = Channel::builder(&pd()).config();
        set(&mut config);
        let prepared = config.build().map(drop);
        format!("{:?}", prepared.unwrap_err())
    };
    let unknown = text(Device::by_name("mlx5_0").unwrap_err());
    with(|library| library.refuse.push(("ibv_open_device", libc::EACCES)));
    let node = text(open().map(drop).unwrap_err());
    let port = prepare(|config| config.port_num = Some(2));
    let gid = prepare(|config| config.gid_index = Some(3));
    let gids = with(|library| mem::take(&mut library.ports[0].gids));
    let no_gid = prepare(|_config| ());
    with(|library| library.ports[0].gids = gids);
    with(|library| library.refuse.push(("ibv_create_qp", libc::ENOMEM)));
    let memory = prepare(|_config| ());
    with(|library| library.refuse.push(("ibv_create_qp", libc::EAGAIN)));
    let group = prepare(|_config| ());
    with(|library| library.refuse.push(("ibv_create_qp", libc::EINVAL)));
    let together = prepare(|_config| ());
    let (_context, pd, cq) = ladder();
    let builder = QueuePair::builder(&pd, &cq, &cq);
    let limit = text(builder.max_send_wr(100_000).build().unwrap_err());
    with(|library| library.ports[0].attr.state = IBV_PORT_DOWN);
    let down = prepare(|config| config.port_num = Some(1));
    let none = text(Context::first_active().map(drop).unwrap_err());
    with(|library| library.ports[0].attr.state = IBV_PORT_ACTIVE);
    vec![
        unknown.replace("fake0, fake1", "mlx5_2, mlx5_3"),
        // That node does not exist.
        node.replace("uverbs-fake0", "uverbs0").replace(
            &io::Error::from(Errno::NOENT).to_string(),
            &io::Error::from(Errno::ACCESS).to_string(),
        ),
        port.replace("fake0", "mlx5_0"),
        gid,
        no_gid,
        memory,
        group,
        together,
        limit.replace("device's 1000 ", "device's 32768 "),
        down,
        none,
    ]
}

/// Errors before there is a channel.
fn of_core() -> Vec<Core> {
    let len = 64 << 20;
    vec![
        Core::NoLibrary,
        Core::NoDevice { kernel: Vec::new() },
        Core::NoDevice {
            kernel: vec!["mlx5_0".into()],
        },
        Core::Memlock {
            len,
            limit: 8 << 20,
            source: no_memory(),
        },
        Core::Registration {
            len,
            source: no_memory(),
        },
        Core::HugePages {
            len: 256 << 20,
            page_size: Some(2 << 20),
            source: no_memory(),
        },
        Core::Unsupported {
            verb: "ibv_alloc_dm",
        },
        Core::OutOfBounds {
            start: 0,
            end: 65,
            len: 64,
        },
        Core::RemoteAccess,
        verbs_core::__private::post_errors()[0].into(),
        verbs_core::__private::post_errors()[5].into(),
        work_error(WcStatus::WR_FLUSH_ERR).into(),
        work_error(WcStatus::LOC_PROT_ERR).into(),
    ]
}

/// Errors of connecting; `words` is the peer's reason to refuse this side.
fn of_exchanges(words: String) -> Vec<Error> {
    let after = Some(Duration::from_secs(10));
    let errors = [
        ExchangeError::NotListening {
            after,
            source: Errno::CONNREFUSED.into(),
        },
        ExchangeError::NotListening {
            after: None,
            source: Errno::CONNREFUSED.into(),
        },
        ExchangeError::TimedOut {
            what: "write",
            after,
        },
        ExchangeError::Tcp {
            what: "connect to",
            source: Errno::HOSTUNREACH.into(),
        },
        ExchangeError::HungUp {
            got: 0,
            expected: 12,
        },
        ExchangeError::Lookup {
            address: "\"server\"".into(),
            source: "server".to_socket_addrs().unwrap_err(),
        },
        // As the standard library has it; asking for a name may take long.
        ExchangeError::Lookup {
            address: "\"server:7471\"".into(),
            source: io::Error::other(
                "failed to lookup address information: Name or service not known",
            ),
        },
        ExchangeError::NoAddress,
        ExchangeError::NotOurs(*b"HTTP"),
        ExchangeError::Version(2),
        ExchangeError::Endpoint(EndpointError::Version { version: 3 }),
        ExchangeError::Endpoint(EndpointError::NoGid),
        ExchangeError::Endpoint(EndpointError::NoLid),
        ExchangeError::Endpoint(EndpointError::QpType {
            ours: QpType::Rc,
            theirs: QpType::Uc,
        }),
        ExchangeError::Refused {
            code: RefusalCode::HANDSHAKE,
            words,
        },
    ];
    let peer = SocketAddr::from(([10, 0, 0, 2], 7471));
    let failures = errors.map(|error| ExchangeFailure::new(Some(peer), error).into());
    failures.into()
}

/// Errors of a server without a client, and of a client whose packets nothing answers.
fn timeouts() -> [String; 2] {
    let prepare = || Channel::builder(&pd()).build().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let alone = prepare().accept(&listener, Duration::from_millis(1));
    let alone = format!("{:?}", alone.unwrap_err());
    // Its time is over before it sends a packet.
    let lost = prepare().connect("10.0.0.2:7471", Duration::ZERO);
    let lost = format!("{:?}", lost.unwrap_err());
    [
        alone.replace("within 1 ms", "within 60 s"),
        lost.replace("within 0 µs", "within 10 s"),
    ]
}

/// The error of a server whose port another process has.
fn port_in_use() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let again = TcpListener::bind(listener.local_addr().unwrap());
    again.unwrap_err().to_string()
}

/// The error of a side whose queue pair the kernel does not connect, for this reason.
fn no_path(why: Errno, local: &str, remote: &str) -> String {
    const RTR: u32 = 2;
    let prepared = Channel::builder(&pd()).build().unwrap();
    let peer = prepared.endpoint();
    with(|library| library.closed_state = Some((RTR, why.raw_os_error())));
    let error = prepared.handshake(&peer).unwrap_err();
    with(|library| library.closed_state = None);
    // The peer is this side itself.
    let text = format!("{error:?}");
    let (before, after) = text.split_once(" to the peer's ").unwrap();
    let ours = "::ffff:10.0.0.1";
    [before.replace(ours, local), after.replace(ours, remote)].join(" to the peer's ")
}

/// Errors of the connection manager.
#[cfg(feature = "rdmacm")]
fn of_manager() -> Vec<Error> {
    use verbs_channel::__private::CmDatagrams;
    use verbs_channel::verbs_core::device::TransportType;

    let peer = SocketAddr::from(([10, 0, 0, 2], 7471));
    let [unresolved, rejected, ..] = verbs_core::__private::cm_failures();
    let rejected = || {
        let failure = Box::new(rejected);
        let step = "connecting";
        Core::ConnectionManager { step, failure }
    };
    let failure = Box::new(unresolved);
    let step = "resolving the address";
    let unresolved = Core::ConnectionManager { step, failure };
    let no_route = Core::Verb {
        verb: "rdma_resolve_route",
        source: Errno::NODEV.into(),
    };
    let localhost = SocketAddr::from(([127, 0, 0, 1], 7471));
    let of_steps = [
        (peer, unresolved),
        (localhost, no_route),
        (peer, rejected()),
    ];
    let of_steps = of_steps.map(|(peer, error)| {
        let error = CmDatagrams::explain(error, Duration::ZERO);
        ExchangeFailure::new(Some(peer), error).into()
    });
    let of_core = [
        rejected(),
        Core::NeedsRdmaCm {
            device: "siw0".into(),
        },
        Core::Verb {
            verb: "rdma_create_event_channel",
            source: Errno::NOENT.into(),
        },
        Core::NoLocalAddr {
            device: "mlx5_0".into(),
        },
        Core::TimedOut {
            what: "connecting",
            after: Duration::from_secs(10),
        },
    ];
    let of_core = of_core.map(Error::from);
    let other = ExchangeError::OtherTransport {
        peer: TransportType::IB,
        ours: TransportType::IWARP,
    };
    let late = ExchangeError::TimedOut {
        what: "answer",
        after: Some(Duration::from_secs(5)),
    };
    let late_in_kernel = ExchangeError::TimedOut {
        what: "answer",
        after: None,
    };
    let device = ExchangeError::OtherDevice {
        needed: "mlx5_1".into(),
        ours: "mlx5_0".into(),
    };
    // At the address that the peer has sent.
    let listener = SocketAddr::from(([10, 0, 0, 2], 41873));
    let exchanged = [
        (peer, device),
        (peer, other),
        (listener, late),
        (listener, late_in_kernel),
        (listener, ExchangeError::Stranger),
    ];
    let exchanged = exchanged.map(|(peer, error)| ExchangeFailure::new(Some(peer), error).into());
    let of_steps = of_steps.into_iter();
    of_steps.chain(of_core).chain(exchanged).collect()
}

fn work_error(status: WcStatus) -> WorkError {
    let mut error = verbs_core::__private::work_error();
    (error.status, error.qp_num, error.vendor_err) = (status, 0x11, 0);
    error
}

fn failed(opcode: WcOpcode, status: WcStatus) -> Error {
    let queue = match opcode {
        WcOpcode::RECV => Queue::Receive,
        _ => Queue::Send,
    };
    let error = work_error(status).for_opcode(opcode);
    TransportError::Work { queue, error }.into()
}

/// Errors of operations.
fn of_operations() -> Vec<Error> {
    let after = Duration::from_secs(5);
    let queue = Queue::Receive;
    let late = DownReason::TimedOut { queue, after };
    let down = |reason| RejectReason::Down(reason).into();
    vec![
        failed(WcOpcode::SEND, WcStatus::RNR_RETRY_EXC_ERR),
        failed(WcOpcode::SEND, WcStatus::RETRY_EXC_ERR),
        failed(WcOpcode::RDMA_WRITE, WcStatus::REM_ACCESS_ERR),
        failed(WcOpcode::SEND, WcStatus::REM_INV_REQ_ERR),
        failed(WcOpcode::SEND, WcStatus::REM_OP_ERR),
        failed(WcOpcode::RECV, WcStatus::LOC_LEN_ERR),
        failed(WcOpcode::RECV, WcStatus::LOC_QP_OP_ERR),
        RejectReason::OtherDomain.into(),
        RejectReason::NoReads.into(),
        RejectReason::RemoteTooShort {
            local: 65,
            remote: 64,
        }
        .into(),
        RejectReason::InlineTooLong { len: 16, max: 0 }.into(),
        RejectReason::Backpressure(Queue::Send).into(),
        RejectReason::Untaken.into(),
        RejectReason::TimedOut.into(),
        TransportError::Aborted(late).into(),
        Error::InFlight { queue, after },
        TransportError::Aborted(DownReason::PeerClosed).into(),
        down(DownReason::PeerClosed),
        down(DownReason::PeerLost),
        down(DownReason::Unflushed),
        Error::Capacity {
            channels: 300,
            max_send_wr: 64,
            max_recv_wr: 64,
            shared_receives: 0,
            max_cqe: 32767,
        },
    ]
}

#[test]
fn every_file_of_the_guide_is_compared() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/src/guide");
    let is_text = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let of = |dir: &str| {
        let entries = fs::read_dir(dir).expect("the guide is in this package");
        entries.map(|entry| entry.expect("it can be read").path())
    };
    let parts = format!("{guide}/troubleshooting");
    let there = of(guide).chain(of(&parts)).filter(is_text).count();
    assert_eq!(FILES.len(), there);
}

/// Each fault has a row for each layer.
#[test]
fn table_of_faults_has_every_layer() {
    let table = include_str!("../../src/guide/faults.md");
    let (_, faults) = table
        .split_once("\n# Some packets")
        .expect("it is the first");
    for section in faults.split("\n# ") {
        let (fault, rows) = section.split_once('\n').unwrap();
        let rows = rows.lines().filter_map(|row| row.strip_prefix("| "));
        let layers: Vec<_> = rows
            .filter_map(|row| row.split(" | ").next())
            .flat_map(|layers| layers.split(", "))
            .collect();
        let expected: &[&str] = match fault {
            "The disk is full" => &["the receiver", "the sender"],
            _ => &["core", "channel", "async", "stream"],
        };
        for layer in expected {
            assert!(layers.contains(layer), "{fault}: no row of {layer}");
        }
    }
}

const LOCAL: &str = "::ffff:10.0.0.1";
const REMOTE: &str = "::ffff:10.0.0.2";

/// The text of an error with this `Debug`, which has the variant at its end.
fn text(debug: &str) -> &str {
    debug.rsplit_once(" [").expect("it has a variant").0
}

/// The errors of the guide, each as its `Debug`.
pub(crate) fn errors() -> Vec<String> {
    let mut errors: Vec<Error> = of_core().into_iter().map(Error::from).collect();
    let why = no_path(Errno::TIMEDOUT, REMOTE, LOCAL);
    errors.extend(of_exchanges(text(&why).to_owned()));
    errors.extend(of_operations());
    #[cfg(feature = "rdmacm")]
    errors.extend(of_manager());
    let mut debugs: Vec<_> = errors.iter().map(|error| format!("{error:?}")).collect();
    debugs.extend(of_devices());
    debugs.extend([Errno::TIMEDOUT, Errno::INVAL].map(|why| no_path(why, LOCAL, REMOTE)));
    debugs.extend(timeouts());
    debugs
}

#[test]
#[cfg_attr(miri, ignore = "Miri has texts of its own for errors of the system")]
fn guide_quotes_the_texts_of_errors_as_they_are_printed() {
    let mut printed: Vec<_> = errors()
        .iter()
        .map(|debug| text(debug).to_owned())
        .collect();
    printed.push(port_in_use());

    let quoted = quoted();
    let missing = |these: &[String], among: &[String]| -> Vec<String> {
        let missing = these.iter().filter(|text| !among.contains(text));
        missing.cloned().collect()
    };
    assert_eq!(missing(&quoted, &printed), [""; 0], "no code prints these");
    assert_eq!(missing(&printed, &quoted), [""; 0], "the guide lacks these");
}
