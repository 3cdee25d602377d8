//! Connecting over datagrams: clients that are silent, slow or unlucky delay no other, and how an exchange fails.
//!
//! The other side is carried on whenever the side under test polls, so that one thread does all of it, in virtual time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use soft_verbs::{Fabric, Host, Profile};
use verbs_channel::__private::datagram_exchange::{Acceptor, Answer, Connector, RequestId, Step};
use verbs_channel::connect::DatagramListener;
use verbs_channel::exchange::ExchangeError;
use verbs_channel::verbs_core::path::DatagramEndpoint;
use verbs_channel::{
    BufferPool, Channel, Connect, Datagrams, DownReason, Error, Peer, PreparedChannel,
    RejectReason, TransportError,
};
use verbs_harness::logged::{lines, listen, panics};

use super::{LONG, pd};

const SHORT: Duration = Duration::from_millis(60);

/// The time between two polls that find nothing: a packet to nobody is on its way so long.
const TICK: Duration = Duration::from_millis(1);

/// Much more than any of these takes, and less than a silent client used to take.
const PROMPTLY: Duration = Duration::from_millis(900);

fn prepared() -> PreparedChannel {
    Channel::builder(&pd()).build().unwrap()
}

fn datagrams() -> Datagrams {
    Datagrams::builder(&pd()).build().unwrap()
}

fn listener() -> DatagramListener {
    DatagramListener::new(datagrams()).unwrap()
}

/// The end of the other side, which knows nothing of exchanges.
struct Line {
    datagrams: Datagrams,
    pool: BufferPool,
}

impl Line {
    fn new() -> Self {
        let pd = pd();
        let datagrams = Datagrams::builder(&pd).build().unwrap();
        let pool = BufferPool::new(&pd, 1024, 32).unwrap();
        Self { datagrams, pool }
    }

    fn send(&mut self, to: &DatagramEndpoint, bytes: &[u8]) {
        let block = self.pool.take_with(bytes).unwrap().unwrap();
        assert!(self.datagrams.try_send_to(to, block).is_ok());
    }

    fn receive(&mut self) -> Option<(DatagramEndpoint, Vec<u8>)> {
        let datagram = self.datagrams.receive_from(Duration::ZERO).unwrap()?;
        Some((datagram.from(), datagram.to_vec()))
    }
}

/// A host, and others, each at a host of its own, which are carried on with each poll here.
struct Sides<T> {
    fabric: Fabric,
    here: Host,
    hosts: AtomicUsize,
    others: Arc<Mutex<Vec<T>>>,
    modified: Arc<AtomicUsize>,
}

impl<T: Send + 'static> Sides<T> {
    /// `carry_on` is for each of the others.
    fn new(carry_on: fn(&mut T)) -> Self {
        let fabric = Fabric::seeded(1);
        let profile = Profile {
            max_mtu: 1024,
            ..Profile::default()
        };
        let here = fabric.host_with("here", profile);
        let clock = fabric.host("clock");
        fabric.link(&clock, &here).delay(TICK);
        let nobody = here.enter(|| datagrams().endpoint());
        let mut ticks = clock.enter(Line::new);
        let (others, modified) = (Arc::<Mutex<Vec<T>>>::default(), Arc::default());
        let (all, count) = (Arc::clone(&others), Arc::<AtomicUsize>::clone(&modified));
        let step = Mutex::new(move || {
            assert!(ticks.receive().is_none());
            ticks.send(&nobody, b"");
            all.lock().unwrap().iter_mut().for_each(carry_on);
        });
        here.before(move |verb| match verb {
            "ibv_poll_cq" => step.lock().unwrap()(),
            "ibv_modify_qp" => drop(count.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        });
        Self {
            fabric,
            here,
            hosts: AtomicUsize::new(0),
            others,
            modified,
        }
    }

    /// Makes something at a new host.
    fn there<V>(&self, make: impl FnOnce() -> V) -> V {
        let number = self.hosts.fetch_add(1, Ordering::Relaxed);
        self.fabric.host(&number.to_string()).enter(make)
    }

    fn add(&self, other: T) {
        self.others.lock().unwrap().push(other);
    }

    fn modified(&self) -> usize {
        self.modified.load(Ordering::Relaxed)
    }
}

/// A client among others.
struct Guest {
    line: Line,
    server: DatagramEndpoint,
    connector: Connector,
    /// After this many different messages it is silent.
    messages: usize,
    /// How many ACCEPTs are lost.
    loses: usize,
    /// How long its handshake takes; `None` if it fails.
    handshake: Option<Duration>,
    last: Vec<u8>,
    sent: usize,
    accepted: Option<Instant>,
    is_over: bool,
    outcome: Option<Result<(), ExchangeError>>,
}

impl Guest {
    fn new(server: &DatagramListener, number: u8) -> Self {
        Self::with_payload(server, number, 1024)
    }

    fn with_payload(server: &DatagramListener, number: u8, max_payload: u32) -> Self {
        let (line, server, ours) = (Line::new(), server.endpoint(), prepared().endpoint());
        let now = Instant::now();
        let connector = Connector::new(&server, &ours, &[number], max_payload, now, LONG);
        Self {
            line,
            server,
            connector: connector.unwrap(),
            messages: usize::MAX,
            loses: 0,
            handshake: Some(Duration::ZERO),
            last: Vec::new(),
            sent: 0,
            accepted: None,
            is_over: false,
            outcome: None,
        }
    }

    /// Whether it has sent its cookie, or is silent.
    fn has_asked(&self) -> bool {
        self.sent >= 2.min(self.messages)
    }

    fn sends(&mut self) -> Option<Vec<u8>> {
        if self.sent >= self.messages || self.outcome.is_some() {
            return None;
        }
        let now = Instant::now();
        match self.connector.step(now) {
            Ok(Step::Send(bytes)) => {
                self.sent += usize::from(bytes != self.last);
                self.last = bytes.to_vec();
                return Some(self.last.clone());
            }
            Ok(Step::Wait(_)) => {}
            Ok(Step::Done(_)) if !self.is_over => {
                let accepted = *self.accepted.get_or_insert(now);
                match self.handshake {
                    Some(time) if now < accepted + time => return None,
                    Some(_) => self.connector.ready(),
                    None => self.connector.refuse(&ExchangeError::Over),
                }
                self.is_over = true;
                return self.sends();
            }
            Ok(Step::Done(_)) => self.outcome = Some(Ok(())),
            Err(error) => self.outcome = Some(Err(error)),
        }
        None
    }
}

impl Guest {
    /// Does what there is to do now.
    fn step(&mut self) {
        while let Some((_, datagram)) = self.line.receive() {
            const ACCEPT: u8 = 3;
            if datagram[7] == ACCEPT && self.loses > 0 {
                self.loses -= 1;
            } else {
                self.connector.received(&datagram);
            }
        }
        while let Some(bytes) = self.sends() {
            self.line.send(&self.server, &bytes);
        }
    }
}

/// Accepts clients, which are changed in these ways, until the one of this number is among them. The test gets all
/// that were accepted, and how long it took. Each client begins when those before it wait, and the server when all do.
fn with_guests(
    changes: &[&dyn Fn(&mut Guest)],
    until: u8,
    test: impl FnOnce(&[u8], Duration, &[Guest]),
) {
    let sides = Sides::new(Guest::step);
    sides.here.enter(|| {
        let mut listener = listener();
        for (number, change) in (1..).zip(changes) {
            let mut guest = sides.there(|| Guest::new(&listener, number));
            change(&mut guest);
            sides.add(guest);
            while !sides.others.lock().unwrap().iter().all(Guest::has_asked) {
                listener.poll().unwrap();
            }
        }
        let (start, mut numbers) = (Instant::now(), Vec::new());
        while !numbers.contains(&until) {
            assert!(start.elapsed() < LONG, "it is never accepted");
            let met = prepared().accept(&mut listener, LONG).unwrap();
            numbers.push(met.private_data[0]);
        }
        let took = start.elapsed();
        let mut guests = sides.others.lock().unwrap();
        // A client is connected when it has sent its last message.
        guests.iter_mut().for_each(Guest::step);
        test(&numbers, took, &guests);
    });
}

fn is_connected(guest: &Guest) -> bool {
    matches!(guest.outcome, Some(Ok(())))
}

#[test]
fn client_that_goes_silent_after_any_message_delays_no_other() {
    for messages in 1..=4 {
        let silent = |guest: &mut Guest| guest.messages = messages;
        with_guests(&[&silent, &|_| ()], 2, |numbers, took, _| {
            // The server has a channel with one that was ready.
            let expected: &[u8] = if messages > 2 { &[1, 2] } else { &[2] };
            assert_eq!(numbers, expected, "{messages}");
            assert!(took < PROMPTLY, "{messages}: {took:?}");
        });
    }
}

#[test]
fn each_client_that_never_confirms_delays_another_by_one_turn() {
    let silent = |guest: &mut Guest| guest.messages = 2;
    // It asks again and again.
    let deaf = |guest: &mut Guest| guest.loses = usize::MAX;
    let guests: [&dyn Fn(&mut Guest); 5] = [&silent, &deaf, &silent, &deaf, &|_| ()];
    with_guests(&guests, 5, |numbers, took, _| {
        assert_eq!(numbers, [5]);
        assert!(took < 3 * PROMPTLY, "{took:?}");
    });
}

#[test]
fn client_that_refuses_or_is_slow_takes_no_call_from_one_that_waits() {
    for handshake in [None, Some(Duration::from_secs(2))] {
        let other = |guest: &mut Guest| guest.handshake = handshake;
        with_guests(&[&other, &|_| ()], 2, |numbers, took, guests| {
            assert_eq!(numbers, [2]);
            assert!(took < PROMPTLY, "{took:?}");
            assert!(is_connected(&guests[1]));
        });
    }
}

#[test]
fn client_whose_turn_is_over_is_accepted_if_it_is_ready_before_the_next() {
    let slow = |guest: &mut Guest| guest.handshake = Some(Duration::from_millis(400));
    let silent = |guest: &mut Guest| guest.messages = 2;
    with_guests(&[&slow, &silent], 1, |numbers, _took, guests| {
        assert_eq!(numbers, [1]);
        assert!(is_connected(&guests[0]));
    });
}

#[test]
fn client_that_has_lost_its_offer_is_accepted_after_the_next() {
    // In a turn of 600 ms, with a REQUEST every 100 ms at most.
    let unlucky = |guest: &mut Guest| guest.loses = 9;
    with_guests(&[&unlucky, &|_| ()], 1, |numbers, took, guests| {
        assert_eq!(numbers, [2, 1]);
        assert!(took < 2 * PROMPTLY, "{took:?}");
        assert!(guests.iter().all(is_connected));
    });
}

#[test]
fn logger_that_panics_fails_no_connection() {
    listen();
    let sides = Sides::new(Guest::step);
    sides.here.enter(|| {
        let mut listener = listener();
        sides.add(sides.there(|| Guest::new(&listener, 1)));
        let prepared = prepared();
        // The first answer is lost, which is logged.
        sides.here.refuse("ibv_create_ah", libc::EIO);
        panics(true);
        let accepted = prepared.accept(&mut listener, LONG);
        panics(false);
        accepted.unwrap();
    });
    assert_eq!(lines().len(), 1);
}

#[test]
fn nothing_is_connected_when_the_time_is_over() {
    let sides = Sides::new(Guest::step);
    let nobody = sides.there(|| Line::new().datagrams.endpoint());
    sides.here.enter(|| {
        let (mut datagrams, asks, answers) = (datagrams(), prepared(), prepared());
        let before = sides.modified();
        let error = asks.connect(Peer::Datagrams(&mut datagrams, nobody), SHORT);
        let text = error.unwrap_err().to_string();
        assert_eq!(text, "the peer did not answer within 60 ms");
        let mut listener = DatagramListener::new(datagrams).unwrap();
        let text = answers
            .accept(&mut listener, SHORT)
            .unwrap_err()
            .to_string();
        assert_eq!(text, "the peer did not connect within 60 ms");
        assert_eq!(sides.modified(), before, "no handshake");
    });
}

#[test]
fn server_is_sent_why_the_client_cannot_connect() {
    type Server = (Line, Acceptor, Option<RequestId>);
    let carry_on = |(line, acceptor, id): &mut Server| {
        let now = Instant::now();
        while let Some((from, datagram)) = line.receive() {
            let mut answer = acceptor.received(&from, &datagram, now);
            if let Some(request) = acceptor.next_request(now) {
                let ours = request.peer().endpoint;
                answer = acceptor.answer(request.id(), &ours, b"", now).ok();
                *id = Some(request.id());
            }
            if let Some(Answer { to, bytes, .. }) = answer {
                line.send(&to, &bytes);
            }
        }
    };
    let sides = Sides::new(carry_on);
    let line = sides.there(Line::new);
    let to = line.datagrams.endpoint();
    sides.here.enter(|| {
        sides.add((line, Acceptor::new(1024, 1, Instant::now()), None));
        let (mut datagrams, prepared) = (datagrams(), prepared());
        sides.here.refuse("ibv_modify_qp", libc::EIO);
        let error = prepared.connect(Peer::Datagrams(&mut datagrams, to), LONG);
        assert!(matches!(error, Err(Error::Core(_))), "{error:?}");
        sides.fabric.run_for(SHORT);
        let server = &mut sides.others.lock().unwrap()[0];
        carry_on(server);
        let outcome = server.1.outcome(server.2.unwrap(), Instant::now());
        let refused = outcome.unwrap().unwrap_err();
        assert!(
            matches!(refused, ExchangeError::Refused { .. }),
            "{refused}"
        );
    });
}

#[test]
fn endpoint_that_fails_ends_the_exchange() {
    let sides = Sides::new(Guest::step);
    let nobody = sides.there(|| Line::new().datagrams.endpoint());
    for is_client in [true, false] {
        let error = sides.here.enter(|| {
            let (mut datagrams, prepared) = (datagrams(), prepared());
            sides.here.refuse("ibv_poll_cq", libc::EIO);
            if is_client {
                let met = prepared.connect(Peer::Datagrams(&mut datagrams, nobody), LONG);
                return met.unwrap_err();
            }
            let mut listener = DatagramListener::new(datagrams).unwrap();
            prepared.accept(&mut listener, LONG).unwrap_err()
        });
        let Error::Transport(TransportError::Rejected(RejectReason::Down(DownReason::Poll(_)))) =
            error
        else {
            panic!("{error}");
        };
    }
}

/// The length of private data that do not fit, and the most that would.
fn beyond(error: &Error) -> (usize, usize) {
    match error {
        Error::Exchange(failure) => match &failure.error {
            ExchangeError::PrivateDataBeyondMtu { len, max } => (*len, *max),
            error => panic!("{error}"),
        },
        error => panic!("{error}"),
    }
}

#[test]
fn private_data_that_does_not_fit_is_an_error_on_both_sides() {
    let sides = Sides::new(Guest::step);
    sides.here.enter(|| {
        let mut listener = listener();
        // The client's port has the shorter MTU.
        sides.add(sides.there(|| Guest::with_payload(&listener, 1, 256)));
        let (mut datagrams, asks, answers) = (datagrams(), prepared(), prepared());
        let before = sides.modified();
        let to = Peer::Datagrams(&mut datagrams, listener.endpoint());
        let long = Connect::within(LONG).private_data(&[7; 954]);
        assert_eq!(beyond(&asks.connect(to, long).unwrap_err()), (954, 953));
        let long = Connect::within(LONG).private_data(&[7; 200]);
        let error = answers.accept(&mut listener, long).unwrap_err();
        assert_eq!(beyond(&error), (200, 195));
        assert_eq!(sides.modified(), before, "no handshake");
        sides.fabric.run_for(SHORT);
        let guest = &mut sides.others.lock().unwrap()[0];
        guest.step();
        let error = guest.outcome.take().unwrap().unwrap_err().to_string();
        assert!(error.contains("200 bytes of private data"), "{error}");
    });
}

#[test]
fn listener_answers_no_more_than_it_has_time_for() {
    const CLIENTS: usize = 10;
    let sides = Sides::new(Guest::step);
    sides.here.enter(|| {
        let mut listener = listener();
        let mut guests: Vec<_> = (0..10)
            .map(|number| sides.there(|| Guest::new(&listener, number)))
            .collect();
        guests.iter_mut().for_each(Guest::step);
        sides.fabric.run_for(SHORT);
        let mut answers = || {
            sides.fabric.run_for(SHORT);
            let lines = guests.iter_mut().map(|guest| &mut guest.line);
            lines.filter_map(Line::receive).count()
        };
        assert!(prepared().accept(&mut listener, Duration::ZERO).is_err());
        assert_eq!(answers(), 1);
        listener.poll().unwrap();
        assert_eq!(answers(), CLIENTS - 1);
    });
}
