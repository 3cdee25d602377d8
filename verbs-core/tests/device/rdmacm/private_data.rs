//! The messages that a connection manager carries.

use verbs_core::Error;
use verbs_core::error::ErrorKind;
use verbs_core::rdmacm::{CmEventType, Message, PrivateData};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{PATIENCE, begin};

use super::{Server, both, client};

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
fn messages_that_do_not_fit_are_errors_and_reject_the_peer() {
    let test = begin!();
    let mut server = server!(test);
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

/// One message of each kind of answer arrives as `is_arrived` has it, given the room for raw data.
fn arrive<'b>(
    server: &mut Server,
    message: fn(&'b [u8]) -> Message<'b>,
    [asked, answered, rejected]: [&'b [u8]; 3],
    is_arrived: fn(&PrivateData, &[u8], usize) -> bool,
) {
    let (side, route) = client(server.addr);
    let asks = route.connect(side.prepared(), message(asked)).unwrap();
    let request = server.request();
    assert!(is_arrived(request.private_data(), asked, 56));
    let answers = request.accept(server.side.prepared(), message(answered));
    let [asks, _] = both(asks, answers.unwrap());
    assert!(is_arrived(&asks.private_data, answered, 196));

    let (side, route) = client(server.addr);
    let asks = route.connect(side.prepared(), b"").unwrap();
    server.request().reject(message(rejected)).unwrap();
    let error = asks.wait(Some(PATIENCE)).unwrap_err();
    let Error::ConnectionManager { failure, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(failure.event(), CmEventType::REJECTED);
    assert_eq!(failure.to_string(), "the peer has rejected the request");
    assert!(is_arrived(failure.private_data(), rejected, 148));
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_and_raw_data_of_every_length_that_fits_arrive() {
    let test = begin!();
    let mut server = server!(test);
    let bytes: Vec<u8> = (1..=255).collect();
    let longest = if is_iwarp() { [250; 3] } else { [55, 195, 147] };
    for lengths in [[0; 3], [1; 3], longest] {
        let parts = lengths.map(|len| &bytes[..len]);
        arrive(&mut server, Message::from, parts, |data, sent, _| {
            data.message() == Some(sent)
        });
    }
    // The second time they fill the room; the third time there are none.
    for lengths in [[1, 2, 3], [56, 196, 148], [0; 3]] {
        let parts = lengths.map(|len| &bytes[..len]);
        arrive(&mut server, Message::raw, parts, |data, sent, room| {
            is_padded(data.as_bytes(), sent, room)
        });
    }
    let (side, route) = client(server.addr);
    let error = route.connect(side.prepared(), &bytes[..=longest[0]]);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Limit);
}
