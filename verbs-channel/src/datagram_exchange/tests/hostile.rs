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
    let mut connector = connector(number, now);
    while let Ok(Step::Send(request)) = connector.step(now) {
        let Some(answer) = acceptor.received(&place(number), request, now) else {
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

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and the protocol has no unsafe code")]
fn any_bytes_are_survived() {
    let mut numbers = Numbers(crate::nonce::random());
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
