//! Devices of iWARP, whose peers meet over TCP and connect by `rdma_cm`.
#![expect(unsafe_code, reason = "makes a device one of iWARP")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use soft_verbs::{Fabric, Host};
use verbs_channel::exchange::{Exchange, ExchangeError, Io, Side};
use verbs_channel::verbs_core::verbs_sys::IBV_TRANSPORT_IWARP;
use verbs_channel::{BufferPool, Channel, Connect, Error, PreparedChannel};

use super::{LONG, on_hosts, pd};

/// A channel on a device of iWARP, with a receive, and the pool of three blocks that this is of.
fn prepared() -> (PreparedChannel, BufferPool) {
    let pd = pd();
    // SAFETY: the device is alive, and this test alone has it.
    unsafe { (*pd.context().device().as_ptr()).transport_type = IBV_TRANSPORT_IWARP };
    let mut prepared = Channel::builder(&pd).max_recv_wr(2).build().unwrap();
    let pool = BufferPool::new(&pd, 8, 3).unwrap();
    prepared.start_receive(pool.take().unwrap()).unwrap();
    (prepared, pool)
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (stream, listener.accept().unwrap().0)
}

/// Runs an exchange until it is done.
fn run(mut stream: &TcpStream, exchange: &mut Exchange) -> Result<(), ExchangeError> {
    stream.set_read_timeout(Some(LONG)).unwrap();
    while let Some(io) = exchange.io()? {
        let moved = match io {
            Io::Write(bytes) => stream.write(bytes),
            Io::Read(buffer) => stream.read(buffer),
        };
        exchange.moved(moved);
    }
    Ok(())
}

#[test]
fn a_peer_over_tcp_gets_the_reason_why_there_is_no_connection() {
    // Neither a peer of another network, nor one of this whose device has no connection manager.
    for is_iwarp in [false, true] {
        on_hosts(&Fabric::real_time(1), |host: &Host, _| {
            let (prepared, pool) = prepared();
            let peer = prepared.endpoint();
            let (ours, theirs) = tcp_pair();
            let there = thread::spawn(move || {
                let exchange = match is_iwarp {
                    true => Exchange::by_manager(b"", Side::Connects),
                    false => Exchange::new(&peer, b""),
                };
                let mut exchange = exchange.unwrap();
                let met = run(&theirs, &mut exchange);
                // Both parts that come before the connection.
                met.and_then(|()| {
                    exchange.listens_at(None);
                    run(&theirs, &mut exchange)
                })
            });
            host.refuse("rdma_create_event_channel", libc::ENODEV);
            let error = prepared.exchange(&ours, LONG).unwrap_err();
            let Error::Exchange(failure) = error else {
                panic!("{error}");
            };
            let theirs = there.join().unwrap().unwrap_err();
            match &failure.error {
                ExchangeError::OtherTransport { .. } if !is_iwarp => {
                    assert!(matches!(theirs, ExchangeError::OtherTransport { .. }));
                }
                ExchangeError::Manager(error) if is_iwarp => {
                    assert_eq!(error.errno(), Some(libc::ENODEV));
                    assert!(theirs.to_string().contains("by rdma_cm"), "{theirs}");
                }
                _ => panic!("{failure} {theirs}"),
            }
            assert_eq!(pool.available(), 3);
        });
    }
}

#[test]
fn an_exchange_has_the_side_that_was_set() {
    for (ours, theirs) in [
        (Side::Accepts, Side::Accepts),
        (Side::Connects, Side::Either),
    ] {
        on_hosts(&Fabric::real_time(1), |_, _| {
            let (prepared, _pool) = prepared();
            let (stream, other) = tcp_pair();
            let there = thread::spawn(move || {
                let mut exchange = Exchange::by_manager(b"", theirs).unwrap();
                let met = run(&other, &mut exchange);
                (met, exchange.meeting().map(|meeting| meeting.listens))
            });
            // It ends when the peer does.
            let options = Connect::within(LONG).side(ours);
            prepared.exchange(&stream, options).unwrap_err();
            match (ours, there.join().unwrap()) {
                (Side::Accepts, (Err(error), None)) => {
                    let text = error.to_string();
                    assert!(text.contains("this side accepts, too"), "{text}");
                }
                (Side::Connects, (Ok(()), Some(listens))) => assert!(listens),
                other => panic!("{other:?}"),
            }
        });
    }
}
