//! Channels over datagrams: futures that are dropped anywhere, peers that fail, and deadlines.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use fake_libibverbs::{Posted, announce_last, assert_all_is_well, is_alive, share, with};
use verbs_async::verbs_channel::__private::datagram_exchange::{Acceptor, Answer, Connector, Step};
use verbs_async::verbs_channel::connect::{Met, PeerAddr};
use verbs_async::verbs_channel::exchange::ExchangeError;
use verbs_async::verbs_channel::verbs_core::completion::CompletionChannel;
use verbs_async::verbs_channel::verbs_core::verbs_sys::IBV_QPS_RTR;
use verbs_async::verbs_channel::verbs_core::{PacketSequenceNumber, QueuePairEndpoint};
use verbs_async::verbs_channel::{self, Channel, Connect, Datagrams, Peer};
use verbs_async::{
    AsyncChannel, AsyncDatagrams, AsyncGroup, CqEvents, CqNotifier, Error, HandshakeResult, Result,
};

use crate::bench::{Bench, Hand, Held, done};
use crate::waits::{comes, peer};

/// Only what hangs takes so long.
const LONG: Duration = Duration::from_secs(20);

/// The queue pair of the other side.
fn theirs() -> QueuePairEndpoint {
    let psn = PacketSequenceNumber::new(7).unwrap();
    let endpoint = QueuePairEndpoint::builder(0x4321, psn);
    endpoint.gid(peer().gid()).build().unwrap()
}

/// The datagrams that the local device has sent, and where it receives.
struct Wire {
    bench: Bench,
    group: AsyncGroup,
    datagrams: AsyncDatagrams,
    receives: VecDeque<u64>,
    /// How many datagrams have been sent.
    sent: usize,
}

impl Wire {
    fn new(max_channels: u32) -> Self {
        let bench = Bench::new();
        let events = bench.events.clone();
        Self::with(bench, &events, max_channels)
    }

    /// With a group that has these events.
    fn with(bench: Bench, events: &CqEvents, max_channels: u32) -> Self {
        let pd = bench.context.alloc_pd().unwrap();
        let group = AsyncGroup::new(Channel::builder(&pd), max_channels, events).unwrap();
        let builder = Datagrams::builder(&pd).max_recv_wr(8);
        let datagrams = AsyncDatagrams::create(builder, &bench.events).unwrap();
        Self {
            bench,
            group,
            datagrams,
            receives: VecDeque::new(),
            sent: 0,
        }
    }

    /// The datagrams sent since the last call. They have left.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let posted = with(|library| std::mem::take(&mut library.posted));
        let mut datagrams = Vec::new();
        for Posted {
            wr_id,
            is_send,
            sent,
            ..
        } in posted.into_iter().flatten()
        {
            if is_send {
                done([wr_id]);
                datagrams.push(sent);
            } else {
                self.receives.push_back(wr_id);
            }
        }
        self.sent += datagrams.len();
        datagrams
    }

    fn receives(&mut self, datagram: &[u8]) {
        comes(
            self.receives.pop_front().expect("a receive is posted"),
            datagram,
        );
    }

    fn announce(&self) {
        assert!(announce_last());
        self.bench.hand.readable();
    }

    /// Polls until it is ready, or `until` this returns false. Each datagram that is sent is given to the
    /// other side, with what it answers.
    fn run<T>(
        &mut self,
        mut future: Pin<&mut impl Future<Output = T>>,
        mut other: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
        mut until: impl FnMut(&Self) -> bool,
    ) -> Option<T> {
        let begun = Instant::now();
        while until(self) {
            let polled = future
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            let sent = self.sent();
            let mut answers: Vec<_> = sent.iter().filter_map(|sent| other(Some(sent))).collect();
            answers.extend(other(None));
            let is_any = !(sent.is_empty() && answers.is_empty());
            answers.iter().for_each(|answer| self.receives(answer));
            if let Poll::Ready(value) = polled {
                return Some(value);
            }
            if is_any {
                self.announce();
            }
            assert!(begun.elapsed() < LONG, "it hangs");
            thread::yield_now();
        }
        None
    }

    /// Drops everything, and waits until helper threads have done so.
    fn ends(self) {
        drop(self);
        let begun = Instant::now();
        while is_alive("ibv_open_device") || is_alive("ibv_get_device_list") {
            assert!(begun.elapsed() < LONG, "something is left");
            thread::yield_now();
        }
        assert_all_is_well();
    }
}

/// A server that accepts, and answers with this.
fn server(data: &'static [u8]) -> impl FnMut(Option<&[u8]>) -> Option<Vec<u8>> {
    let mut acceptor = Acceptor::new(1024, 1, Instant::now());
    move |datagram| {
        let now = Instant::now();
        let answer = acceptor.received(&peer(), datagram?, now);
        let accepts = || {
            let request = acceptor.next_request(now)?;
            acceptor.answer(request.id(), &theirs(), data, now).ok()
        };
        answer.or_else(accepts).map(|Answer { bytes, .. }| bytes)
    }
}

/// A client that connects, as far as it is asked. Its handshake takes no time.
fn client(wire: &Wire) -> impl FnMut(Option<&[u8]>) -> Option<Vec<u8>> + use<> {
    let (server, now) = (wire.datagrams.endpoint(), Instant::now());
    let connector = Connector::new(&server, &theirs(), b"guest", 1024, now, LONG);
    let mut connector = connector.unwrap();
    move |datagram| {
        if let Some(datagram) = datagram {
            connector.received(datagram);
            return None;
        }
        match connector.step(Instant::now()) {
            Ok(Step::Send(bytes)) => Some(bytes.to_vec()),
            Ok(Step::Done(_)) => {
                connector.ready();
                None
            }
            Ok(Step::Wait(_)) | Err(_) => None,
        }
    }
}

fn failure(error: &Error) -> &ExchangeError {
    match error {
        Error::Channel(verbs_channel::Error::Exchange(failure)) => &failure.error,
        error => panic!("{error}"),
    }
}

/// Connects to the peer, with private data.
fn connect<'a>(
    group: &'a AsyncGroup,
    datagrams: &'a AsyncDatagrams,
    timeout: Duration,
) -> impl Future<Output = Result<Met<AsyncChannel>>> + 'a {
    let options = Connect::within(timeout).private_data(b"hello");
    group.connect(Peer::Datagrams(datagrams, peer()), options)
}

#[test]
fn client_connects_and_can_be_dropped_anywhere() {
    let _shared = share();
    // REQUEST, the same with its cookie, READY and DONE.
    for stop in 0..=5 {
        let mut wire = Wire::new(1);
        let (group, datagrams) = (wire.group.clone(), wire.datagrams.clone());
        let mut future = Box::pin(connect(&group, &datagrams, LONG));
        let until = |wire: &Wire| wire.sent < stop || stop == 5;
        let connected = wire.run(future.as_mut(), server(b"welcome"), until);
        assert!(stop == 4 || connected.is_some() == (stop == 5));
        if let Some(met) = connected {
            let met = met.unwrap();
            assert_eq!(met.private_data, b"welcome");
            assert_eq!(met.peer, Some(PeerAddr::Datagram(peer())));
            assert!(wire.sent >= 4, "REQUEST twice, READY and DONE");
        }
        let destroys = Held::new(&["ibv_destroy_qp"]);
        drop(future);
        if (2..4).contains(&stop) {
            destroys.begins("ibv_destroy_qp");
        }
        drop(destroys);
        drop((group, datagrams));
        wire.ends();
    }
}

#[test]
fn silent_server_is_asked_again_and_is_a_timeout() {
    let _shared = share();
    let mut wire = Wire::new(1);
    let (group, datagrams) = (wire.group.clone(), wire.datagrams.clone());
    let mut asking = Box::pin(connect(&group, &datagrams, LONG));
    let ended = wire.run(asking.as_mut(), |_| None, |wire| wire.sent < 3);
    assert!(ended.is_none());
    drop(asking);
    let timeout = Duration::from_millis(60);
    let mut late = Box::pin(connect(&group, &datagrams, timeout));
    let error = wire.run(late.as_mut(), |_| None, |_| true).unwrap();
    let error = error.unwrap_err();
    let ExchangeError::TimedOut { after, .. } = failure(&error) else {
        panic!("{error}");
    };
    assert_eq!(*after, Some(timeout));
    drop(late);
    drop((group, datagrams));
    wire.ends();
}

#[test]
fn registration_that_takes_too_long_is_a_timeout() {
    let _shared = share();
    let mut wire = Wire::new(1);
    let (group, datagrams) = (wire.group.clone(), wire.datagrams.clone());
    let registers = Held::new(&["ibv_reg_mr"]);
    let timeout = Duration::from_millis(300);
    let mut connect = Box::pin(connect(&group, &datagrams, timeout));
    let error = wire.run(connect.as_mut(), |_| None, |_| true).unwrap();
    let error = error.unwrap_err();
    let is_late = matches!(failure(&error), ExchangeError::TimedOut { .. });
    assert!(is_late, "{error}");
    registers.begins("ibv_reg_mr");
    registers.returns();
    drop(connect);
    drop((group, datagrams));
    wire.ends();
}

/// Accepts one client, with this other side.
fn accepts(
    wire: &mut Wire,
    timeout: Duration,
    other: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    until: impl FnMut(&Wire) -> bool,
) -> Option<Result<HandshakeResult>> {
    let (group, datagrams) = (wire.group.clone(), wire.datagrams.clone());
    let options = Connect::within(timeout).private_data(b"welcome");
    let listening = group.listen(datagrams, options);
    let listener = wire.run(pin!(listening), |_| None, |_| true).unwrap();
    let mut listener = listener.unwrap();
    wire.run(pin!(listener.accept()), other, until)
}

#[test]
fn listener_accepts_and_can_be_dropped_anywhere() {
    let _shared = share();
    // COOKIE, ACCEPT and CONFIRM.
    for stop in 0..=4 {
        let timeout = if stop % 2 == 0 { LONG } else { Duration::MAX };
        let mut wire = Wire::new(1);
        let other = client(&wire);
        let until = |wire: &Wire| wire.sent < stop || stop > 3;
        let arrival = accepts(&mut wire, timeout, other, until);
        assert_eq!(arrival.is_some(), stop > 3);
        if let Some(arrival) = arrival {
            let arrival = arrival.unwrap();
            let Some(PeerAddr::Datagram(from)) = arrival.peer else {
                panic!("{:?}", arrival.peer);
            };
            assert_eq!(from.qp_num(), peer().qp_num());
            assert_eq!(arrival.outcome.unwrap().private_data, b"guest");
        }
        wire.ends();
    }
}

#[test]
fn listener_can_be_dropped_during_a_handshake() {
    let _shared = share();
    for verb in ["ibv_create_qp", "ibv_modify_qp"] {
        let mut wire = Wire::new(1);
        let calls =
            |verb| with(|library| library.calls.iter().filter(|call| **call == verb).count());
        let before = calls(verb);
        let other = client(&wire);
        // It is prepared, or connected, on a helper thread.
        let arrival = accepts(&mut wire, LONG, other, |_| calls(verb) == before);
        assert!(arrival.is_none());
        wire.ends();
    }
}

#[test]
fn client_that_falls_silent_is_an_arrival_that_failed() {
    let _shared = share();
    let mut wire = Wire::new(1);
    let mut answers = client(&wire);
    // It has its cookie, and is gone when something else comes.
    let (mut cookie, mut is_gone) = (None, false);
    let other = move |datagram: Option<&[u8]>| {
        if let Some(len) = datagram.map(<[u8]>::len) {
            is_gone |= *cookie.get_or_insert(len) != len;
        }
        answers(datagram).filter(|_| !is_gone)
    };
    let arrival = accepts(&mut wire, Duration::from_millis(60), other, |_| true);
    let error = arrival.unwrap().unwrap().outcome.unwrap_err();
    let is_late = matches!(failure(&error), ExchangeError::TimedOut { .. });
    assert!(is_late, "{error}");
    wire.ends();
}

#[test]
fn handshake_that_fails_is_refused_and_the_listener_goes_on() {
    let _shared = share();
    let mut wire = Wire::new(1);
    let (group, datagrams) = (wire.group.clone(), wire.datagrams.clone());
    let listening = group.listen(datagrams, LONG);
    let listener = wire.run(pin!(listening), |_| None, |_| true).unwrap();
    let mut listener = listener.unwrap();
    with(|library| library.refuse.push(("ibv_create_qp", libc::ENOMEM)));
    for is_refused in [true, false] {
        let other = client(&wire);
        let arrival = wire.run(pin!(listener.accept()), other, |_| true);
        assert_eq!(arrival.unwrap().unwrap().outcome.is_err(), is_refused);
    }
    drop((listener, group));
    wire.ends();
}

/// A notifier of which only this number of others can be made.
struct Scarce(Hand, AtomicUsize);

impl CqNotifier for Scarce {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_readable(cx)
    }

    fn another(&self, descriptor: OwnedFd) -> io::Result<Box<dyn CqNotifier>> {
        let left = (self.1).fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        left.map_err(|_none| io::Error::other("no notifier is left"))?;
        self.0.another(descriptor)
    }
}

#[test]
fn client_for_which_no_timer_is_left_is_refused() {
    let _shared = share();
    let bench = Bench::new();
    let channel = CompletionChannel::create(&bench.context).unwrap();
    // One is for the device's events, one for the handshake, and none for the client's answer.
    let scarce = Scarce(Hand::default(), AtomicUsize::new(2));
    let events = CqEvents::new(channel, scarce).unwrap();
    let mut wire = Wire::with(bench, &events, 1);
    let (server, now) = (wire.datagrams.endpoint(), Instant::now());
    let mut client = Connector::new(&server, &theirs(), b"guest", 1024, now, LONG).unwrap();
    let mut refused = None;
    let connects = Held::when(|_verb, state| state == Some(IBV_QPS_RTR));
    let other = |datagram: Option<&[u8]>| {
        if connects.has_begun() {
            connects.returns();
        }
        if let Some(datagram) = datagram {
            client.received(datagram);
            return None;
        }
        match client.step(Instant::now()) {
            Ok(Step::Send(bytes)) => return Some(bytes.to_vec()),
            Ok(_) => {}
            Err(error) => refused = Some(error),
        }
        None
    };
    let arrival = accepts(&mut wire, LONG, other, |_| true);
    let error = arrival.unwrap().unwrap().outcome.unwrap_err();
    let has_no_timer = matches!(failure(&error), ExchangeError::Tcp { .. });
    assert!(has_no_timer, "{error}");
    assert!(
        matches!(refused, Some(ExchangeError::Refused { .. })),
        "{refused:?}"
    );
    drop((connects, events));
    wire.ends();
}
