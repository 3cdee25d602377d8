//! Connecting by the connection manager: to an IP address of an RDMA device.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _};

use verbs_core::rdmacm::{
    AddrResolved, ConnectRequest, Connected, Connector, Listener, Pending, RouteResolved,
};
use verbs_harness::pair::Side;
use verbs_harness::{PATIENCE, Test, until};

/// A server on the peer's device; returns from the test where there can be none.
macro_rules! server {
    ($test:expr) => {
        match Server::new(&$test, &verbs_harness::peer_name()) {
            Some(server) => server,
            None => return,
        }
    };
}

mod connect;
mod datagrams;
mod facts;
mod many;
mod multicast;
mod private_data;
mod programs;

/// A side that listens, and the address.
struct Server {
    side: Side,
    listener: Listener,
    addr: SocketAddr,
}

impl Server {
    fn new(test: &Test, device: &str) -> Option<Self> {
        let side = Side::new(device);
        let Some(ip) = verbs_harness::ip(&side.context) else {
            test.skip("the device has no IPv4 address");
            return None;
        };
        let listener = match Listener::bind((ip, 0).into(), 16) {
            Err(error) if error.errno() == Some(libc::ENODEV) => {
                test.skip(format!("the kernel has no connection manager: {error}"));
                return None;
            }
            listener => listener.unwrap(),
        };
        let addr = listener.local_addr().unwrap();
        assert_ne!(addr.port(), 0);
        Some(Self {
            side,
            listener,
            addr,
        })
    }

    fn request(&mut self) -> ConnectRequest {
        self.listener.request(Some(PATIENCE)).unwrap().unwrap()
    }
}

fn resolved(connector: Connector, addr: SocketAddr) -> AddrResolved {
    let resolving = connector.resolve_addr(addr, PATIENCE).unwrap();
    resolving.wait(Some(PATIENCE)).unwrap()
}

fn route(connector: Connector, addr: SocketAddr) -> RouteResolved {
    let resolving = resolved(connector, addr).resolve_route(PATIENCE).unwrap();
    resolving.wait(Some(PATIENCE)).unwrap()
}

/// The side of a client: the route chooses the device.
fn client(addr: SocketAddr) -> (Side, RouteResolved) {
    client_by(Connector::new().unwrap(), addr)
}

/// The same, with the options of this connector.
fn client_by(connector: Connector, addr: SocketAddr) -> (Side, RouteResolved) {
    let route = route(connector, addr);
    (Side::new(&route.device_name()), route)
}

/// Ends both steps, whichever is first.
fn both(mut one: Pending<Connected>, mut other: Pending<Connected>) -> [Connected; 2] {
    let mut ends = [None, None];
    let connected = until(PATIENCE, || {
        for (end, step) in ends.iter_mut().zip([&mut one, &mut other]) {
            if end.is_none() {
                *end = step.poll().unwrap();
            }
        }
        ends.iter().all(Option::is_some)
    });
    assert!(connected, "the peers connect");
    ends.map(Option::unwrap)
}

fn connected(server: &mut Server) -> ((Side, Connected), Connected) {
    let (side, route) = client(server.addr);
    let asks = route.connect(side.prepared(), b"please").unwrap();
    let request = server.request();
    let answers = request.accept(server.side.prepared(), b"gladly").unwrap();
    let [asked, answered] = both(asks, answers);
    ((side, asked), answered)
}

/// Whether a descriptor is readable now.
fn readable(fd: &impl AsFd) -> bool {
    let mut entry = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `entry` is one local entry.
    unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
}
