//! The exchange of endpoints over datagrams: both sides connect, or both fail in time.

use std::time::{Duration, Instant};

use verbs_channel::__private::datagram_exchange::{Acceptor, Connector, RequestId, Step};
use verbs_channel::{BufferPool, Channel, Datagrams, PreparedChannel};

use crate::messages::domains;
use crate::world::World;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A side of the exchange, and its channel.
struct Side {
    datagrams: Datagrams,
    pool: BufferPool,
    prepared: Option<PreparedChannel>,
    channel: Option<Channel>,
    is_over: bool,
}

pub(crate) fn run(world: &mut World) {
    let Some(pds) = domains(world) else { return };
    let sides = pds.each_ref().map(|pd| {
        Some(Side {
            datagrams: Datagrams::builder(pd).build().ok()?,
            pool: BufferPool::new(pd, 512, 16).ok()?,
            prepared: Some(world.builder(pd).build().ok()?),
            channel: None,
            is_over: false,
        })
    });
    let [Some(mut client), Some(mut server)] = sides else {
        assert!(!world.is_gentle);
        return;
    };
    if world.random.one_in(3) {
        world
            .fabric
            .link(&world.hosts[0], &world.hosts[1])
            .loss(0.3);
    }
    let start = Instant::now();
    let endpoint = client.prepared.as_ref().expect("prepared").endpoint();
    let (to, max) = (server.datagrams.endpoint(), client.datagrams.max_payload());
    let connector = Connector::new(&to, &endpoint, b"hello", max, start, TIMEOUT);
    let mut connector = connector.expect("it fits into a datagram");
    let mut acceptor = Acceptor::new(server.datagrams.max_payload(), 4, start);
    let mut request = None;
    while !(client.is_over && server.is_over) {
        connect(&mut client, &mut connector);
        accept(&mut server, &mut acceptor, &mut request);
        if world.random.one_in(20) {
            let qp_nums = [&client, &server].map(|side| Some(side.datagrams.endpoint().qp_num()));
            world.trouble(false, qp_nums);
        }
        world.fabric.run_for(Duration::from_millis(1));
        // The client may never have come.
        server.is_over |= client.is_over && request.is_none();
        assert!(start.elapsed() < 3 * TIMEOUT, "it never ends");
    }
    match (client.channel, server.channel) {
        (Some(client), Some(server)) => works(world, client, server),
        _ => assert!(!world.is_gentle, "they are not connected"),
    }
}

/// Does what the client's side has to do now.
fn connect(side: &mut Side, connector: &mut Connector) {
    while !side.is_over {
        while let Ok(Some(datagram)) = side.datagrams.receive_from(Duration::ZERO) {
            connector.received(&datagram);
        }
        let server = connector.server();
        match connector.step(Instant::now()) {
            Ok(Step::Send(bytes)) => {
                if let Ok(Some(block)) = side.pool.take_with(bytes) {
                    // One that is not sent is one that is lost.
                    let _rejected = side.datagrams.try_send_to(&server, block);
                }
            }
            Ok(Step::Wait(_)) => return,
            Ok(Step::Done(peer)) => match side.prepared.take() {
                Some(prepared) => match prepared.handshake(&peer.endpoint) {
                    Ok(channel) => {
                        side.channel = Some(channel);
                        connector.ready();
                    }
                    Err(error) => connector.refuse(&error),
                },
                None => side.is_over = true,
            },
            Err(_) => {
                side.channel = None;
                side.is_over = true;
            }
        }
    }
}

/// The same for the server's side. It goes on answering when it is connected.
fn accept(side: &mut Side, acceptor: &mut Acceptor, request: &mut Option<RequestId>) {
    while let Ok(Some(datagram)) = side.datagrams.receive_from(Duration::ZERO) {
        let answer = acceptor.received(&datagram.from(), &datagram, Instant::now());
        send(side, answer);
    }
    if let (None, Some(next)) = (&request, acceptor.next_request(Instant::now())) {
        *request = Some(next.id());
        let prepared = side.prepared.take().expect("the first client");
        let (id, ours) = (next.id(), prepared.endpoint());
        let answer = match prepared.handshake(&next.peer().endpoint) {
            Ok(channel) => {
                side.channel = Some(channel);
                acceptor.answer(id, &ours, b"welcome", Instant::now()).ok()
            }
            Err(error) => acceptor.refuse(id, &error),
        };
        send(side, answer);
    }
    if let Some(id) = *request
        && let Some(outcome) = acceptor.outcome(id, Instant::now())
        && !side.is_over
    {
        side.is_over = true;
        if outcome.is_err() {
            side.channel = None;
        }
    }
}

fn send(side: &mut Side, answer: Option<verbs_channel::__private::datagram_exchange::Answer>) {
    if let Some(answer) = answer
        && let Ok(Some(block)) = side.pool.take_with(&answer.bytes)
    {
        let _rejected = side.datagrams.try_send_to(&answer.to, block);
    }
}

/// A message goes from one to the other.
fn works(world: &World, mut client: Channel, mut server: Channel) {
    if !world.is_gentle {
        return;
    }
    let into = server.pd().reg_mr(vec![0; 8]).expect("nothing fails");
    let ticket = server.start_receive(into).expect("it has room");
    let hello = client
        .pd()
        .reg_mr(b"hello".to_vec())
        .expect("nothing fails");
    client
        .send(hello.gather_element(..).expect("all of it"))
        .expect("they are connected");
    let received = server
        .wait(ticket, None)
        .expect("it was not taken")
        .expect("it has come");
    assert_eq!(received.message(), Some(&b"hello"[..]));
}
