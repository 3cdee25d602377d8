//! Cards on a network, without C's objects.

mod clocks;

use std::time::Duration;

use soft_nic::{
    AddressVector, CompletionQueueId, Data, Psn, QueuePairOptions, ReceiveRequest, SendOpcode,
    SendRequest, Status, Transport,
};

use super::{Fabric, Host};

const QUEUE: CompletionQueueId = CompletionQueueId(0);

/// Two hosts with queue pair 16, connected.
fn pair(fabric: &Fabric) -> [Host; 2] {
    let hosts = ["a", "b"].map(|name| fabric.host(name));
    for (host, peer) in [(&hosts[0], &hosts[1]), (&hosts[1], &hosts[0])] {
        let peer = peer.cards()[0].call(|locked| locked.nic.gid(0).unwrap());
        host.cards()[0].call(|locked| {
            let pd = locked.nic.alloc_pd().unwrap();
            assert_eq!(locked.nic.create_cq(1000), Ok(QUEUE));
            let options = QueuePairOptions {
                max_send_wr: 500,
                max_recv_wr: 500,
                ..QueuePairOptions::new(Transport::Rc, pd, QUEUE)
            };
            assert_eq!(locked.nic.create_qp(&options), Ok(16));
            let path = AddressVector::to(peer);
            let psn = Psn::new(7);
            locked.nic.connect(16, path, psn, 16, psn).unwrap();
        });
    }
    hosts
}

/// Posts a message without bytes from a to b.
fn post([a, b]: &[Host; 2], wr_id: u64) {
    let receive = ReceiveRequest {
        wr_id,
        elements: Vec::new(),
    };
    b.cards()[0].call(|locked| locked.nic.post_receive(16, receive).unwrap());
    let send = SendRequest::new(wr_id, SendOpcode::Send, Data::Elements(Vec::new()));
    a.cards()[0].call(|locked| locked.nic.post_send(16, send).unwrap());
}

/// The statuses of all completions.
fn polled(host: &Host) -> Vec<Status> {
    let poll = || host.cards()[0].call(|locked| locked.poll_cq(QUEUE));
    std::iter::from_fn(poll)
        .map(|completion| completion.status)
        .collect()
}

#[test]
fn packets_arrive_when_virtual_time_has_come_to_them() {
    let fabric = Fabric::seeded(1);
    let hosts = pair(&fabric);
    fabric
        .link(&hosts[0], &hosts[1])
        .delay(Duration::from_millis(3));
    post(&hosts, 1);
    assert!(polled(&hosts[1]).is_empty());
    assert!(fabric.step());
    assert_eq!(polled(&hosts[1]), [Status::SUCCESS]);
    assert!(
        polled(&hosts[0]).is_empty(),
        "the acknowledgement is on its way"
    );
    assert!(hosts[0].cards()[0].idle());
    assert_eq!(polled(&hosts[0]), [Status::SUCCESS]);
    assert_eq!((fabric.steps(), fabric.now().as_millis()), (2, 6));
}

#[test]
fn in_real_time_packets_arrive_at_once_and_steps_do_nothing() {
    let fabric = Fabric::real_time(1);
    let hosts = pair(&fabric);
    post(&hosts, 1);
    assert!(!fabric.step());
    assert_eq!(
        [polled(&hosts[0]), polled(&hosts[1])],
        [[Status::SUCCESS]; 2]
    );
}

#[test]
fn a_timer_does_not_wait_for_a_packet_that_is_on_its_way() {
    let fabric = Fabric::seeded(1);
    let hosts = pair(&fabric);
    let back = fabric.one_way(&hosts[1], &hosts[0]);
    back.delay(Duration::from_secs(1));
    post(&hosts, 1);
    fabric.run_for(Duration::from_millis(900));
    let repeated = fabric.counts().sent;
    assert!(
        repeated > 6,
        "the send is repeated while its answer comes: {repeated}"
    );
}

#[test]
fn a_link_that_is_cut_loses_all_until_it_is_mended() {
    let fabric = Fabric::seeded(1);
    let hosts = pair(&fabric);
    fabric.one_way(&hosts[1], &hosts[0]).cut();
    post(&hosts, 1);
    fabric.run_for(Duration::from_millis(200));
    assert_eq!([polled(&hosts[0]).len(), polled(&hosts[1]).len()], [0, 1]);
    assert!(fabric.counts().cut > 1, "{:?}", fabric.counts());
    fabric.one_way(&hosts[1], &hosts[0]).mend();
    fabric.run_for(Duration::from_secs(1));
    assert_eq!(polled(&hosts[0]), [Status::SUCCESS]);
}

#[test]
fn a_change_at_a_step_comes_then_whatever_the_network_does() {
    let fabric = Fabric::seeded(1);
    let hosts = pair(&fabric);
    fabric.link(&hosts[0], &hosts[1]).at_step(3).cut();
    for step in 1..6 {
        fabric.step();
        assert_eq!(fabric.steps(), step);
        post(&hosts, step);
        assert_eq!(fabric.counts().cut > 0, step >= 3);
    }
}

#[test]
fn a_stopped_host_goes_on_where_it_was_and_a_dead_one_has_a_successor() {
    let fabric = Fabric::seeded(1);
    let hosts = pair(&fabric);
    hosts[1].stop();
    post(&hosts, 1);
    fabric.run_for(Duration::from_millis(200));
    assert_eq!([polled(&hosts[0]).len(), polled(&hosts[1]).len()], [0, 0]);
    hosts[1].resume();
    fabric.run_for(Duration::from_secs(1));
    assert_eq!(polled(&hosts[0]), [Status::SUCCESS]);
    assert!(fabric.counts().stopped > 0);

    assert_eq!(fabric.host("b").number(), hosts[1].number());
    hosts[1].die();
    hosts[1].resume();
    let card = &hosts[1].cards()[0];
    assert_eq!(card.verb("ibv_alloc_pd", |_| Ok(())), Err(libc::EIO));
    assert_eq!(card.verb("ibv_destroy_qp", |_| Ok(())), Ok(()));
    let heir = fabric.host("b");
    let gid = |host: &Host| host.cards()[0].call(|locked| locked.nic.gid(0));
    assert_eq!(gid(&heir), gid(&hosts[1]));
    assert_eq!(heir.cards()[0].verb("ibv_alloc_pd", |_| Ok(())), Ok(()));
    post(&hosts, 2);
    fabric.run_for(Duration::from_secs(60));
    let dead = hosts[1].cards()[0].call(|locked| locked.nic.counters().received);
    assert_eq!(dead, 1, "nothing came after it died");
    let heirs = heir.cards()[0].call(|locked| locked.nic.counters().strange);
    assert!(heirs > 0, "packets come to the address");
}

#[test]
fn the_hash_is_of_packets_and_completions() {
    let hash = |seed, messages, polls: bool| {
        let fabric = Fabric::seeded(seed);
        let hosts = pair(&fabric);
        (0..messages).for_each(|number| post(&hosts, number));
        fabric.run_for(Duration::from_secs(1));
        if polls {
            polled(&hosts[1]);
        }
        fabric.hash()
    };
    assert_eq!(hash(1, 9, true), hash(1, 9, true));
    assert_ne!(hash(1, 9, true), hash(1, 9, false));
    assert_ne!(hash(1, 9, true), hash(1, 8, true));
}

#[test]
fn a_file_of_packets_has_those_that_were_lost_too() {
    let fabric = Fabric::seeded(1);
    let hosts = pair(&fabric);
    let path = std::env::temp_dir().join(format!("soft-verbs-{}.pcap", std::process::id()));
    fabric.pcap(&path).unwrap();
    fabric.link(&hosts[0], &hosts[1]).cut();
    post(&hosts, 1);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // Headers of the file, the record, IPv6 and UDP; the packet: base transport header and checksum.
    assert_eq!(bytes.len(), 24 + 16 + 40 + 8 + 12 + 4);
    assert_eq!(bytes[24 + 16] >> 4, 6);
}
