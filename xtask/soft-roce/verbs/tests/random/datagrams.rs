//! Datagrams: each arrives whole, from whom it is, as often as links repeat it, or not at all.

use std::collections::HashMap;
use std::time::Duration;

use verbs_channel::verbs_core::DatagramEndpoint;
use verbs_channel::{BufferPool, Datagrams};

use crate::messages::domains;
use crate::world::{World, bytes};

const BLOCK: usize = 64;
const BLOCKS: usize = 16;

/// Where the number of a datagram is.
const NUMBER: usize = 8;

pub(crate) fn run(world: &mut World) {
    let Some(pds) = domains(world) else { return };
    let made = pds.each_ref().map(|pd| {
        let datagrams = Datagrams::builder(pd).max_send_wr(8).max_recv_wr(8).build();
        Some((datagrams.ok()?, BufferPool::new(pd, BLOCK, BLOCKS).ok()?))
    });
    let [Some(a), Some(b)] = made else {
        assert!(!world.is_gentle);
        return;
    };
    let mut ends = [a, b];
    let endpoints = ends.each_ref().map(|(end, _)| end.endpoint());
    let mut posted = [0; 2];
    let mut received = HashMap::new();
    for _ in 0..world.random.below(200) {
        let which = world.random.below(2);
        match world.random.below(12) {
            0..5 => {
                let to = &endpoints[1 - which];
                let length = world.random.below(BLOCK - NUMBER);
                posted[which] +=
                    usize::from(send(world, &mut ends[which], to, posted[which], length));
            }
            5..9 => {
                let from = &endpoints[1 - which];
                receive(
                    world,
                    &mut ends[which].0,
                    from,
                    which,
                    posted[1 - which],
                    &mut received,
                );
            }
            9 => {
                let qp_nums = endpoints.map(|endpoint| Some(endpoint.qp_num()));
                world.trouble(false, qp_nums);
            }
            _ => world.pass(),
        }
    }
    for (end, pool) in ends {
        // It fails if its device has failed.
        let closed = end.close();
        assert!(closed.is_ok() || !world.is_gentle, "{closed:?}");
        assert!(pool.available() == BLOCKS || world.leaks, "blocks are lost");
    }
    let repeated = received.values().filter(|times| **times > 1).count() as u64;
    assert!(repeated <= world.fabric.counts().duplicated);
}

fn send(
    world: &World,
    (end, pool): &mut (Datagrams, BufferPool),
    to: &DatagramEndpoint,
    number: usize,
    length: usize,
) -> bool {
    let Some(block) = pool.take() else {
        return false;
    };
    let mut datagram = number.to_le_bytes().to_vec();
    datagram.extend(bytes(number, length));
    let buffer = block.filled(&datagram).expect("it fits");
    match end.try_send_to(to, buffer) {
        Ok(()) => true,
        Err(rejected) => {
            let is_expected = rejected.error().is_backpressure() || !world.is_gentle;
            assert!(is_expected, "{rejected:?}");
            false
        }
    }
}

fn receive(
    world: &mut World,
    end: &mut Datagrams,
    from: &DatagramEndpoint,
    which: usize,
    posted: usize,
    received: &mut HashMap<(usize, usize), u32>,
) {
    let timeout = [Duration::ZERO, Duration::from_millis(1)][world.random.below(2)];
    let datagram = match end.receive_from(Some(timeout)) {
        Ok(Some(datagram)) => datagram,
        Ok(None) => return,
        Err(error) => {
            assert!(!world.is_gentle, "{error}");
            return;
        }
    };
    assert_eq!(datagram.from(), *from);
    let (number, rest) = datagram.split_first_chunk::<NUMBER>().expect("it is whole");
    let number = usize::from_le_bytes(*number);
    assert!(number < posted, "nobody has sent it");
    assert_eq!(*rest, bytes(number, rest.len()));
    *received.entry((which, number)).or_default() += 1;
}
