//! Datagrams, blocking and async: each arrives whole, from whom it is, as often as links repeat it, or not at all.

use std::collections::HashMap;
use std::time::Duration;

use verbs_async::AsyncDatagrams;
use verbs_channel::datagrams::Datagram;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::path::DatagramEndpoint;
use verbs_channel::{BufferPool, Datagrams, OwnedBuffer};

use crate::alone::{alone, thread_ends};
use crate::messages::domains;
use crate::tasks::LONG;
use crate::world::{World, bytes};

const BLOCK: usize = 64;
const BLOCKS: usize = 16;
/// A wait that ends before most things have happened.
const SHORT: Duration = Duration::from_millis(1);

/// Where the number of a datagram is.
const NUMBER: usize = 8;

/// An endpoint, blocking or async.
enum End {
    Blocking(Box<Datagrams>),
    Async(AsyncDatagrams),
}

impl End {
    fn new(world: &mut World, pd: &ProtectionDomain) -> Option<Self> {
        let builder = Datagrams::builder(pd).max_send_wr(8).max_recv_wr(8);
        if world.random.one_in(2) {
            return Some(Self::Blocking(Box::new(builder.build().ok()?)));
        }
        // Helper threads make its address handles, and an idle one may be left for later calls.
        world.is_repeatable = false;
        let events = world.events(pd)?;
        let datagrams = AsyncDatagrams::create(builder, &events).ok()?;
        Some(Self::Async(datagrams))
    }

    fn endpoint(&self) -> DatagramEndpoint {
        match self {
            Self::Blocking(end) => end.endpoint(),
            Self::Async(end) => end.endpoint(),
        }
    }

    /// Returns whether the datagram was posted.
    fn send(
        &mut self,
        world: &World,
        to: &DatagramEndpoint,
        buffer: OwnedBuffer,
        is_first: bool,
    ) -> Result<bool, String> {
        let sent = match self {
            Self::Blocking(end) => {
                let sent = end.try_send_to(to, buffer);
                return match sent.map_err(|rejected| rejected.into_parts().0) {
                    Err(error) if !error.is_backpressure() => Err(error.to_string()),
                    sent => Ok(sent.is_ok()),
                };
            }
            // A thread makes an address handle.
            Self::Async(end) if is_first => Some(thread_ends(end.send_to(to, buffer))),
            Self::Async(end) => world.fabric.block_on(SHORT, end.send_to(to, buffer)),
        };
        let sent = sent.map(|sent| sent.map_err(|rejected| rejected.error().to_string()));
        sent.map_or(Ok(false), |sent| sent.map(|()| true))
    }

    fn receive(&mut self, world: &World, timeout: Duration) -> Result<Option<Datagram>, String> {
        match self {
            Self::Blocking(end) => {
                let received = end.receive_from(Some(timeout));
                received.map_err(|error| error.to_string())
            }
            Self::Async(end) => {
                let received = world.fabric.block_on(timeout, end.receive_from());
                received.transpose().map_err(|error| error.to_string())
            }
        }
    }

    fn close(self, world: &World) -> Result<(), String> {
        match self {
            Self::Blocking(end) => end.close().map_err(|error| error.to_string()),
            Self::Async(end) => {
                let closed = world.fabric.block_on(LONG, end.close());
                let closed = closed.expect("it does not wait for datagrams");
                closed.map_err(|error| error.to_string())
            }
        }
    }
}

pub(crate) fn run(world: &mut World) {
    alone(|| run_alone(world));
}

fn run_alone(world: &mut World) {
    let Some(pds) = domains(world) else { return };
    let made = pds.each_ref().map(|pd| {
        let end = End::new(world, pd)?;
        Some((end, BufferPool::new(pd, BLOCK, BLOCKS).ok()?))
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
        let closed = end.close(world);
        assert!(closed.is_ok() || !world.is_gentle, "{closed:?}");
        assert!(pool.available() == BLOCKS || world.leaks, "blocks are lost");
    }
    let repeated = received.values().filter(|times| **times > 1).count() as u64;
    assert!(repeated <= world.fabric.counts().duplicated);
}

fn send(
    world: &World,
    (end, pool): &mut (End, BufferPool),
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
    let sent = end.send(world, to, buffer, number == 0);
    assert!(sent.is_ok() || !world.is_gentle, "{sent:?}");
    sent == Ok(true)
}

fn receive(
    world: &mut World,
    end: &mut End,
    from: &DatagramEndpoint,
    which: usize,
    posted: usize,
    received: &mut HashMap<(usize, usize), u32>,
) {
    let timeout = [Duration::ZERO, SHORT][world.random.below(2)];
    let datagram = match end.receive(world, timeout) {
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
