//! Many clients and one server in a simulated network, all of which restart now and then.

use std::collections::{HashMap, HashSet, VecDeque};

use super::network::{Network, Packet};
use super::*;

const CLIENTS: u32 = 8;
const TIMEOUT: Duration = Duration::from_secs(20);

/// The numbers of both queue pairs of a connection: the client's, then the server's.
type Connection = (u32, u32);

struct Client {
    place: DatagramEndpoint,
    // The PSN of its queue pair. The other numbers are the same after a restart.
    psn: u32,
    began: Duration,
    connector: Connector,
    // Its handshake lasts until then.
    handshake: Option<Duration>,
    outcome: Option<Result<u32, ExchangeError>>,
}

struct Server {
    acceptor: Acceptor,
    accepting: Option<Accepting>,
    // Nothing is done before: the program does something else.
    busy_until: Duration,
    inbox: VecDeque<Packet>,
}

struct Accepting {
    id: RequestId,
    client: u32,
    psn: u32,
    handshake: Option<Duration>,
}

struct World {
    seed: u64,
    start: Instant,
    now: Duration,
    network: Network,
    next_psn: u32,
    clients: Vec<Client>,
    server: Server,
    // The peer that each client has connected its queue pair to.
    client_handshakes: HashMap<u32, u32>,
    connected_at_server: HashSet<Connection>,
    // The queue pairs of a server that restarted before it had an outcome.
    gone: HashSet<u32>,
    failed_at_server: usize,
}

impl World {
    fn new(seed: u64, loss: u64) -> Self {
        let start = Instant::now();
        let mut world = Self {
            seed,
            start,
            now: Duration::ZERO,
            network: Network::new(seed, loss),
            next_psn: 0,
            clients: Vec::new(),
            server: Server {
                acceptor: Acceptor::new(MTU, LIMIT, start),
                accepting: None,
                busy_until: Duration::ZERO,
                inbox: VecDeque::new(),
            },
            client_handshakes: HashMap::new(),
            connected_at_server: HashSet::new(),
            gone: HashSet::new(),
            failed_at_server: 0,
        };
        for number in 1..=CLIENTS {
            let client = world.client(number);
            world.clients.push(client);
        }
        world
    }

    fn psn(&mut self) -> u32 {
        self.next_psn += 1;
        self.next_psn
    }

    fn client(&mut self, number: u32) -> Client {
        let psn = self.psn();
        let ours = endpoint(0x100 + number, psn);
        let (server, data) = (place(0), psn.to_be_bytes());
        let now = self.start + self.now;
        Client {
            place: place(number),
            psn,
            began: self.now,
            connector: Connector::new(&server, &ours, &data, MTU, now, TIMEOUT).unwrap(),
            handshake: None,
            outcome: None,
        }
    }

    /// A process is killed and started again: the same endpoints, other queue pairs.
    fn restart_a_client(&mut self) {
        let number = self.network.numbers.below(CLIENTS);
        let client = self.client(number + 1);
        self.clients[number as usize] = client;
    }

    fn restart_the_server(&mut self) {
        self.server.acceptor = Acceptor::new(MTU, LIMIT, self.start + self.now);
        self.server.inbox.clear();
        if let Some(accepting) = self.server.accepting.take() {
            self.gone.insert(accepting.psn);
        }
    }

    fn deliver(&mut self) {
        while let Some(packet) = self.network.arrived(self.now) {
            if packet.to == place(0) {
                // One datagram for each receive.
                if self.server.inbox.len() < 64 {
                    self.server.inbox.push_back(packet);
                }
            } else {
                let mut clients = self.clients.iter_mut();
                let client = clients.find(|client| client.place == packet.to).unwrap();
                client.connector.received(&packet.bytes);
            }
        }
    }

    /// Runs a client as far as it goes now. Returns when it goes on.
    fn step(&mut self, at: usize) -> Option<Duration> {
        let client = &mut self.clients[at];
        if client.outcome.is_some() {
            return None;
        }
        if let Some(until) = client.handshake {
            if self.now < until {
                return Some(until);
            }
            client.handshake = None;
            client.connector.ready();
        }
        loop {
            match client.connector.step(self.start + self.now) {
                Ok(Step::Send(bytes)) => {
                    let way = [client.place, place(0)];
                    self.network.send(self.now, way, bytes);
                }
                Ok(Step::Wait(until)) => return Some(until - self.start),
                Ok(Step::Done(peer)) => {
                    let psn = peer.endpoint.psn().get();
                    assert_eq!(peer.private_data, psn.to_be_bytes());
                    if self.client_handshakes.insert(client.psn, psn).is_none() {
                        let takes = self.network.numbers.below(30_000_u64);
                        let until = self.now + Duration::from_micros(takes);
                        client.handshake = Some(until);
                        return Some(until);
                    }
                    client.outcome = Some(Ok(psn));
                    return None;
                }
                Err(error) => {
                    client.outcome = Some(Err(error));
                    assert!(self.now <= client.began + TIMEOUT + SECOND);
                    return None;
                }
            }
        }
    }

    fn answer(&mut self, answer: Option<Answer>) {
        if let Some(Answer { to, bytes }) = answer {
            assert!(bytes.len() <= MTU as usize);
            self.network.send(self.now, [place(0), to], &bytes);
        }
    }

    fn serve(&mut self) -> Option<Duration> {
        if self.now < self.server.busy_until {
            return Some(self.server.busy_until);
        }
        let now = self.start + self.now;
        while let Some(packet) = self.server.inbox.pop_front() {
            let Packet { from, bytes, .. } = packet;
            let answer = self.server.acceptor.received(&from, &bytes, now);
            self.answer(answer);
        }
        let Some(accepting) = &mut self.server.accepting else {
            let request = self.server.acceptor.next_request(now)?;
            let (client, psn) = (request.peer().endpoint.psn().get(), self.psn());
            assert_eq!(request.peer().private_data, client.to_be_bytes());
            let takes = self.network.numbers.below(30_000_u64);
            let until = self.now + Duration::from_micros(takes);
            self.server.accepting = Some(Accepting {
                id: request.id(),
                client,
                psn,
                handshake: Some(until),
            });
            // Its thread is in the handshake: nothing is received.
            self.server.busy_until = until;
            return Some(until);
        };
        let (id, psn, client) = (accepting.id, accepting.psn, accepting.client);
        if accepting.handshake.take().is_some() {
            let ours = endpoint(0x99, psn);
            let answer = self
                .server
                .acceptor
                .answer(id, &ours, &psn.to_be_bytes(), now);
            match answer {
                Ok(answer) => self.answer(Some(answer)),
                Err(_) => return self.accepted(false),
            }
        }
        match self.server.acceptor.outcome(id, now) {
            Some(Ok(())) => {
                assert!(self.connected_at_server.insert((client, psn)));
                self.accepted(true)
            }
            Some(Err(_)) => self.accepted(false),
            None => Some(self.server.acceptor.due(id).unwrap() - self.start),
        }
    }

    /// The program has a channel, or none, and does something else for a while.
    fn accepted(&mut self, well: bool) -> Option<Duration> {
        self.failed_at_server += usize::from(!well);
        self.server.accepting = None;
        let busy = self.network.numbers.below(50_000_u64);
        self.server.busy_until = self.now + Duration::from_micros(busy);
        Some(self.server.busy_until)
    }

    fn run(&mut self, mut restarts: u32) {
        // Until all have ended, and what is on its way then has arrived, too.
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 1_000_000, "seed {}: no end", self.seed);
            if restarts > 0 && self.network.numbers.percent(2) {
                restarts -= 1;
                if self.network.numbers.percent(20) {
                    self.restart_the_server();
                } else {
                    self.restart_a_client();
                }
            }
            self.deliver();
            let mut wakes = vec![self.serve()];
            wakes.extend((0..self.clients.len()).map(|at| self.step(at)));
            wakes.push(self.network.next_arrival());
            let Some(next) = wakes.into_iter().flatten().min() else {
                return;
            };
            // Time does not stand still.
            self.now = next.max(self.now + Duration::from_micros(1));
        }
    }

    fn check(&mut self) {
        let seed = self.seed;
        for (client, server) in &self.connected_at_server {
            let is = self.client_handshakes.get(client);
            assert_eq!(is, Some(server), "seed {seed}: the server has a stranger");
        }
        for client in &self.clients {
            if let Some(Ok(server)) = client.outcome {
                let connected = self.connected_at_server.contains(&(client.psn, server));
                let gone = self.gone.contains(&server);
                assert!(
                    connected || gone,
                    "seed {seed}: the server does not have it"
                );
            }
        }
        let both = self.connected_at_server.len();
        let of = |which: fn(&Connection) -> u32| -> usize {
            let all: HashSet<_> = self.connected_at_server.iter().map(which).collect();
            all.len()
        };
        assert_eq!(
            [of(|(client, _)| *client), of(|(_, server)| *server)],
            [both; 2]
        );
        // Whatever happened, nothing is kept for ever.
        let later = self.start + self.now + 61 * SECOND;
        assert!(self.server.acceptor.next_request(later).is_none());
        assert_eq!(self.server.acceptor.clients(), 0, "seed {seed}");
    }

    fn connected(&self) -> usize {
        let is_ok = |client: &&Client| matches!(client.outcome, Some(Ok(_)));
        self.clients.iter().filter(is_ok).count()
    }
}

/// How many networks of each kind.
const SEEDS: u64 = 12;

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and the protocol has no unsafe code")]
fn all_clients_connect_whatever_is_lost_late_or_twice() {
    for seed in 0..SEEDS {
        for loss in [0, 10, 30] {
            let mut world = World::new(seed, loss);
            world.run(0);
            world.check();
            let connected = world.connected();
            assert_eq!(connected, CLIENTS as usize, "seed {seed}, {loss} % lost");
            assert_eq!(world.failed_at_server, 0, "seed {seed}, {loss} % lost");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and the protocol has no unsafe code")]
fn numbers_of_peers_that_restarted_are_never_mixed() {
    let mut connected = 0;
    for seed in 1000..1000 + 2 * SEEDS {
        let mut world = World::new(seed, 20);
        world.run(12);
        world.check();
        connected += world.connected();
    }
    // The network works: most do connect.
    assert!(connected > usize::try_from(SEEDS).unwrap() * CLIENTS as usize);
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and the protocol has no unsafe code")]
fn all_clients_fail_in_time_if_everything_is_lost() {
    let mut world = World::new(1, 100);
    world.run(0);
    world.check();
    assert_eq!(world.connected(), 0);
    assert!(world.now <= TIMEOUT + SECOND);
}
