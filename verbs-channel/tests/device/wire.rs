//! Faults of the wire during operations: the deadline ends those that the device does not.

use std::time::Instant;

use verbs_channel::verbs_core::codes::WcStatus;
use verbs_harness::wire::Disturbed;
use verbs_harness::{PATIENCE, begin, faults, until, wire};

use super::ends::{
    bounded, filled, given, impatient, meet, pair_of, retries, stubborn, work_error, works, zeros,
};

#[test]
#[ignore = "needs an RDMA device"]
fn total_loss_fails_by_the_devices_timeout() {
    let test = begin!(alone, iwarp lacks "retries");
    let Some([here, _]) = wire::netdevs(&test) else {
        return;
    };
    let (mut a, mut b) = pair_of(impatient);
    works(&mut a, &mut b, 1000);
    let from = filled(&a, 1, 5000);
    let _broken = wire::netem(&here, &["loss", "100%"]);
    let start = Instant::now();
    let error = bounded(|| a.send(from.gather_element(..).unwrap())).unwrap_err();
    faults::error(faults::ALL_PACKETS, "channel", &error, retries(start));
    assert_eq!(work_error(&error).status, WcStatus::RETRY_EXC_ERR);
    assert!(a.is_down() && !b.is_down());
}

#[test]
#[ignore = "needs an RDMA device"]
fn link_down_ends_operations_in_flight() {
    let test = begin!(alone, iwarp lacks "retries");
    let Some([here, there]) = wire::netdevs(&test) else {
        return;
    };
    for (fault, netdev) in [(faults::LINK, &here), (faults::PEERS_LINK, &there)] {
        let (mut a, mut b) = pair_of(impatient);
        works(&mut a, &mut b, 1000);
        let target = given(&b, vec![0_u8; 5000]);
        let receive = a.start_receive(zeros(&a, 64)).unwrap();
        let broken = wire::down(netdev);
        let (from, start) = (filled(&a, 1, 5000), Instant::now());
        let error = bounded(|| a.write(from.gather_element(..).unwrap(), target.remote()));
        let error = error.unwrap_err();
        faults::error(fault, "channel", &error, retries(start));
        assert_ne!(work_error(&error).status, WcStatus::SUCCESS);
        assert!(a.is_down());
        let ended = bounded(|| a.wait(receive, Some(PATIENCE)))
            .unwrap()
            .unwrap();
        assert!(ended.result.is_err() && ended.buffer.is_some());
        drop(broken);
        // New channels work again.
        let (to_be_a, to_be_b) = (a.reset().unwrap(), b.reset().unwrap());
        (a, b) = meet(to_be_a, to_be_b);
        works(&mut a, &mut b, 1000);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn bytes_survive_loss_and_reordering() {
    let test = begin!(alone, iwarp lacks "retries");
    let Some(netdevs) = wire::netdevs(&test) else {
        return;
    };
    for disturbance in wire::DISTURBANCES {
        let (mut a, mut b) = pair_of(stubborn);
        let disturbed = Disturbed::new(&netdevs, disturbance);
        let seen = until(PATIENCE, || {
            let start = Instant::now();
            works(&mut a, &mut b, 20_000);
            works(&mut b, &mut a, 20_001);
            let within = retries(start);
            faults::seen(faults::SOME_PACKETS, "channel", faults::SLOWER, within);
            disturbed.was_seen()
        });
        assert!(seen, "{disturbance:?}: not a packet");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn sends_from_and_to_an_address_that_was_removed_fail() {
    let test = begin!(alone, iwarp lacks "retries");
    let Some([here, there]) = wire::netdevs(&test) else {
        return;
    };
    for (fault, netdev) in [(faults::ADDRESS, here), (faults::PEERS_ADDRESS, there)] {
        let (mut a, mut b) = pair_of(impatient);
        works(&mut a, &mut b, 1000);
        let from = filled(&a, 1, 5000);
        let (_broken, start) = (wire::without_address(&netdev), Instant::now());
        let error = bounded(|| a.send(from.gather_element(..).unwrap())).unwrap_err();
        faults::error(fault, "channel", &error, retries(start));
        assert!(a.is_down());
    }
}
