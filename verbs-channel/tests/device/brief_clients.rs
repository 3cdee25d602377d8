//! Clients of an `rdma_cm` listener that leave as soon as they have connected, or before.

use std::net::SocketAddr;
use std::thread;

use verbs_channel::exchange::ExchangeError;
use verbs_channel::exchange::rdmacm::hello;
use verbs_channel::verbs_core::rdmacm::{Answer, Connector};
use verbs_channel::{Channel, DownReason, Error};
use verbs_harness::{PATIENCE, begin};

use super::by_manager::{Server, pair, pd_to};
use super::ends::{bounded, filled, patient, works, zeros};

/// An accept returned a channel whose peer leaves, or the failure of this peer alone.
fn is_of_the_client(accepted: Result<Channel, Error>) {
    match accepted {
        Ok(mut channel) => {
            let mut into = zeros(&channel, 64);
            let ended = bounded(|| channel.receive(into.scatter_element(..).unwrap()));
            let error = ended.unwrap_err();
            assert_eq!(
                error.down_reason(),
                Some(DownReason::PeerClosed),
                "{error:?}"
            );
        }
        Err(Error::Exchange(failure)) => {
            assert!(
                matches!(failure.error, ExchangeError::Manager(_)),
                "{failure:?}"
            );
            assert!(failure.peer.is_some(), "{failure}");
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// Accepts a client that leaves, and then one that stays.
fn only_one_accept_fails(server: &mut Server, client: impl FnOnce() + Send) {
    thread::scope(|threads| {
        threads.spawn(client);
        is_of_the_client(patient(&server.pd).accept_cm(&mut server.listener, PATIENCE));
    });
    let (mut client, mut accepted) = pair(server);
    works(&mut client, &mut accepted, 100);
}

#[test]
#[ignore = "needs an RDMA device"]
fn client_that_leaves_at_once_fails_its_own_accept_only() {
    let test = begin!();
    let Some(mut server) = Server::new(&test) else {
        return;
    };
    let addr = server.addr;
    for _ in 0..5 {
        only_one_accept_fails(&mut server, move || {
            drop(patient(&pd_to(addr)).connect_cm(addr, PATIENCE).unwrap());
        });
    }
}

/// The server's answer, which the client does not confirm.
fn answer(addr: SocketAddr) -> Answer {
    let mut prepared = patient(&pd_to(addr));
    let resolving = Connector::new().unwrap().resolve_addr(addr, PATIENCE);
    let resolved = resolving.unwrap().wait(Some(PATIENCE)).unwrap();
    let resolving = resolved.resolve_route(PATIENCE).unwrap();
    let route = resolving.wait(Some(PATIENCE)).unwrap();
    let asked = prepared.request_cm(route, &hello(b"").unwrap()).unwrap();
    asked.wait(Some(PATIENCE)).unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn client_that_leaves_before_it_confirms_fails_its_own_accept_only() {
    let test = begin!();
    let Some(mut server) = Server::new(&test) else {
        return;
    };
    let addr = server.addr;
    only_one_accept_fails(&mut server, move || drop(answer(addr)));
}

#[test]
#[ignore = "needs an RDMA device"]
fn message_of_a_client_that_leaves_at_once_is_delivered() {
    let test = begin!();
    let Some(mut server) = Server::new(&test) else {
        return;
    };
    let addr = server.addr;
    for _ in 0..5 {
        thread::scope(|threads| {
            threads.spawn(move || {
                let mut client = patient(&pd_to(addr)).connect_cm(addr, PATIENCE).unwrap();
                let from = filled(&client, 1, 64);
                // The server may leave before this has completed.
                drop(client.send(from.gather_element(..).unwrap()));
            });
            let mut prepared = patient(&server.pd);
            let into = server.pd.reg_mr(vec![0_u8; 64]).unwrap();
            prepared.start_receive(into).unwrap();
            let accepted = prepared.accept_cm(&mut server.listener, PATIENCE);
            let mut channel = accepted.unwrap();
            let received = channel.prepared_receives()[0];
            let (received, _) = bounded(|| channel.wait_success(received)).unwrap();
            assert_eq!(received.byte_len(), 64);
        });
    }
}
