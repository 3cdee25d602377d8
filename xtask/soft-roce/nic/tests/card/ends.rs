//! States: RESET, SQD, SQE, ERR and their flushes, overrun queues, destroyed queue pairs (10.3.1, 10.8).

use std::time::Duration;

use crate::link::{ALL, World, empty, errno};
use soft_nic::{
    AttributeMask, Element, Errno, Event, Profile, QueuePairState, ReceiveRequest, SendOpcode,
    Status, Transport, WindowKind,
};

const BAD: Element = Element {
    address: 0,
    length: 1,
    lkey: 0,
};

#[test]
fn err_flushes_all_that_is_and_will_be_posted() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    world.receive_a(qa, 1, &[]);
    world.post_a(qa, 2, SendOpcode::Send, &[]);
    world.a.go(qa, QueuePairState::Err).unwrap();
    assert_eq!(
        world.a.statuses(),
        [(2, Status::WR_FLUSH_ERR), (1, Status::WR_FLUSH_ERR)]
    );
    world.receive_a(qa, 3, &[]);
    world.post_a(qa, 4, SendOpcode::Send, &[]);
    assert_eq!(
        world.a.statuses(),
        [(3, Status::WR_FLUSH_ERR), (4, Status::WR_FLUSH_ERR)]
    );
    world.run();
    assert!(world.seen.is_empty());
}

#[test]
fn flushes_come_late_on_cards_that_do_it_late() {
    let mut world = World::of(Profile::hostile(), 1);
    let (qa, _) = world.pair(Transport::Rc);
    world.receive_a(qa, 1, &[]);
    world.a.go(qa, QueuePairState::Err).unwrap();
    world.run_for(Duration::from_micros(4999));
    assert_eq!(world.a.statuses(), []);
    world.run_for(Duration::from_micros(1));
    assert_eq!(world.a.statuses(), [(1, Status::WR_FLUSH_ERR)]);
    world.receive_a(qa, 2, &[]);
    world.run_for(Duration::from_millis(6));
    assert_eq!(world.a.statuses(), [(2, Status::WR_FLUSH_ERR)]);
}

#[test]
fn reset_forgets_what_was_posted_without_completions() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    world.receive_a(qa, 1, &[]);
    world.post_a(qa, 2, SendOpcode::Send, &[]);
    world.a.go(qa, QueuePairState::Reset).unwrap();
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.a.statuses(), []);
    assert!(world.seen.is_empty());
    // It can be connected anew.
    let (path, psn) = (
        soft_nic::AddressVector::to(world.b.gid),
        soft_nic::Psn::new(5),
    );
    world.b.go(qb, QueuePairState::Reset).unwrap();
    let back = soft_nic::AddressVector::to(world.a.gid);
    world.a.nic.connect(qa, path, psn, qb, psn).unwrap();
    world.b.nic.connect(qb, back, psn, qa, psn).unwrap();
    world.receive_b(qb, 3, &[]);
    world.post_a(qa, 4, SendOpcode::Send, &[]);
    world.run();
    assert_eq!(world.a.statuses(), [(4, Status::SUCCESS)]);
}

#[test]
fn posts_before_rts_and_receives_in_reset() {
    let mut world = World::new();
    let options = world.a.options(Transport::Rc);
    let qp = world.a.nic.create_qp(&options).unwrap();
    let send = empty(1);
    assert_eq!(errno(world.a.nic.post_send(qp, send)), Errno::EINVAL);
    let receive = ReceiveRequest {
        wr_id: 1,
        elements: Vec::new(),
    };
    assert!(
        world.a.nic.post_receive(qp, receive.clone()).is_ok(),
        "as rxe"
    );
    let mut strict = World::of(Profile::hostile(), 1);
    let options = strict.a.options(Transport::Rc);
    let qp = strict.a.nic.create_qp(&options).unwrap();
    assert_eq!(
        errno(strict.a.nic.post_receive(qp, receive.clone())),
        Errno::EINVAL
    );
}

#[test]
fn sqd_ends_what_has_begun_and_begins_nothing() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    world.receive_b(qb, 1, &[]);
    world.receive_b(qb, 2, &[]);
    world.post_a(qa, 1, SendOpcode::Send, &[]);
    world.send();
    world.a.go(qa, QueuePairState::Sqd).unwrap();
    world.post_a(qa, 2, SendOpcode::Send, &[]);
    assert!(world.a.nic.query_qp(qa).unwrap().is_draining);
    assert_eq!(world.a.events(), []);
    assert_eq!(
        errno(world.a.go(qa, QueuePairState::Rts)),
        Errno::EINVAL,
        "not while it drains"
    );
    world.run();
    assert_eq!(world.a.statuses(), [(1, Status::SUCCESS)]);
    assert_eq!(world.a.events(), [Event::SendQueueDrained(qa)]);
    assert!(!world.a.nic.query_qp(qa).unwrap().is_draining);
    world.a.go(qa, QueuePairState::Rts).unwrap();
    world.run();
    assert_eq!(world.a.statuses(), [(2, Status::SUCCESS)]);
}

#[test]
fn an_error_of_an_unreliable_send_stops_the_send_queue_or_all_of_it() {
    for transport in [Transport::Uc, Transport::Ud] {
        let strict = Profile {
            has_send_queue_error: true,
            ..Profile::default()
        };
        for (profile, state) in [
            (Profile::default(), QueuePairState::Err),
            (strict, QueuePairState::Sqe),
        ] {
            let mut world = World::of(profile, 1);
            let (qa, _) = world.pair(transport);
            world.receive_a(qa, 7, &[]);
            let to = soft_nic::DatagramAddress {
                path: soft_nic::AddressVector::to(world.b.gid),
                queue_pair: 1,
                qkey: 1,
            };
            for (number, elements) in [(1, &[BAD][..]), (2, &[])] {
                let mut request = soft_nic::SendRequest::new(
                    number,
                    SendOpcode::Send,
                    soft_nic::Data::Elements(elements.to_vec()),
                );
                request.to = Some(to);
                world.a.nic.post_send(qa, request).unwrap();
            }
            world.run();
            assert_eq!(world.a.nic.query_qp(qa).map(|it| it.state), Some(state));
            let mut expected = vec![(1, Status::LOC_QP_OP_ERR), (2, Status::WR_FLUSH_ERR)];
            if state == QueuePairState::Err {
                expected.push((7, Status::WR_FLUSH_ERR));
            }
            assert_eq!(world.a.statuses(), expected);
            if state == QueuePairState::Sqe {
                world.a.go(qa, QueuePairState::Rts).unwrap();
                let mut again = empty(3);
                again.to = Some(to);
                world.a.nic.post_send(qa, again).unwrap();
                world.run();
                assert_eq!(world.a.statuses(), [(3, Status::SUCCESS)]);
            }
        }
    }
}

#[test]
fn a_full_completion_queue_loses_completions_and_says_so() {
    for (breaks, state) in [(false, QueuePairState::Rts), (true, QueuePairState::Err)] {
        let profile = Profile {
            overrun_breaks: breaks,
            rounds_up: false,
            ..Profile::default()
        };
        let mut world = World::of(profile, 1);
        let small = world.a.nic.create_cq(2).unwrap();
        let (mut options, other) = (
            world.a.options(Transport::Uc),
            world.b.options(Transport::Uc),
        );
        options.send_cq = small;
        let (qa, _) = world.pair_of(&options, &other);
        for number in 0..4 {
            world.post_a(qa, number, SendOpcode::Send, &[]);
        }
        world.run();
        let events = world.a.events();
        assert_eq!(events[0], Event::CompletionQueueOverrun(small));
        assert_eq!(events.contains(&Event::QueuePairFatal(qa)), breaks);
        assert_eq!(world.a.nic.query_qp(qa).map(|it| it.state), Some(state));
        assert_eq!(world.a.nic.poll_cq(small).unwrap().wr_id, 0);
        assert_eq!(world.a.nic.poll_cq(small).unwrap().wr_id, 1);
        assert_eq!(world.a.nic.poll_cq(small), None);
    }
}

#[test]
fn a_destroyed_queue_pair_gets_no_packets_and_its_number_rests() {
    let (mut world, qa, qb) = World::joined(Transport::Rc);
    let received = world.b.buffer(8, ALL);
    world.receive_b(qb, 1, &[received.element()]);
    world.post_a(qa, 1, SendOpcode::Send, &[]);
    world.send();
    world.b.nic.destroy_qp(qb).unwrap();
    let (_, other) = world.pair(Transport::Rc);
    assert_ne!(other, qb);
    world.arrive();
    assert_eq!(world.b.nic.counters().strange, 1);
    assert_eq!(world.b.statuses(), []);
}

#[test]
fn objects_are_busy_until_their_last_user_ends() {
    let mut world = World::new();
    let (pd, cq, mut options) = (world.a.pd, world.a.cq, world.a.options(Transport::Rc));
    let region = world.a.buffer(8, ALL).lkey;
    let nic = &mut world.a.nic;
    let window = nic.alloc_mw(pd, WindowKind::Type1).unwrap();
    let srq = nic.create_srq(pd, 1, 1, 0).unwrap();
    options.shared_receives = Some(srq);
    let qp = nic.create_qp(&options).unwrap();
    assert_eq!(errno(nic.destroy_cq(cq)), Errno::EBUSY);
    assert_eq!(errno(nic.destroy_srq(srq)), Errno::EBUSY);
    nic.destroy_qp(qp).unwrap();
    nic.destroy_cq(cq).unwrap();
    assert_eq!(errno(nic.dealloc_pd(pd)), Errno::EBUSY);
    nic.destroy_srq(srq).unwrap();
    assert_eq!(errno(nic.dealloc_pd(pd)), Errno::EBUSY);
    nic.dealloc_mw(window).unwrap();
    assert_eq!(errno(nic.dealloc_pd(pd)), Errno::EBUSY);
    nic.dereg_mr(region).unwrap();
    nic.dealloc_pd(pd).unwrap();
    // A queue pair alone, too.
    let (mut world, qp, _) = World::joined(Transport::Rc);
    assert_eq!(errno(world.a.nic.dealloc_pd(world.a.pd)), Errno::EBUSY);
    world.a.nic.destroy_qp(qp).unwrap();
    world.a.nic.dealloc_pd(world.a.pd).unwrap();
}

#[test]
fn reads_that_all_queue_pairs_remember_are_limited_together() {
    let mut world = World::of(Profile::hostile(), 1);
    // Four for each queue pair, 64 in all.
    for _ in 0..16 {
        world.pair(Transport::Rc);
    }
    let options = world.a.options(Transport::Rc);
    let qp = world.a.nic.create_qp(&options).unwrap();
    let (path, psn) = (
        soft_nic::AddressVector::to(world.b.gid),
        soft_nic::Psn::new(0),
    );
    assert_eq!(
        errno(world.a.nic.connect(qp, path, psn, 1, psn)),
        Errno::ENOMEM
    );
    world.a.nic.destroy_qp(16).unwrap();
    world.a.go(qp, QueuePairState::Reset).unwrap();
    world.a.nic.connect(qp, path, psn, 1, psn).unwrap();
}

#[test]
fn a_refused_change_changes_nothing() {
    let (mut world, qa, _) = World::joined(Transport::Rc);
    let before = world.a.nic.query_qp(qa);
    let change = |attributes: &mut soft_nic::QueuePairAttributes| attributes.path_mtu = 4096;
    assert_eq!(
        errno(world.a.modify(qa, AttributeMask::PATH_MTU, change)),
        Errno::EINVAL
    );
    assert_eq!(world.a.nic.query_qp(qa), before);
}

#[test]
fn capacities_are_as_the_profile_makes_them() {
    let mut world = World::new();
    let cq = world.a.nic.create_cq(4).unwrap();
    assert_eq!(world.a.nic.cq_capacity(cq), Some(7));
    let one = world.a.nic.create_cq(1).unwrap();
    assert_eq!(world.a.nic.cq_capacity(one), Some(1));
    let mut options = world.a.options(Transport::Rc);
    options.max_send_wr = 16;
    let qp = world.a.nic.create_qp(&options).unwrap();
    assert_eq!(world.a.nic.qp_options(qp).unwrap().max_send_wr, 31);
    options.max_send_sge = 33;
    assert_eq!(errno(world.a.nic.create_qp(&options)), Errno::EINVAL);
}

#[test]
fn slots_are_free_when_requests_complete_or_when_completions_are_polled() {
    for holds in [false, true] {
        let profile = Profile {
            holds_slots: holds,
            rounds_up: false,
            ..Profile::default()
        };
        let mut world = World::of(profile, 1);
        let (mut options, other) = (
            world.a.options(Transport::Uc),
            world.b.options(Transport::Uc),
        );
        options.max_send_wr = 3;
        let (qa, _) = world.pair_of(&options, &other);
        let post = |world: &mut World, is_signaled| {
            let mut request = empty(1);
            request.is_signaled = is_signaled;
            let posted = world.a.nic.post_send(qa, request);
            world.run();
            posted.map_err(|refused| refused.errno)
        };
        // Two without a completion, and one with.
        for is_signaled in [false, false, true] {
            assert_eq!(post(&mut world, is_signaled), Ok(()));
        }
        let full = post(&mut world, false);
        assert_eq!(full, if holds { Err(Errno::ENOMEM) } else { Ok(()) });
        assert_eq!(world.a.statuses(), [(1, Status::SUCCESS)]);
        for _ in 0..3 {
            assert_eq!(post(&mut world, false), Ok(()));
        }
        let full = post(&mut world, true);
        assert_eq!(full, if holds { Err(Errno::ENOMEM) } else { Ok(()) });
    }
}
