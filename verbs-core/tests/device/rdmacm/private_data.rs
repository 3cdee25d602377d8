//! The messages that a connection manager carries.

use verbs_core::Error;
use verbs_core::error::ErrorKind;
use verbs_core::rdmacm::{CmEventType, Message};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{PATIENCE, begin, peer_name};

use super::{Server, both, client};

#[test]
#[ignore = "needs an RDMA device"]
fn rejection_has_the_message_of_the_peer() {
    let test = begin!();
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let (side, route) = client(server.addr);
    let step = route.connect(side.prepared(), b"").unwrap();
    server.request().reject(b"full").unwrap();
    let error = step.wait(Some(PATIENCE)).unwrap_err();
    let Error::ConnectionManager { failure, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(failure.event(), CmEventType::REJECTED);
    assert_eq!(failure.private_data().message(), Some(&b"full"[..]));
    assert_eq!(failure.to_string(), "the peer has rejected the request");
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_of_every_length_that_fits_arrive() {
    let test = begin!();
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let longest = if is_iwarp() { (250, 250) } else { (55, 195) };
    for (asked, answered) in [(0, 0), (1, 1), longest] {
        let bytes: Vec<u8> = (1..=255).collect();
        let (side, route) = client(server.addr);
        let asks = route.connect(side.prepared(), &bytes[..asked]).unwrap();
        let request = server.request();
        assert_eq!(request.private_data().message(), Some(&bytes[..asked]));
        let answers = request.accept(server.side.prepared(), &bytes[..answered]);
        let [asks, _] = both(asks, answers.unwrap());
        assert_eq!(asks.private_data.message(), Some(&bytes[..answered]));
    }
    let (side, route) = client(server.addr);
    let long = vec![0; longest.0 + 1];
    let error = route.connect(side.prepared(), &long[..]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
}

/// Whether these bytes arrived, with zeros behind them that fill the room; on iWARP with none.
fn is_padded(arrived: &[u8], sent: &[u8], room: usize) -> bool {
    let Some(padding) = arrived.strip_prefix(sent) else {
        return false;
    };
    let is_whole = padding.is_empty() || (arrived.len() == room && !is_iwarp());
    padding.iter().all(|byte| *byte == 0) && is_whole
}

#[test]
#[ignore = "needs an RDMA device"]
fn raw_private_data_arrives_as_it_was_sent_and_padded() {
    let test = begin!();
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let bytes: Vec<u8> = (1..=255).collect();
    // The second time they fill the room; the third time there are none.
    for (asked, answered, rejected) in [(1, 2, 3), (56, 196, 148), (0, 0, 0)] {
        let raw = |len| Message::raw(&bytes[..len]);
        let (side, route) = client(server.addr);
        let asks = route.connect(side.prepared(), raw(asked)).unwrap();
        let request = server.request();
        let arrived = *request.private_data();
        assert!(is_padded(arrived.as_bytes(), &bytes[..asked], 56));
        let answers = request.accept(server.side.prepared(), raw(answered));
        let [asks, _] = both(asks, answers.unwrap());
        let arrived = asks.private_data;
        assert!(is_padded(arrived.as_bytes(), &bytes[..answered], 196));

        let (side, route) = client(server.addr);
        let asks = route.connect(side.prepared(), b"").unwrap();
        server.request().reject(raw(rejected)).unwrap();
        let error = asks.wait(Some(PATIENCE)).unwrap_err();
        let Error::ConnectionManager { failure, .. } = error else {
            panic!("{error}");
        };
        let arrived = *failure.private_data();
        assert!(is_padded(arrived.as_bytes(), &bytes[..rejected], 148));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_that_do_not_fit_are_errors_and_reject_the_peer() {
    let test = begin!();
    let Some(mut server) = Server::new(&test, &peer_name()) else {
        return;
    };
    let long = [0; 256];
    for accepts in [true, false] {
        let (side, route) = client(server.addr);
        let asks = route.connect(side.prepared(), b"").unwrap();
        let request = server.request();
        let error = if accepts {
            request.accept(server.side.prepared(), &long).unwrap_err()
        } else {
            request.reject(Message::raw(&long)).unwrap_err()
        };
        assert_eq!(error.kind(), ErrorKind::Limit);
        let error = asks.wait(Some(PATIENCE)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionManager, "{error}");
    }
}
