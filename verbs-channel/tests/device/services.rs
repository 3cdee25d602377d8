//! Datagram endpoints that find each other by `rdma_cm`.

use std::net::SocketAddr;
use std::thread;

use verbs_channel::datagrams::DatagramsConfig;
use verbs_channel::exchange::ExchangeError;
use verbs_channel::verbs_core::path::QKey;
use verbs_channel::verbs_core::rdmacm::{DatagramListener, Message, PrivateData};
use verbs_channel::{BufferPool, Datagrams, Error, verbs_core};
use verbs_harness::{PATIENCE, Test, begin};

use super::by_manager::pd_to;
use super::ends::{SOON, there};

/// An endpoint and a listener on the device at the other end of the wire, at its IPv4 address.
fn service(test: &Test) -> Option<(Datagrams, DatagramListener, SocketAddr)> {
    let pd = there();
    let Some(ip) = verbs_harness::ip(pd.context()) else {
        test.skip("the device has no IPv4 address");
        return None;
    };
    let listener = DatagramListener::bind((ip, 0).into(), 16).unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = Datagrams::builder(&pd).qkey(QKey::RDMA_UDP).build();
    Some((serving.unwrap(), listener, addr))
}

fn client(addr: SocketAddr) -> (DatagramsConfig, BufferPool) {
    let pd = pd_to(addr);
    (
        Datagrams::builder(&pd).config(),
        BufferPool::new(&pd, 64, 4).unwrap(),
    )
}

fn error<T: std::fmt::Debug>(result: Result<T, Error>) -> ExchangeError {
    match result {
        Err(Error::Exchange(failure)) => failure.error,
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn endpoints_find_each_other_and_exchange_datagrams() {
    let test = begin!(iwarp lacks "datagrams");
    let Some((mut serving, mut listener, addr)) = service(&test) else {
        return;
    };
    let peer = thread::spawn(move || {
        let (config, pool) = client(addr);
        let mut asking = config.build().unwrap();
        for message in [Message::from(b"please"), Message::raw(b"please")] {
            let found = asking.find_cm(addr, PATIENCE, message);
            let (service, answer) = found.unwrap();
            assert_eq!(answer.message(), Some(&b"gladly"[..]));
            let marco = pool.take_with(b"marco").unwrap().unwrap();
            asking.send_to(&service, marco).unwrap();
            let back = asking.receive_from(Some(PATIENCE)).unwrap().unwrap();
            assert_eq!((&*back, back.from()), (&b"marco"[..], service));
        }
    });
    for is_raw in [false, true] {
        let request = listener.request(Some(PATIENCE)).unwrap().unwrap();
        let come: &PrivateData = request.private_data();
        match is_raw {
            true => assert!(come.as_bytes().starts_with(b"please\0")),
            false => assert_eq!(come.message(), Some(&b"please"[..])),
        }
        serving.answer_cm(request, b"gladly").unwrap();
        let marco = serving.receive_from(Some(PATIENCE)).unwrap().unwrap();
        assert_eq!(&*marco, b"marco");
        let from = marco.from();
        serving.send_to(&from, marco.into_buffer()).unwrap();
        serving.flush(Some(PATIENCE));
    }
    peer.join().unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn services_that_are_not_found_are_errors_in_time() {
    let test = begin!(iwarp lacks "datagrams");
    let Some((serving, mut listener, addr)) = service(&test) else {
        return;
    };
    let (config, _) = client(addr);
    let mut asking = config.build().unwrap();
    // It never answers. On a slow machine, the time may be over before it is asked.
    let mut time = SOON;
    loop {
        let failure = error(asking.find_cm(addr, time, b""));
        assert!(
            matches!(failure, ExchangeError::TimedOut { .. }),
            "{failure:?}"
        );
        if let Some(request) = listener.request(Some(SOON)).unwrap() {
            drop(request);
            break;
        }
        time *= 2;
        assert!(time < PATIENCE, "it is never asked");
    }
    // Messages that are too long.
    let failure = error(asking.find_cm(addr, SOON, &[0; 180]));
    let is_limit = |failure: &ExchangeError, limits| matches!(failure, ExchangeError::PrivateDataBeyondManager { len, max } if (*len, *max) == limits);
    assert!(is_limit(&failure, (180, 179)), "{failure:?}");

    let rejecting = thread::spawn(move || {
        let mut next = || listener.request(Some(PATIENCE)).unwrap().unwrap();
        // With a reason of this crate, with bytes of another program, and without any.
        let full = b"VRBC\0\x01\x09\0\x04no room";
        next().reject(Message::raw(full)).unwrap();
        next().reject(Message::raw(b"\x01no")).unwrap();
        drop(next());
        // A request that cannot be answered is rejected.
        let failure = error(serving.answer_cm(next(), &[0; 136]));
        assert!(is_limit(&failure, (136, 135)), "{failure:?}");
        let other = Datagrams::builder(&there()).qkey(QKey::new(7).unwrap());
        let failure = error(other.build().unwrap().answer_cm(next(), b""));
        assert!(matches!(failure, ExchangeError::OtherKey), "{failure:?}");
        (serving, listener)
    });
    let failure = asking.find_cm(addr, PATIENCE, b"").unwrap_err();
    let text = format!("{addr} refused the connection: \"no room\"");
    assert_eq!(failure.to_string(), text);
    for expected in [Some(&b"n"[..]), None, None, None] {
        let failure = error(asking.find_cm(addr, PATIENCE, b""));
        let ExchangeError::Manager(verbs_core::Error::ConnectionManager { failure, .. }) = failure
        else {
            panic!("{failure:?}");
        };
        let come = failure.private_data();
        assert_eq!(come.message().filter(|come| !come.is_empty()), expected);
    }
    // There is none any more.
    drop(rejecting.join().unwrap());
    let failure = error(asking.find_cm(addr, 5 * SOON, b""));
    let ExchangeError::NotListening { after, .. } = failure else {
        panic!("{failure:?}");
    };
    assert_eq!(after, Some(5 * SOON));
}
