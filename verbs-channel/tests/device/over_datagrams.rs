//! Connecting over datagrams on a device: many peers, and a network that loses some.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use verbs_channel::connect::{DatagramListener, Met};
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::path::DatagramEndpoint;
use verbs_channel::{BufferPool, Channel, Connect, Datagrams, Peer, PollStrategy};
use verbs_harness::{PATIENCE, begin};

use super::ends::{here, there};

const PEERS: u8 = 8;

fn datagrams(pd: &ProtectionDomain) -> Datagrams {
    let strategy = PollStrategy::Notify { after: 10 };
    Datagrams::builder(pd).strategy(strategy).build().unwrap()
}

fn builder(pd: &ProtectionDomain) -> verbs_channel::ChannelConfig {
    Channel::builder(pd)
        .timeout(PATIENCE)
        .strategy(PollStrategy::Notify { after: 10 })
        .config()
}

/// A server that passes datagrams on to another, and its answers back, and drops one in four.
struct Relay {
    datagrams: Datagrams,
    pool: BufferPool,
    server: DatagramEndpoint,
    clients: HashMap<[u8; 8], DatagramEndpoint>,
}

impl Relay {
    fn new(pd: &ProtectionDomain, server: DatagramEndpoint) -> Self {
        let datagrams = datagrams(pd);
        Self {
            pool: BufferPool::new(pd, datagrams.max_payload() as usize, 64).unwrap(),
            datagrams,
            server,
            clients: HashMap::new(),
        }
    }

    fn run(mut self, until: &AtomicBool, dropped: &AtomicU32) {
        let mut random = u64::from(std::process::id());
        println!("seed {random}");
        while !until.load(Ordering::SeqCst) {
            let soon = Some(Duration::from_millis(10));
            let Some(datagram) = self.datagrams.receive_from(soon).unwrap() else {
                continue;
            };
            // The number of the exchange.
            let client = datagram[8..16].try_into().unwrap();
            let to = if datagram.from().qp_num() == self.server.qp_num()
                && datagram.from().gid() == self.server.gid()
            {
                self.clients[&client]
            } else {
                self.clients.insert(client, datagram.from());
                self.server
            };
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            if (random >> 33) % 4 == 0 {
                dropped.fetch_add(1, Ordering::SeqCst);
            } else if let Some(copy) = self.pool.take_with(&datagram).unwrap() {
                self.datagrams.send_to(&to, copy).unwrap();
            }
        }
    }
}

/// Ends the relay, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Connects, and sends a message to and fro.
fn is_echoed(pd: &ProtectionDomain, server: &DatagramEndpoint, number: u8) {
    let mut prepared = builder(pd).build().unwrap();
    let pool = BufferPool::new(pd, 64, 2).unwrap();
    prepared.start_receive(pool.take().unwrap()).unwrap();
    let mut datagrams = datagrams(pd);
    let met = prepared.connect(
        Peer::Datagrams(&mut datagrams, *server),
        Connect::within(PATIENCE).private_data(&[number]),
    );
    let Met {
        mut channel,
        private_data: data,
        ..
    } = met.unwrap();
    assert_eq!(data, b"the server");
    let message = pd.reg_mr(vec![number; 40]).unwrap();
    channel.send(message.gather_element(..).unwrap()).unwrap();
    let ticket = channel.prepared_receives().remove(0);
    let (received, block) = channel.wait_success(ticket).unwrap();
    assert_eq!(received.message_in(&block).unwrap(), [number + 100; 40]);
}

fn echo(pd: &ProtectionDomain, channel: &mut Channel, number: u8) {
    let ticket = channel.prepared_receives().remove(0);
    let (received, block) = channel.wait_success(ticket).unwrap();
    assert_eq!(received.message_in(&block).unwrap(), [number; 40]);
    let answer = pd.reg_mr(vec![number + 100; 40]).unwrap();
    channel.send(answer.gather_element(..).unwrap()).unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn eight_peers_connect_over_a_network_that_loses_datagrams() {
    let _test = begin!(iwarp lacks "datagrams");
    let (near, far) = (here(), there());
    let mut listener = DatagramListener::new(datagrams(&far)).unwrap();
    let relay = Relay::new(&near, listener.endpoint());
    let by_way_of = relay.datagrams.endpoint();
    let (is_over, dropped) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| relay.run(&is_over, &dropped));
        let near = &near;
        let clients: Vec<_> = (1..=PEERS)
            .map(|number| scope.spawn(move || is_echoed(near, &by_way_of, number)))
            .collect();
        let pool = BufferPool::new(&far, 64, PEERS.into()).unwrap();
        let mut numbers = Vec::new();
        let channels: Vec<_> = (1..=PEERS)
            .map(|_| {
                let mut prepared = builder(&far).build().unwrap();
                prepared.start_receive(pool.take().unwrap()).unwrap();
                let met = prepared.accept(
                    &mut listener,
                    Connect::within(PATIENCE).private_data(b"the server"),
                );
                let Met {
                    channel,
                    private_data: data,
                    ..
                } = met.unwrap();
                numbers.push(data[0]);
                (channel, data[0])
            })
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=PEERS).collect::<Vec<_>>());
        let far = &far;
        for (mut channel, number) in channels {
            scope.spawn(move || echo(far, &mut channel, number));
        }
        // The last answer to a client may have been lost: it is still served.
        while clients.iter().any(|client| !client.is_finished()) {
            listener.poll().unwrap();
            thread::yield_now();
        }
        for client in clients {
            client.join().unwrap();
        }
    });
    assert!(dropped.load(Ordering::SeqCst) >= u32::from(PEERS));
}

#[test]
#[ignore = "needs an RDMA device"]
fn channels_of_a_group_are_connected_over_datagrams() {
    let _test = begin!(iwarp lacks "datagrams");
    let (near, far) = (here(), there());
    let mut listener = DatagramListener::new(datagrams(&far)).unwrap();
    let server = listener.endpoint();
    thread::scope(|scope| {
        let clients: Vec<_> = (1..=2)
            .map(|number| {
                let near = &near;
                scope.spawn(move || is_echoed(near, &server, number))
            })
            .collect();
        let mut group = builder(&far).group(2).unwrap();
        let pool = BufferPool::new(&far, 64, 2).unwrap();
        for _ in &clients {
            let mut prepared = group.prepare().unwrap();
            prepared.start_receive(pool.take().unwrap()).unwrap();
            let met = prepared.accept(
                &mut listener,
                Connect::within(PATIENCE).private_data(b"the server"),
            );
            let Met {
                channel: member,
                private_data: data,
                ..
            } = met.unwrap();
            let id = group.join(member).unwrap();
            let mut channel = group.channel(id).unwrap();
            let ticket = channel.prepared_receives().remove(0);
            let (received, block) = channel.wait_success(ticket).unwrap();
            assert_eq!(received.message_in(&block).unwrap(), [data[0]; 40]);
            let answer = far.reg_mr(vec![data[0] + 100; 40]).unwrap();
            channel.send(answer.gather_element(..).unwrap()).unwrap();
        }
        for client in clients {
            client.join().unwrap();
        }
    });
}
