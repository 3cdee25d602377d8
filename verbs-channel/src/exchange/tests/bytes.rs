//! All values of each byte that a peer sends.

use std::time::Instant;

use verbs_core::QueuePairEndpoint;
use verbs_harness::faults;

use super::{ENDPOINT, READY, begin, endpoint, frame, good, of, run};
use crate::exchange::{ExchangeError, HEADER, PeerEndpoint};

/// Runs the whole exchange with a peer that sends these bytes.
fn met(theirs: &mut &[u8]) -> Result<PeerEndpoint, ExchangeError> {
    let mut exchange = begin(2, b"");
    let mut ended = run(&mut exchange, theirs, 7).0;
    if ended.is_ok() {
        exchange.ready();
        ended = run(&mut exchange, theirs, 7).0;
    }
    if ended.is_err() {
        assert!(matches!(exchange.io(), Err(ExchangeError::Over)));
    }
    ended
}

/// A peer may choose the numbers of its endpoint: each other byte of it, and of the frames, has one value.
#[test]
fn each_byte_of_the_exchange_may_have_any_value() {
    let truth = [good(3), frame(1, READY, 0, b"")].concat();
    let payload = HEADER..good(3).len();
    // Miri is slow.
    let values = (0..=255).step_by(if cfg!(miri) { 51 } else { 1 });
    let cases = (0..truth.len()).flat_map(|at| values.clone().map(move |value| (at, value)));
    for (at, value) in cases {
        let mut bytes = truth.clone();
        bytes[at] = value;
        // The handshake is given the endpoint as it was sent.
        let sent = QueuePairEndpoint::from_bytes(&bytes[payload.clone()]);
        let is_valid = bytes == truth || payload.contains(&at);
        let expected = sent.ok().filter(|_| is_valid);
        match (met(&mut &bytes[..]), expected) {
            (Ok(peer), Some(endpoint)) => {
                assert_eq!(
                    (peer.endpoint, &peer.private_data[..]),
                    (endpoint, &b""[..])
                );
            }
            (Err(error), None) => {
                let text = error.to_string();
                assert!(
                    text.contains("the peer") && text.len() < 200,
                    "{value} at {at}: {text}"
                );
            }
            (met, expected) => panic!("{value} at {at}: {met:?} in place of {expected:?}"),
        }
    }
    for sent in [
        frame(2, ENDPOINT, 37, &endpoint(3).to_bytes()),
        b"HTTP/1.1 400 Bad Request".to_vec(),
        frame(1, ENDPOINT, 1 << 20, b""),
        frame(1, ENDPOINT, 37, &[0; 37]),
    ] {
        let start = Instant::now();
        let (error, _) = of(&sent);
        faults::error(faults::INVALID, "channel", &error, faults::at_once(start));
    }
}
