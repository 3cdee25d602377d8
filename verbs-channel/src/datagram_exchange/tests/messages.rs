//! Each message, and its loss.

use super::*;
use crate::exchange::RefusalCode;

#[test]
fn both_sides_have_the_endpoint_and_the_data_of_the_other() {
    let mut pair = Pair::new();
    let (id, _) = pair.accepted();
    assert_eq!(pair.client_peer().endpoint, endpoint(0x99, 9));
    pair.connector.ready();
    let ready = pair.client_sends().unwrap();
    assert_eq!(pair.acceptor.outcome(id, pair.now).map(|_| ()), None);
    let confirm = pair.server_gets(&ready).unwrap();
    assert!(pair.acceptor.outcome(id, pair.now).is_none(), "DONE is due");
    pair.connector.received(&confirm);
    let done = pair.client_sends().unwrap();
    assert_eq!(pair.client_peer().endpoint, endpoint(0x99, 9));
    assert_eq!(pair.server_gets(&done), None);
    pair.acceptor.outcome(id, pair.now).unwrap().unwrap();
    let error = pair.acceptor.outcome(id, pair.now).unwrap().unwrap_err();
    assert!(matches!(error, ExchangeError::Over), "it is returned once");
}

#[test]
fn client_without_answers_fails_at_its_deadline() {
    let mut pair = Pair::new();
    let start = pair.now;
    let mut sent = 0;
    let error = loop {
        match pair.connector.step(pair.now) {
            Ok(Step::Send(_)) => sent += 1,
            Ok(Step::Wait(until)) => {
                assert!(until > pair.now && until <= start + 3 * SECOND);
                pair.now = until;
            }
            Ok(Step::Done(peer)) => panic!("{peer:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(pair.now, start + 3 * SECOND);
    assert!((25..40).contains(&sent), "{sent}");
    assert_eq!(error.to_string(), "the peer did not answer within 3 s");
    assert!(matches!(pair.client_error(), ExchangeError::Over));
}

#[test]
fn client_that_gives_up_notifies_the_server() {
    // Before it is accepted, while its request waits, and after.
    let mut pair = Pair::new();
    pair.requests();
    pair.pass(3 * SECOND);
    let refused = pair.client_sends().unwrap();
    assert_eq!(pair.server_gets(&refused), None);
    assert!(pair.acceptor.next_request(pair.now).is_none());
    assert_eq!(pair.acceptor.clients(), 0, "another one can have its place");

    let mut pair = Pair::new();
    let (id, _) = pair.accepted();
    pair.connector.ready();
    pair.client_sends().unwrap();
    pair.pass(3 * SECOND);
    let refused = pair.client_sends().unwrap();
    assert_eq!(
        pair.client_error().to_string(),
        "the peer did not confirm within 3 s"
    );
    pair.server_gets(&refused);
    let error = pair.acceptor.outcome(id, pair.now).unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the peer refused the connection: \"the peer did not confirm within 3 s\""
    );

    // During the server's handshake: the answer is not sent.
    let mut pair = Pair::new();
    let id = pair.requested();
    pair.pass(3 * SECOND);
    let refused = pair.client_sends().unwrap();
    pair.server_gets(&refused);
    let error = pair.acceptor.answer(id, &endpoint(0x99, 1), b"", pair.now);
    assert!(
        matches!(error, Err(ExchangeError::Refused { .. })),
        "{error:?}"
    );
}

#[test]
fn handshakes_that_fail_are_refused_with_the_reason() {
    let no_room = std::io::Error::other("no room");
    let mut pair = Pair::new();
    let id = pair.requested();
    let refused = pair.acceptor.refuse(id, &no_room).unwrap();
    assert_eq!(refused.to, place(1));
    pair.connector.received(&refused.bytes);
    assert_eq!(
        pair.client_error().to_string(),
        "the peer refused the connection: \"no room\""
    );

    let mut pair = Pair::new();
    let (id, _) = pair.accepted();
    pair.connector.refuse(&no_room);
    let refused = pair.client_sends().unwrap();
    assert!(matches!(pair.client_error(), ExchangeError::Over));
    pair.server_gets(&refused);
    let error = pair.acceptor.outcome(id, pair.now).unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the peer refused the connection: \"no room\""
    );
}

#[test]
fn silent_client_is_given_up() {
    let mut pair = Pair::new();
    let (id, _) = pair.accepted();
    let due = pair.acceptor.due(id).unwrap();
    assert_eq!(due, pair.now + 5 * SECOND);
    assert!(pair.acceptor.outcome(id, due - MILLISECOND).is_none());
    let error = pair.acceptor.outcome(id, due).unwrap().unwrap_err();
    assert!(matches!(error, ExchangeError::TimedOut { .. }), "{error}");

    // The handshake of the server is not the client's silence.
    let mut pair = Pair::new();
    let id = pair.requested();
    pair.pass(6 * SECOND);
    let answer = pair.acceptor.answer(id, &endpoint(0x99, 1), b"", pair.now);
    answer.unwrap();
    assert!(pair.acceptor.outcome(id, pair.now).is_none());

    // One that waits is not even taken.
    let mut pair = Pair::new();
    pair.requests();
    pair.pass(5 * SECOND);
    assert!(pair.acceptor.next_request(pair.now).is_none());
}

#[test]
fn messages_from_elsewhere_do_not_count() {
    let mut pair = Pair::new();
    let (id, _) = pair.accepted();
    pair.connector.ready();
    let ready = pair.client_sends().unwrap();
    let answer = pair.acceptor.received(&place(2), &ready, pair.now).unwrap();
    assert_eq!(answer.to, place(2));
    let due = pair.acceptor.due(id).unwrap();
    pair.acceptor.outcome(id, due).unwrap().unwrap_err();
}

#[test]
fn server_that_restarted_is_noticed_at_once() {
    let mut pair = Pair::new();
    let (_, old_accept) = pair.accepted();
    pair.connector.ready();
    let ready = pair.client_sends().unwrap();
    pair.acceptor = Acceptor::new(MTU, LIMIT, pair.now);
    let unknown = pair.server_gets(&ready).unwrap();
    pair.connector.received(&unknown);
    let error = pair.client_error();
    let ExchangeError::Refused { code, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(code, RefusalCode::UNKNOWN);
    assert!(error.to_string().contains("restarted"), "{error}");

    // Its old cookies are replaced, and what it has accepted before is not mixed with its new numbers.
    let mut pair = Pair::new();
    let request = pair.client_sends().unwrap();
    let cookie = pair.server_gets(&request).unwrap();
    pair.connector.received(&cookie);
    pair.acceptor = Acceptor::new(MTU, LIMIT, pair.now);
    let request = pair.client_sends().unwrap();
    let cookie = pair.server_gets(&request).unwrap();
    pair.connector.received(&cookie);
    pair.connector.received(&old_accept);
    let request = pair.client_sends().unwrap();
    assert_eq!(pair.server_gets(&request), None);
    let id = pair.acceptor.next_request(pair.now).unwrap().id();
    let accept = pair.acceptor.answer(id, &endpoint(0x99, 10), b"", pair.now);
    pair.connector.received(&accept.unwrap().bytes);
    assert_eq!(pair.client_peer().endpoint, endpoint(0x99, 10));
}

#[test]
fn other_versions_are_refused_in_both_directions() {
    let mut pair = Pair::new();
    let mut request = pair.client_sends().unwrap();
    request[5] = 2;
    let refused = pair.server_gets(&request).unwrap();
    assert!(refused.len() <= request.len());
    pair.connector.received(&refused);
    let error = pair.client_error();
    let ExchangeError::Refused { code, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(code, RefusalCode::VERSION);

    let mut pair = Pair::new();
    let request = pair.client_sends().unwrap();
    let mut cookie = pair.server_gets(&request).unwrap();
    cookie[5] = 2;
    pair.connector.received(&cookie);
    pair.client_sends().unwrap();
    assert!(matches!(pair.client_error(), ExchangeError::Version(2)));
}

#[test]
fn private_data_is_limited_by_the_mtu_of_both_ports() {
    use MaximumTransferUnit::{Mtu256, Mtu512, Mtu1024, Mtu2048, Mtu4096};
    let now = Instant::now();
    let ours = endpoint(0x99, 1);
    for (mtu, max) in [
        (Mtu256, 185),
        (Mtu512, 441),
        (Mtu1024, 953),
        (Mtu2048, 1024),
        (Mtu4096, 1024),
    ] {
        // The port of either side may be the shorter one.
        for (server, max_payload) in [(mtu, 4096), (Mtu4096, mtu.bytes())] {
            let server = with_mtu(0, server);
            let new = |len| Connector::new(&server, &ours, &vec![7; len], max_payload, now, SECOND);
            let mut connector = new(max).unwrap();
            let Step::Send(request) = connector.step(now).unwrap() else {
                panic!("it waits");
            };
            assert!(request.len() <= mtu.bytes() as usize);
            assert_eq!(request.len(), 71 + max);
            let error = new(max + 1).unwrap_err();
            if max < 1024 {
                assert_eq!(
                    error.to_string(),
                    format!(
                        "{} bytes of private data; at most {max} fit into a datagram to the peer",
                        max + 1
                    )
                );
            } else {
                assert!(matches!(error, ExchangeError::PrivateData(1025)), "{error}");
            }
        }
        for (client, server) in [(mtu.bytes(), 4096), (4096, mtu.bytes())] {
            let mut acceptor = Acceptor::new(server, LIMIT, now);
            let mut connector = Connector::new(&place(0), &ours, b"", client, now, SECOND).unwrap();
            let id = loop {
                if let Some(request) = acceptor.next_request(now) {
                    assert_eq!(request.max_private_data(), (max + 10).min(1024));
                    break request.id();
                }
                let Step::Send(request) = connector.step(now).unwrap() else {
                    panic!("it waits");
                };
                if let Some(Answer { bytes, .. }) = acceptor.received(&place(1), request, now) {
                    connector.received(&bytes);
                }
            };
            let max = (max + 10).min(1024);
            let error = acceptor.answer(id, &ours, &vec![7; max + 1], now);
            error.unwrap_err();
            let accept = acceptor.answer(id, &ours, &vec![7; max], now).unwrap();
            assert_eq!(accept.bytes.len(), 61 + max);
            assert!(accept.bytes.len() <= mtu.bytes() as usize);
        }
    }
}

#[test]
fn a_late_request_of_an_exchange_that_the_server_has_ended_changes_nothing() {
    let mut pair = Pair::new();
    let late = pair.requests();
    let first = pair.acceptor.next_request(pair.now).unwrap().id();
    let accept = pair
        .acceptor
        .answer(first, &endpoint(0x99, 1), b"", pair.now);
    pair.connector.received(&accept.unwrap().bytes);
    pair.acceptor.abandon(first).unwrap_err();
    // It has the client's number, and another one of the server's.
    assert_eq!(pair.server_gets(&late), None);
    let second = pair.acceptor.next_request(pair.now).unwrap().id();
    let refused = pair.acceptor.refuse(second, &std::io::Error::other("no"));
    pair.connector.received(&refused.unwrap().bytes);
    assert_eq!(pair.client_peer().endpoint, endpoint(0x99, 1));
    assert_eq!(pair.server_gets(&late), None);
    assert_eq!(pair.acceptor.clients(), 1);
    // Its READY is for the first one, which is no more.
    pair.connector.ready();
    let ready = pair.client_sends().unwrap();
    let unknown = pair.server_gets(&ready).unwrap();
    pair.connector.received(&unknown);
    assert!(matches!(pair.client_error(), ExchangeError::Refused { .. }));
}
