//! Connecting over datagrams on a device.

use std::thread;

use verbs_channel::connect::{DatagramListener, Met};
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::path::DatagramEndpoint;
use verbs_channel::{BufferPool, Channel, Connect, Datagrams, Peer, PollStrategy};
use verbs_harness::{PATIENCE, begin};

use super::ends::{here, there};

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
