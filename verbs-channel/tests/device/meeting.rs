//! Where a client and a server connect: over TCP, or on iWARP by `rdma_cm`.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
#[cfg(feature = "rdmacm")]
use std::sync::Mutex;

use verbs_channel::verbs_core::ProtectionDomain;
#[cfg(feature = "rdmacm")]
use verbs_channel::verbs_core::rdmacm::Listener;
use verbs_channel::{Connected, PreparedChannel};
use verbs_harness::PATIENCE;
#[cfg(feature = "rdmacm")]
use verbs_harness::iwarp::is_iwarp;

#[cfg(feature = "rdmacm")]
use crate::by_manager::pd_to;
use crate::ends::{here, there};

/// A listener of a server on the device under test, and its address.
pub(crate) struct Meeting {
    way: Way,
    pub(crate) address: SocketAddr,
}

enum Way {
    Tcp(TcpListener),
    #[cfg(feature = "rdmacm")]
    Manager(Mutex<Listener>),
}

impl Meeting {
    pub(crate) fn new() -> Self {
        #[cfg(feature = "rdmacm")]
        if is_iwarp() {
            let at = here().context().local_addr().unwrap();
            let listener = Listener::bind(at, 0).unwrap();
            let address = listener.local_addr().unwrap();
            let way = Way::Manager(Mutex::new(listener));
            return Self { way, address };
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let way = Way::Tcp(listener);
        Self { way, address }
    }

    /// Connects the server's end to the next client.
    pub(crate) fn accept<T: Connected>(&self, prepared: PreparedChannel<T>) -> T {
        let accepted = match &self.way {
            Way::Tcp(listener) => prepared.accept(listener, PATIENCE),
            #[cfg(feature = "rdmacm")]
            Way::Manager(listener) => prepared.accept_cm(&mut listener.lock().unwrap(), PATIENCE),
        };
        accepted.unwrap()
    }
}

/// Connects a client's end, with the channel that `prepare` makes.
pub(crate) fn connect<T: Connected>(
    address: SocketAddr,
    prepare: impl FnOnce(&ProtectionDomain) -> PreparedChannel<T>,
) -> T {
    #[cfg(feature = "rdmacm")]
    if is_iwarp() {
        // The address decides on the device.
        let prepared = prepare(&pd_to(address));
        return prepared.connect_cm(address, PATIENCE).unwrap();
    }
    prepare(&there()).connect(address, PATIENCE).unwrap()
}
