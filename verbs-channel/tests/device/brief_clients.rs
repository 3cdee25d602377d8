//! Clients of an `rdma_cm` listener that leave as soon as they have connected, or before.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use verbs_channel::__private::{CmExchange, CmStep};
use verbs_channel::connect::Met;
use verbs_channel::exchange::ExchangeError;
use verbs_channel::{Channel, Connect, DownReason, Error, Peer};
use verbs_harness::{PATIENCE, begin};

use super::by_manager::{Server, pair, pd_to};
use super::ends::{bounded, filled, patient, works, zeros};

/// An accept returned a channel whose peer leaves, or the failure of this peer alone.
fn is_of_the_client(accepted: Result<Met<Channel>, Error>) {
    match accepted.map(|met| met.channel) {
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
        is_of_the_client(patient(&server.pd).accept(&mut server.listener, PATIENCE));
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
            drop(
                patient(&pd_to(addr))
                    .connect(Peer::cm(addr), PATIENCE)
                    .unwrap()
                    .channel,
            );
        });
    }
}

/// A client that leaves when the server has accepted, and does not confirm.
fn leaves_unconfirmed(addr: SocketAddr) {
    let prepared = patient(&pd_to(addr));
    let options = Connect::within(PATIENCE);
    let mut exchange = CmExchange::connect(prepared, vec![addr], &options, Instant::now()).unwrap();
    while let CmStep::Wait(_) = exchange.step().unwrap() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn client_that_leaves_before_it_confirms_fails_its_own_accept_only() {
    let test = begin!();
    let Some(mut server) = Server::new(&test) else {
        return;
    };
    let addr = server.addr;
    only_one_accept_fails(&mut server, move || leaves_unconfirmed(addr));
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
                let mut client = patient(&pd_to(addr))
                    .connect(Peer::cm(addr), PATIENCE)
                    .unwrap()
                    .channel;
                let from = filled(&client, 1, 64);
                // The server may leave before this has completed.
                let _ended = client.send(from.gather_element(..).unwrap());
            });
            let mut prepared = patient(&server.pd);
            let into = server.pd.reg_mr(vec![0_u8; 64]).unwrap();
            prepared.start_receive(into).unwrap();
            let accepted = prepared.accept(&mut server.listener, PATIENCE);
            let mut channel = accepted.unwrap().channel;
            let received = channel.prepared_receives()[0];
            let (received, _) = bounded(|| channel.wait_success(received)).unwrap();
            assert_eq!(received.byte_len(), 64);
        });
    }
}
