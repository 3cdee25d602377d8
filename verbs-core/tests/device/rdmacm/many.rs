//! Many connections at once, some of which are given up.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use verbs_core::rdmacm::{ConnectRequest, Connected, Connector, Listener, Pending};
use verbs_core::{PreparedQueuePair, QueuePair};
use verbs_harness::pair::Side;
use verbs_harness::{PATIENCE, begin, peer_name};

use super::{Server, connected};

/// How many there are, unless `MANY_CONNECTIONS` names another number: a thousand take half a minute on a
/// busy emulated machine.
const CONNECTIONS: usize = 128;
const AT_ONCE: usize = 64;

/// What a client sends that abandons its request.
const GIVES_UP: &[u8; 9] = b"gives up!";
/// How long a server waits for it: its rejection may get lost.
const A_MOMENT: Duration = Duration::from_millis(200);

/// The kernel's identifiers of all programs.
fn identifiers() -> usize {
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
    let builder = QueuePair::builder(&side.pd, &side.send_cq, &side.recv_cq);
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

/// One client's life.
fn client(side: &Side, addr: std::net::SocketAddr, ends: Ends) {
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
    let gives_up = ends == Ends::Connecting;
    let message = if gives_up { GIVES_UP } else { b"stays put" };
    let route = step.wait(Some(PATIENCE)).unwrap();
    let mut step = route.connect(small(side), message).unwrap();
    if gives_up {
        // Some are answered already.
        return drop(step.poll().unwrap());
    }
    let Connected { mut connection, .. } = step.wait(Some(PATIENCE)).unwrap();
    connection.disconnect().unwrap();
    assert!(connection.wait_disconnected(Some(PATIENCE)).unwrap());
}

/// One server's part; whether it connected a client that stays.
fn serve(side: &Side, request: ConnectRequest) -> bool {
    let gives_up = request.private_data().message() == Some(&GIVES_UP[..]);
    let patience = if gives_up { A_MOMENT } else { PATIENCE };
    let accepted = request.accept(small(side), b"");
    match accepted.and_then(|step: Pending<Connected>| step.wait(Some(patience))) {
        Ok(Connected { mut connection, .. }) => {
            assert!(connection.wait_disconnected(Some(PATIENCE)).unwrap());
            // The client may have destroyed its identifier.
            drop(connection.disconnect());
            !gives_up
        }
        Err(error) => {
            assert!(gives_up, "{error}");
            false
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn many_connections_at_once_leave_nothing() {
    let test = begin!(alone);
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    // What librdmacm keeps is there after the first one.
    let ((side, asked), answered) = connected(&mut server);
    drop((asked, answered));
    let before = (descriptors(), identifiers());
    // With room for all requests: one that is dropped comes again after seconds.
    let mut listener = Listener::bind((server.addr.ip(), 0).into(), 0).unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = server.side;
    let count = std::env::var("MANY_CONNECTIONS").map_or(CONNECTIONS, |text| text.parse().unwrap());
    let (next, made) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (requests, taken) = mpsc::channel::<ConnectRequest>();
    let taken = Mutex::new(taken);
    let started = Instant::now();
    thread::scope(|threads| {
        for _ in 0..AT_ONCE {
            threads.spawn(|| {
                loop {
                    let request = taken.lock().unwrap().recv();
                    let Ok(request) = request else { break };
                    made.fetch_add(serve(&serving, request).into(), Ordering::Relaxed);
                }
            });
        }
        let clients: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                threads.spawn(|| {
                    loop {
                        let nth = next.fetch_add(1, Ordering::Relaxed);
                        if nth >= count {
                            break;
                        }
                        client(&side, addr, Ends::of(nth));
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
    let wanted = (0..count)
        .filter(|nth| Ends::of(*nth) == Ends::Disconnected)
        .count();
    assert!(wanted > count / 2 && wanted < count * 3 / 4, "{wanted}");
    assert_eq!(made.into_inner(), wanted);
    let left = (descriptors(), identifiers());
    println!("{wanted} of {count} connected in {:?}", started.elapsed());
    assert_eq!(left, before, "descriptors and identifiers");
}
