//! Connecting two queue pairs by the connection manager, as iWARP has to.

use std::time::Duration;

use verbs_core::rdmacm::{Connector, Listener};
use verbs_core::{PreparedQueuePair, QueuePair};

use super::PATIENCE;
use super::pair::Side;

/// Connects a queue pair of each side to the other. The connections are kept by the sides.
pub fn connect(
    (a, qa): (&Side, PreparedQueuePair),
    (b, qb): (&Side, PreparedQueuePair),
) -> [QueuePair; 2] {
    let addr = |side: &Side| side.context.local_addr().unwrap();
    let mut listener = Listener::bind(addr(b), 1).unwrap();
    let mut connector = Connector::new().unwrap();
    // The address chooses the device.
    connector.bind(addr(a)).unwrap();
    let server = listener.local_addr().unwrap();
    // The kernel may miss the answer to its ARP request, and looks again when this is over.
    let again = Duration::from_secs(1);
    let resolving = connector.resolve_addr(server, again).unwrap();
    let resolved = resolving.wait(Some(PATIENCE)).unwrap();
    let resolving = resolved.resolve_route(PATIENCE).unwrap();
    let route = resolving.wait(Some(PATIENCE)).unwrap();
    let asks = route.connect(qa, b"").unwrap();
    let request = listener.request(Some(PATIENCE)).unwrap();
    let answers = request.unwrap().accept(qb, b"").unwrap();
    let [asked, answered] = [asks, answers].map(|step| step.wait(Some(PATIENCE)).unwrap());
    [(a, asked), (b, answered)].map(|(side, connected)| {
        side.keep(connected.connection);
        connected.queue_pair
    })
}
