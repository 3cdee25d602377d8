//! Messages of hostile peers.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use soft_nic::{Random, Route};

use super::{Manager, Sink, Space};
use crate::event::EventQueue;
use crate::network::random::below;
use crate::rdmacm::message::{KINDS, Kind, Message};

#[test]
fn messages_of_any_bytes_neither_panic_nor_make_more_than_the_backlog() {
    const BACKLOG: u32 = 3;
    let mut random = Random::new(1);
    for _ in 0..200 {
        let mut manager = Manager::new(random.number());
        let [here, there]: [Ipv6Addr; 2] =
            ["::ffff:10.0.0.1", "::ffff:10.0.0.2"].map(|it| it.parse().unwrap());
        manager.add(0, &[here], 3);
        let queue = Arc::new(EventQueue::new().unwrap());
        let sink = || Sink {
            queue: Arc::clone(&queue),
            unacknowledged: Arc::default(),
        };
        let mut numbers = vec![0];
        for space in [Space::Connections, Space::Datagrams] {
            let listener = manager.create(0, space, sink());
            manager.bind(listener, ([0, 0, 0, 0], 7).into()).unwrap();
            manager.listen(listener, BACKLOG).unwrap();
            numbers.push(listener);
        }
        for step in 0..200 {
            let mut message =
                Message::new(KINDS[below(&mut random, KINDS.len())].0, random.number());
            for at in (0..232).step_by(8).filter(|_| step % 2 == 0) {
                message = message.set(at, &random.number().to_be_bytes());
            }
            let number = numbers[below(&mut random, numbers.len())];
            let space = [0x106_u64, 0x111, 0x13f][below(&mut random, 3)];
            message = message.set_u32(0, step + 1).set_u32(4, number);
            if matches!(message.kind, Kind::Request | Kind::ServiceRequest) {
                message = message.set(8, &(space << 16 | 7).to_be_bytes());
                let data = KINDS[message.kind as usize].1;
                message = message.set(data, &[0, [0x40, 0x60, 0x70][below(&mut random, 3)]]);
            }
            let mut datagram = message.datagram;
            if below(&mut random, 8) == 0 {
                datagram[below(&mut random, 24)] ^= 1;
            }
            let now = Duration::from_millis(u64::from(step));
            manager.receive(0, now, &Route::new(there, here), datagram);
            manager.expire(now);
            numbers.extend(manager.endpoints.keys());
        }
        assert!(manager.endpoints.len() <= 2 + 2 * BACKLOG as usize);
        // Listeners first: requests that nobody has taken are rejected.
        for number in numbers {
            manager.destroy(number);
        }
        assert!(manager.endpoints.is_empty() && queue.split_off(|_| true).is_empty());
    }
}
