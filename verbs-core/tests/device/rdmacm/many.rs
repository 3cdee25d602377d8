//! Many connections at once, some of which are given up.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use verbs_core::PreparedQueuePair;
use verbs_core::rdmacm::{ConnectRequest, Connected, Connector, Listener, Pending};
use verbs_harness::pair::Side;
use verbs_harness::{PATIENCE, begin, is_in_user_space};

use super::{Server, connected};

/// How many there are: they take three seconds, and half a minute on a busy emulated machine.
const CONNECTIONS: usize = 1000;
const AT_ONCE: usize = 64;

/// How long a server waits for it: its rejection may get lost.
const A_MOMENT: Duration = Duration::from_millis(200);

/// The kernel's identifiers of all programs; in user space there are none.
fn identifiers() -> usize {
    if is_in_user_space() {
        return 0;
    }
    let output = Command::new("rdma")
        .args(["resource", "show", "cm_id"])
        .output();
    let output = output.expect("`rdma` of iproute2 counts identifiers");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn small(side: &Side) -> PreparedQueuePair {
    let builder = side.builder();
    builder.max_send_wr(1).max_recv_wr(1).build().unwrap()
}

/// Where a client gives up; most do not.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    Resolving,
    Routing,
    Connecting,
    Disconnected,
}

impl Ends {
    fn of(nth: usize) -> Self {
        // A third, at points that depend on a hash of the number.
        match nth.wrapping_mul(0x9e37_79b9).wrapping_shr(7) % 9 {
            0 => Self::Resolving,
            1 => Self::Routing,
            2 => Self::Connecting,
            _ => Self::Disconnected,
        }
    }
}

/// Whether the server has accepted each client: a client that ends a connection before may overtake the
/// last step of its accept.
type Accepted = [AtomicBool; CONNECTIONS];

/// One client's life.
fn client(side: &Side, addr: SocketAddr, nth: usize, accepted: &Accepted) {
    let ends = Ends::of(nth);
    let step = Connector::new()
        .unwrap()
        .resolve_addr(addr, PATIENCE)
        .unwrap();
    if ends == Ends::Resolving {
        return;
    }
    let step = step
        .wait(Some(PATIENCE))
        .unwrap()
        .resolve_route(PATIENCE)
        .unwrap();
    if ends == Ends::Routing {
        return;
    }
    let route = step.wait(Some(PATIENCE)).unwrap();
    let mut step = route.connect(small(side), &nth.to_le_bytes()).unwrap();
    if ends == Ends::Connecting {
        // Some are answered already.
        return drop(step.poll().unwrap());
    }
    let Connected { mut connection, .. } = step.wait(Some(PATIENCE)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !accepted[nth].load(Ordering::Relaxed) {
        assert!(Instant::now() < deadline, "{nth} is not accepted");
        thread::sleep(Duration::from_millis(1));
    }
    connection.disconnect().unwrap();
    assert!(connection.wait_disconnected(Some(PATIENCE)).unwrap());
}

/// One server's part.
fn serve(side: &Side, request: ConnectRequest, all: &Accepted) {
    let nth = request.private_data().message().unwrap();
    let nth = usize::from_le_bytes(nth.try_into().unwrap());
    let gives_up = Ends::of(nth) == Ends::Connecting;
    let patience = if gives_up { A_MOMENT } else { PATIENCE };
    let accepted = request.accept(small(side), b"");
    match accepted.and_then(|step: Pending<Connected>| step.wait(Some(patience))) {
        Ok(Connected { mut connection, .. }) => {
            all[nth].store(!gives_up, Ordering::Relaxed);
            assert!(connection.wait_disconnected(Some(PATIENCE)).unwrap());
            // The client may have destroyed its identifier.
            drop(connection.disconnect());
        }
        Err(error) => assert!(gives_up, "{nth}: {error}"),
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn many_connections_at_once_leave_nothing() {
    let test = begin!(alone);
    let mut server = server!(test);
    // After the first connection, librdmacm has all memory that it keeps.
    let ((side, asked), answered) = connected(&mut server);
    drop((asked, answered));
    let before = (descriptors(), identifiers());
    // With room for all requests: one that is dropped comes again after seconds.
    let mut listener = Listener::bind((server.addr.ip(), 0).into(), 0).unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = server.side;
    let (next, accepted) = (
        AtomicUsize::new(0),
        [const { AtomicBool::new(false) }; CONNECTIONS],
    );
    let (requests, taken) = mpsc::channel::<ConnectRequest>();
    let taken = Mutex::new(taken);
    let started = Instant::now();
    thread::scope(|threads| {
        for _ in 0..AT_ONCE {
            threads.spawn(|| {
                loop {
                    let request = taken.lock().unwrap().recv();
                    let Ok(request) = request else { break };
                    serve(&serving, request, &accepted);
                }
            });
        }
        let clients: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                threads.spawn(|| {
                    loop {
                        let nth = next.fetch_add(1, Ordering::Relaxed);
                        if nth >= CONNECTIONS {
                            break;
                        }
                        client(&side, addr, nth, &accepted);
                    }
                })
            })
            .collect();
        let mut patience = 0;
        while clients.iter().any(|client| !client.is_finished()) || patience < 2 {
            match listener.request(Some(Duration::from_millis(10))).unwrap() {
                Some(request) => requests.send(request).unwrap(),
                None => patience += 1,
            }
        }
        drop(requests);
    });
    drop(listener);
    let wanted = (0..CONNECTIONS).filter(|nth| Ends::of(*nth) == Ends::Disconnected);
    let wanted = wanted.count();
    assert!(
        (CONNECTIONS / 2..CONNECTIONS * 3 / 4).contains(&wanted),
        "{wanted}"
    );
    let made = accepted.iter().filter(|made| made.load(Ordering::Relaxed));
    assert_eq!(made.count(), wanted);
    let left = (descriptors(), identifiers());
    println!(
        "{wanted} of {CONNECTIONS} connected in {:?}",
        started.elapsed()
    );
    assert_eq!(left, before, "descriptors and identifiers");
}
