//! Bytes of anyone, and of anywhere.

use super::network::Numbers;
use super::*;

fn kept(acceptor: &Acceptor) -> usize {
    acceptor.clients()
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and the protocol has no unsafe code")]
fn nothing_is_kept_for_a_client_before_it_returns_its_cookie() {
    let now = Instant::now();
    let mut acceptor = Acceptor::new(MTU, LIMIT, now);
    for number in 0..1000 {
        let mut connector = connector(1, now);
        let Step::Send(request) = connector.step(now).unwrap() else {
            panic!("it waits");
        };
        // A forged source: the answer goes elsewhere.
        let answer = acceptor.received(&place(number), request, now).unwrap();
        assert!(answer.bytes.len() <= request.len());
        assert_eq!(kept(&acceptor), 0);
    }
}

#[test]
fn a_cookie_is_of_one_client_and_one_time() {
    let mut pair = Pair::new();
    let request = pair.client_sends().unwrap();
    let cookie = pair.server_gets(&request).unwrap();
    pair.connector.received(&cookie);
    let request = pair.client_sends().unwrap();
    // From another endpoint, or of another exchange: the client's number is in the bytes from 8 on.
    let other = pair.acceptor.received(&place(2), &request, pair.now);
    assert!(other.is_some() && kept(&pair.acceptor) == 0);
    let mut renamed = request.clone();
    renamed[8] ^= 1;
    assert!(pair.server_gets(&renamed).is_some() && kept(&pair.acceptor) == 0);
    // After a while.
    pair.pass(21 * SECOND);
    assert!(pair.server_gets(&request).is_some() && kept(&pair.acceptor) == 0);
    // It is good for ten seconds, whenever it was made.
    for start in 0..10 {
        let mut pair = Pair::new();
        pair.pass(start * SECOND);
        pair.connector = connector(1, pair.now);
        let request = pair.client_sends().unwrap();
        let cookie = pair.server_gets(&request).unwrap();
        pair.connector.received(&cookie);
        let request = pair.client_sends().unwrap();
        pair.pass(10 * SECOND);
        assert_eq!(pair.server_gets(&request), None);
        assert_eq!(kept(&pair.acceptor), 1);
    }
}

/// A client whose request waits.
fn asks(acceptor: &mut Acceptor, number: u32, now: Instant) -> Connector {
    asks_from(acceptor, &place(number), number, now)
}

/// The same from anywhere. Its number is that of the peer's endpoint.
fn asks_from(
    acceptor: &mut Acceptor,
    from: &DatagramEndpoint,
    number: u32,
    now: Instant,
) -> Connector {
    let mut connector = connector(number, now);
    while let Ok(Step::Send(request)) = connector.step(now) {
        let Some(answer) = acceptor.received(from, request, now) else {
            break;
        };
        connector.received(&answer.bytes);
    }
    connector
}

#[test]
fn clients_beyond_the_limit_are_served_later() {
    let now = Instant::now();
    let mut acceptor = Acceptor::new(MTU, LIMIT, now);
    let mut clients: Vec<_> = (1..=20)
        .map(|number| asks(&mut acceptor, number, now))
        .collect();
    assert_eq!(kept(&acceptor), LIMIT);
    let first = acceptor.next_request(now).unwrap();
    assert_eq!(first.peer().endpoint.psn().get(), 1);
    assert_eq!(kept(&acceptor), LIMIT, "one that was taken counts");
    let _answer = acceptor.refuse(first.id(), &std::io::Error::other("no"));
    // The next one that repeats its request.
    let later = now + SECOND / 10;
    let Step::Send(request) = clients[10].step(later).unwrap() else {
        panic!("it waits");
    };
    assert!(acceptor.received(&place(11), request, later).is_none());
    assert_eq!(kept(&acceptor), LIMIT);
}

/// A queue pair of another port. Each port has any number of queue pairs.
fn elsewhere(lid: u16, number: u32) -> DatagramEndpoint {
    let qkey = QKey::new(0x1234).unwrap();
    let endpoint = DatagramEndpoint::builder(0x10 + number, qkey).lid(lid);
    endpoint.build().unwrap()
}

/// The numbers of all clients that wait, in the order in which they are taken.
fn taken(acceptor: &mut Acceptor, now: Instant) -> Vec<(RequestId, u32)> {
    let next = || {
        let request = acceptor.next_request(now)?;
        Some((request.id(), request.peer().endpoint.psn().get()))
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn source_that_fills_all_places_gives_some_to_others() {
    let now = Instant::now();
    let mut acceptor = Acceptor::new(MTU, LIMIT, now);
    // Any number of queue pairs of one port.
    for number in 1..=20 {
        drop(asks(&mut acceptor, number, now));
    }
    // Half of the places, not more: the oldest go, and the few are taken first.
    for number in 21..=30 {
        drop(asks_from(&mut acceptor, &elsewhere(2, number), number, now));
    }
    assert_eq!(kept(&acceptor), LIMIT);
    let numbers = taken(&mut acceptor, now)
        .into_iter()
        .map(|(_, number)| number);
    assert_eq!(numbers.collect::<Vec<_>>(), [3, 4, 21, 22]);
    // Taken or answered, a client that has not confirmed keeps no place from others, either.
    drop(asks_from(&mut acceptor, &elsewhere(3, 31), 31, now));
    let [(last, 31)] = taken(&mut acceptor, now)[..] else {
        panic!("it waits");
    };
    acceptor.answer(last, &endpoint(0x99, 9), b"", now).unwrap();
}

#[test]
fn client_that_loses_its_place_after_its_answer_fails_at_once() {
    let now = Instant::now();
    let mut acceptor = Acceptor::new(MTU, 2, now);
    let mut clients = [1, 2].map(|number| asks(&mut acceptor, number, now));
    let ids = taken(&mut acceptor, now);
    for (client, (id, _)) in clients.iter_mut().zip(&ids) {
        let answer = acceptor.answer(*id, &endpoint(0x99, 9), b"", now).unwrap();
        client.received(&answer.bytes);
        client.ready();
    }
    // The second has confirmed, and keeps its place.
    let Ok(Step::Send(ready)) = clients[1].step(now) else {
        panic!("it waits");
    };
    let _confirm = acceptor.received(&place(2), ready, now).unwrap();
    let _other = asks_from(&mut acceptor, &elsewhere(2, 3), 3, now);
    let failed = acceptor.outcome(ids[0].0, now).unwrap().unwrap_err();
    assert!(matches!(failed, ExchangeError::TimedOut { .. }), "{failed}");
    assert!(acceptor.outcome(ids[1].0, now).is_none());
    assert_eq!(acceptor.abandon(ids[1].0).ok(), Some(()));
    // READY of the first is late: it is refused at once.
    let Ok(Step::Send(ready)) = clients[0].step(now) else {
        panic!("it waits");
    };
    let unknown = acceptor.received(&place(1), ready, now).unwrap();
    clients[0].received(&unknown.bytes);
    assert!(matches!(
        clients[0].step(now),
        Err(ExchangeError::Refused { .. })
    ));
}

#[test]
fn sources_with_one_client_each_take_no_places_from_each_other() {
    let now = Instant::now();
    let mut acceptor = Acceptor::new(MTU, LIMIT, now);
    for number in 1..=20 {
        let lid = u16::try_from(number).unwrap();
        drop(asks_from(
            &mut acceptor,
            &elsewhere(lid, number),
            number,
            now,
        ));
    }
    assert_eq!(kept(&acceptor), LIMIT);
    let numbers = taken(&mut acceptor, now)
        .into_iter()
        .map(|(_, number)| number);
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn client_that_never_confirms_gives_way_to_one_that_waits() {
    for is_silent in [true, false] {
        let mut pair = Pair::new();
        let request = pair.requests();
        let id = pair.acceptor.next_request(pair.now).unwrap().id();
        let answer = pair.acceptor.answer(id, &endpoint(0x99, 9), b"", pair.now);
        answer.unwrap();
        let start = pair.now;
        assert_eq!(pair.acceptor.due(id), Some(start + 5 * SECOND));
        while pair.acceptor.outcome(id, pair.now).is_none() {
            let _other = asks(&mut pair.acceptor, 2, pair.now);
            if !is_silent {
                let repeated = pair.server_gets(&request);
                assert!(repeated.is_some());
            }
            pair.pass(SECOND / 10);
        }
        let took = pair.now - start;
        assert_eq!(took, if is_silent { SECOND } else { 2 * SECOND });
        assert!(pair.acceptor.next_request(pair.now).is_some());
    }
}

#[test]
fn client_that_lost_an_offer_which_was_withdrawn_waits_again() {
    let mut pair = Pair::new();
    let request = pair.requests();
    let first = pair.acceptor.next_request(pair.now).unwrap().id();
    let offer = |acceptor: &mut Acceptor, id, psn, now| {
        acceptor.answer(id, &endpoint(0x99, psn), b"", now).unwrap()
    };
    let lost = offer(&mut pair.acceptor, first, 9, pair.now);
    assert_eq!(pair.server_gets(&request), Some(lost.bytes.clone()));
    pair.acceptor.withdraw(first);
    assert!(pair.acceptor.outcome(first, pair.now).is_none());
    assert_eq!(pair.server_gets(&request), None);
    let over = pair.acceptor.outcome(first, pair.now).unwrap().unwrap_err();
    assert!(matches!(over, ExchangeError::Over), "{over}");
    // The next offer is another's, for which READY to the first does not count.
    let second = pair.acceptor.next_request(pair.now).unwrap().id();
    let _answer = offer(&mut pair.acceptor, second, 10, pair.now);
    pair.connector.received(&lost.bytes);
    pair.connector.ready();
    let ready = pair.client_sends().unwrap();
    let unknown = pair.server_gets(&ready).unwrap();
    assert!(!pair.acceptor.is_ready(second));
    pair.connector.received(&unknown);
    let refused = pair.client_error();
    assert!(
        matches!(refused, ExchangeError::Refused { .. }),
        "{refused}"
    );
}

#[test]
fn client_that_received_an_offer_which_was_withdrawn_can_be_ready() {
    let mut pair = Pair::new();
    let (id, _accept) = pair.accepted();
    pair.acceptor.withdraw(id);
    pair.connector.ready();
    let ready = pair.client_sends().unwrap();
    assert!(!pair.acceptor.is_ready(id));
    let confirm = pair.server_gets(&ready).unwrap();
    assert!(pair.acceptor.is_ready(id));
    pair.connector.received(&confirm);
    let done = pair.client_sends().unwrap();
    assert_eq!(pair.server_gets(&done), None);
    pair.acceptor.outcome(id, pair.now).unwrap().unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and the protocol has no unsafe code")]
fn any_bytes_are_survived() {
    let mut numbers = Numbers(verbs_core::__private::random());
    println!("seed {:#x}", numbers.0);
    for round in 0..500 {
        let mut pair = Pair::new();
        // Good messages of every kind, which are then spoilt.
        let mut good = Vec::new();
        let request = pair.client_sends().unwrap();
        let cookie = pair.server_gets(&request).unwrap();
        good.extend([request, cookie]);
        let mut pair = Pair::new();
        let (id, accept) = pair.accepted();
        pair.connector.ready();
        let ready = pair.client_sends().unwrap();
        let confirm = pair.server_gets(&ready).unwrap();
        good.extend([accept, ready, confirm]);
        let mut other = asks(&mut pair.acceptor, 2, pair.now);
        for _ in 0..20 {
            let mut bytes = good[numbers.below(good.len())].clone();
            for _ in 0..numbers.below(4_u8) {
                let at = numbers.below(bytes.len());
                bytes[at] = numbers.below(u8::MAX);
            }
            bytes[6..8].copy_from_slice(&numbers.below(9_u16).to_be_bytes());
            match numbers.below(4_u8) {
                0 => bytes.truncate(numbers.below(bytes.len() + 1)),
                1 => bytes.resize(bytes.len() + numbers.below(3000_usize), 0xff),
                _ => {}
            }
            let from = place(numbers.below(3_u32));
            let answer = pair.acceptor.received(&from, &bytes, pair.now);
            assert!(answer.is_none_or(|answer| answer.bytes.len() <= MTU as usize));
            pair.connector.received(&bytes);
            other.received(&bytes);
            let _step = other.step(pair.now).map(|_| ());
            assert!(kept(&pair.acceptor) <= LIMIT, "round {round}");
        }
        drop(pair.acceptor.outcome(id, pair.now + SECOND));
        let _done = pair.connector.step(pair.now).map(|_| ());
    }
}

#[test]
fn reflected_datagrams_are_no_longer_than_those_that_cause_them() {
    let mut pair = Pair::new();
    let (_, accept) = pair.accepted();
    pair.connector.ready();
    let ready = pair.client_sends().unwrap();
    let mut other_version = ready.clone();
    other_version[5] = 9;
    for datagram in [accept, ready, other_version] {
        // 2 bytes for the code of a refusal.
        let answer = pair.acceptor.received(&place(3), &datagram, pair.now);
        assert!(answer.is_none_or(|answer| answer.bytes.len() <= datagram.len() + 2));
    }
}
