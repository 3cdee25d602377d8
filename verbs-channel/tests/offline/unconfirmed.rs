//! Accepting over datagrams while some clients do not confirm: they delay no other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fake_libibverbs::{lend, with};
use verbs_channel::__private::datagram_exchange::{Connector, Step};
use verbs_channel::connect::DatagramListener;
use verbs_channel::exchange::ExchangeError;
use verbs_channel::verbs_core::path::DatagramEndpoint;
use verbs_channel::{Channel, Datagrams, Error};

use crate::datagrams::{comes, peer};
use crate::fake_device::{LONG, bounded, forget_the_past, pd, succeeds};
use crate::over_datagrams::theirs;

/// A client among others.
struct Guest {
    connector: Connector,
    from: DatagramEndpoint,
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
        let (from, now) = (peer(number), Instant::now());
        let theirs = theirs();
        let connector = Connector::new(&server.endpoint(), &theirs, &[number], 1024, now, LONG);
        Self {
            connector: connector.unwrap(),
            from,
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

    fn silent_after(self, messages: usize) -> Self {
        Self { messages, ..self }
    }

    fn losing(self, loses: usize) -> Self {
        Self { loses, ..self }
    }

    fn with_handshake(self, handshake: Option<Duration>) -> Self {
        Self { handshake, ..self }
    }

    /// Whether it has sent its cookie, or is silent.
    fn has_asked(&self) -> bool {
        self.sent >= 2.min(self.messages)
    }

    fn gets(&mut self, datagram: &[u8]) {
        const ACCEPT: u8 = 3;
        if datagram[7] == ACCEPT && self.loses > 0 {
            self.loses -= 1;
        } else {
            self.connector.received(datagram);
        }
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
            }
            Ok(Step::Done(_)) => self.outcome = Some(Ok(())),
            Err(error) => self.outcome = Some(Err(error)),
        }
        None
    }
}

/// Accepts clients until this one is among them. Returns all that were accepted, the errors, and how long it took.
/// Each client begins when those before it wait, and the server when all do.
fn accepted(
    listener: &mut DatagramListener,
    guests: &mut [Guest],
    until: u8,
) -> (Vec<u8>, Vec<Error>, Duration) {
    let config = Channel::builder(&pd()).config();
    let (is_over, all_wait) = (AtomicBool::new(false), AtomicBool::new(false));
    let library = lend();
    thread::scope(|scope| {
        let (is_over, all_wait) = (&is_over, &all_wait);
        let network = scope.spawn(move || {
            library();
            let mut receives = VecDeque::new();
            while !is_over.load(Ordering::SeqCst) {
                let posted = with(|library| std::mem::take(&mut library.posted));
                for request in posted.into_iter().flatten() {
                    if !request.is_send {
                        receives.push_back(request.wr_id);
                        continue;
                    }
                    succeeds(request.wr_id);
                    let to = |guest: &&mut Guest| guest.from.qp_num() == request.remote_qpn;
                    if let Some(guest) = guests.iter_mut().find(to) {
                        guest.gets(&request.sent);
                    }
                }
                let mut all_before = true;
                for guest in &mut *guests {
                    if all_before && let Some(bytes) = guest.sends() {
                        let into = receives.pop_front().expect("a receive is posted");
                        comes(into, &guest.from, &bytes, Some(guest.from.qkey().get()));
                    }
                    all_before &= guest.has_asked();
                }
                all_wait.fetch_or(all_before, Ordering::SeqCst);
                thread::yield_now();
            }
            // The server has the last DONE: its client is connected.
            for guest in guests {
                let _nothing = guest.sends();
            }
        });
        let (mut numbers, mut errors) = (Vec::new(), Vec::new());
        while !all_wait.load(Ordering::SeqCst) {
            assert!(!network.is_finished());
            listener.poll().unwrap();
        }
        let start = Instant::now();
        while !numbers.contains(&until) {
            assert!(start.elapsed() < LONG, "it is never accepted");
            let prepared = config.build().unwrap();
            match bounded(|| prepared.accept(&mut *listener, LONG)) {
                Ok(met) => numbers.push(met.private_data[0]),
                Err(error) => errors.push(error),
            }
        }
        let took = start.elapsed();
        is_over.store(true, Ordering::SeqCst);
        (numbers, errors, took)
    })
}

fn listener() -> DatagramListener {
    forget_the_past();
    DatagramListener::new(Datagrams::builder(&pd()).build().unwrap()).unwrap()
}

/// Much more than any of these takes, and less than a silent client used to take.
const PROMPTLY: Duration = Duration::from_millis(900);

#[test]
#[cfg_attr(miri, ignore = "two threads that poll take minutes")]
fn client_that_goes_silent_after_any_message_delays_no_other() {
    for messages in 1..=4 {
        let mut listener = listener();
        let silent = Guest::new(&listener, 1).silent_after(messages);
        let mut guests = [silent, Guest::new(&listener, 2)];
        let (numbers, errors, took) = accepted(&mut listener, &mut guests, 2);
        // The server has a channel with one that was ready.
        let expected: &[u8] = if messages > 2 { &[1, 2] } else { &[2] };
        assert_eq!((&numbers[..], errors.len()), (expected, 0), "{messages}");
        assert!(took < PROMPTLY, "{messages}: {took:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "two threads that poll take minutes")]
fn each_client_that_never_confirms_delays_another_by_one_turn() {
    let mut listener = listener();
    let mut guests: Vec<_> = (1..=4)
        .map(|number| match number % 2 {
            // It asks again and again.
            0 => Guest::new(&listener, number).losing(usize::MAX),
            _ => Guest::new(&listener, number).silent_after(2),
        })
        .collect();
    guests.push(Guest::new(&listener, 5));
    let (numbers, errors, took) = accepted(&mut listener, &mut guests, 5);
    assert_eq!((&numbers[..], errors.len()), (&[5][..], 0));
    assert!(took < 3 * PROMPTLY, "{took:?}");
}

#[test]
#[cfg_attr(miri, ignore = "two threads that poll take minutes")]
fn client_that_refuses_or_is_slow_takes_no_call_from_one_that_waits() {
    for handshake in [None, Some(Duration::from_secs(2))] {
        let mut listener = listener();
        let other = Guest::new(&listener, 1).with_handshake(handshake);
        let mut guests = [other, Guest::new(&listener, 2)];
        let (numbers, errors, took) = accepted(&mut listener, &mut guests, 2);
        assert_eq!((&numbers[..], errors.len()), (&[2][..], 0));
        assert!(took < PROMPTLY, "{took:?}");
        assert!(matches!(guests[1].outcome, Some(Ok(()))));
    }
}

#[test]
#[cfg_attr(miri, ignore = "two threads that poll take minutes")]
fn client_whose_turn_is_over_is_accepted_if_it_is_ready_before_the_next() {
    let mut listener = listener();
    let slow = Guest::new(&listener, 1).with_handshake(Some(Duration::from_millis(400)));
    let mut guests = [slow, Guest::new(&listener, 2).silent_after(2)];
    let (numbers, errors, _took) = accepted(&mut listener, &mut guests, 1);
    assert_eq!((&numbers[..], errors.len()), (&[1][..], 0));
    assert!(matches!(guests[0].outcome, Some(Ok(()))));
}

#[test]
#[cfg_attr(miri, ignore = "two threads that poll take minutes")]
fn client_that_has_lost_its_offer_is_accepted_after_the_next() {
    let mut listener = listener();
    // In a turn of 600 ms, with a REQUEST every 100 ms at most.
    let unlucky = Guest::new(&listener, 1).losing(9);
    let mut guests = [unlucky, Guest::new(&listener, 2)];
    let (numbers, errors, took) = accepted(&mut listener, &mut guests, 1);
    assert_eq!((&numbers[..], errors.len()), (&[2, 1][..], 0));
    assert!(took < 2 * PROMPTLY, "{took:?}");
    assert!(
        guests
            .iter()
            .all(|guest| matches!(guest.outcome, Some(Ok(()))))
    );
}
