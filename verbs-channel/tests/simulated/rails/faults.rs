//! Rails whose devices, networks, functions and callbacks fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use soft_verbs::{Fabric, Profile};
use verbs_channel::verbs_core::RemoteMemoryRegion;
use verbs_channel::{
    Channel, DownReason, Outgoing, OwnedBuffer, OwnedRequest, Rails, RejectReason, Transfer,
    TransportError,
};

use super::super::leases::{bytes, region};
use super::{Ends, LONG, PAGE, connected, filled};

/// Pages of a transfer.
const SOME: usize = 300;

/// Writes pages while rails are cut, until all have ended, the deadline passes, or the callback panics.
fn ends_each_once(seed: u64) {
    let pick = |salt: u64, of: u64| {
        let mixed = (seed * 8 + salt + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33).unwrap()
            % usize::try_from(of).unwrap()
    };
    let count = 1 + pick(0, 4);
    let mut ends = Ends::new(seed, count);
    for page in 0..SOME {
        let (at, bytes) = (page * PAGE, filled(page));
        region(&ends.here).write(at, &bytes).unwrap();
    }
    let links: Vec<_> = (0..=pick(1, count as u64))
        .map(|rail| match pick(2, 2) {
            0 => ends.link(rail),
            _ => ends.fabric.one_way(&ends.far[rail], &ends.near[rail]),
        })
        .collect();
    let (cut_after, panics_at) = (pick(3, 300), pick(4, 900));
    let timeout = [300, 1_000, 50_000, 300_000_000][pick(5, 4)];
    // One rail has operations of its own, and there are some of a channel that is not here.
    let tied = pick(6, count as u64);
    let own = ends.rails.channels().nth(tied).unwrap().id();
    let remote = ends.there.remote(ends.peers[tied].pd()).unwrap();
    let mut transfer = Transfer::default();
    for page in 0..SOME {
        let there = remote.slice((page * PAGE) as u64..).unwrap();
        match page % 20 {
            3 => transfer.add(own, Outgoing::write(ends.page(page).0, there)),
            9 => transfer.add(
                ends.peers[0].id(),
                Outgoing::write(ends.page(page).0, there),
            ),
            _ => transfer.add(ends.rails.id(), ends.write(page)),
        }
    }
    let (mut seen, mut each) = (0, vec![None; SOME]);
    let deadline = ends.near[0].enter(Instant::now) + Duration::from_micros(timeout);
    let _ended = catch_unwind(AssertUnwindSafe(|| {
        ends.near[0].enter(|| {
            ends.rails
                .transfer_with(&mut transfer, Some(deadline), |index, is_success| {
                    assert_eq!(each[index].replace(is_success), None, "ends once");
                    seen += 1;
                    if seen == cut_after {
                        links.iter().for_each(|link| drop(link.cut().clone()));
                    }
                    assert_ne!(seen, panics_at, "of the program");
                })
        })
    }));
    let arrived = bytes(&ends.there);
    let outcomes: Vec<_> = transfer.drain().collect();
    assert_eq!(outcomes.len(), SOME, "seed {seed}");
    for (page, outcome) in outcomes.iter().enumerate() {
        let result = &outcome.result;
        assert!(outcome.buffer.is_some(), "seed {seed}: {page} {result:?}");
        let is_there = arrived[page * PAGE..(page + 1) * PAGE] == filled(page);
        assert!(is_there || result.is_err(), "seed {seed}: {page} is lost");
        let is_rejected = matches!(result, Err(TransportError::Rejected(_)));
        assert!(!(is_there && is_rejected), "seed {seed}: {page} {result:?}");
        assert!(each[page].is_none_or(|is_success| is_success == result.is_ok()));
    }
    drop(outcomes);
    assert!(ends.here.is_idle(), "seed {seed}");
    // No operation is left behind, and the rails that are up can be used.
    let near = ends.near[0].clone();
    near.enter(|| {
        if ends.rails.channels().any(|rail| !rail.is_down()) {
            (0..SOME).for_each(|page| transfer.add(ends.rails.id(), ends.write(page)));
            let _ended = ends
                .rails
                .transfer(&mut transfer, Some(Instant::now() + LONG));
            assert_eq!(transfer.drain().count(), SOME);
        }
    });
}

#[test]
fn each_operation_ends_once_and_those_that_arrived_are_not_called_rejected() {
    (0..60).for_each(ends_each_once);
}

#[test]
fn abort_of_all_rails_ends_a_transfer_and_nothing_is_posted_after_it() {
    for seed in 0..20_u8 {
        let after = usize::from(seed) * 14;
        let mut ends = Ends::new(seed.into(), 1 + usize::from(seed) % 4);
        for rail in 0..ends.near.len() {
            let delay = Duration::from_micros(5 + 3 * rail as u64);
            ends.link(rail).delay(delay).loss(0.01);
        }
        let (handle, near) = (ends.rails.abort_handle(), ends.near.clone());
        let abort = || {
            handle.abort();
            for rail in &near {
                (0..SOME).for_each(|_| drop(rail.refuse("ibv_post_send", 5).clone()));
            }
        };
        let mut transfer = Transfer::default();
        // More than can be in flight.
        (0..2 * SOME).for_each(|page| transfer.add(ends.rails.id(), ends.write(page)));
        if after == 0 {
            abort();
        }
        let mut seen = 0;
        let each = |_, _| {
            seen += 1;
            if seen == after {
                abort();
            }
        };
        let result = near[0].enter(|| ends.rails.transfer_with(&mut transfer, None, each));
        let down = result.unwrap_err().down_reason();
        assert_eq!(down, Some(DownReason::Closed), "seed {seed}");
        for outcome in transfer.drain() {
            let is_refused = matches!(
                outcome.result,
                Err(TransportError::Rejected(RejectReason::Post(_)))
            );
            assert!(!is_refused, "seed {seed}");
        }
        let mut channels = ends.rails.channels();
        assert!(channels.all(|rail| rail.is_down() && rail.is_idle()));
        assert!(ends.here.is_idle(), "seed {seed}");
    }
}

#[test]
fn abort_of_all_rails_ends_a_transfer_that_waits_for_one_to_be_connected() {
    let mut ends = Ends::on(Fabric::real_time(7), 2);
    let handle = ends.rails.abort_handle();
    (0..2).for_each(|rail| ends.rails.channel_mut(rail).unwrap().abort());
    let connect = move |_| {
        handle.abort();
        Err::<Channel, _>("the peer is not there")
    };
    ends.rails.reconnect_with(connect).unwrap();
    let mut transfer = Transfer::default();
    transfer.add(ends.rails.id(), ends.write(0));
    let ended = ends.rails.transfer(&mut transfer, None).unwrap_err();
    assert_eq!(ended.down_reason(), Some(DownReason::Closed));
}

#[test]
fn panic_while_operations_are_shared_out_loses_none() {
    let mut ends = Ends::new(3, 2);
    let [gone, first] = [
        ends.peers[0].id(),
        ends.rails.channels().next().unwrap().id(),
    ];
    let remote = ends.there.remote(ends.peers[0].pd()).unwrap();
    let mut transfer = Transfer::default();
    for (page, channel) in [gone, first, gone, first].into_iter().enumerate() {
        transfer.add(channel, Outgoing::write(ends.page(page).0, remote));
    }
    ends.near[0].enter(|| {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let panics = |_, _| panic!("of the program");
            ends.rails.transfer_with(&mut transfer, None, panics)
        }));
        unwound.unwrap_err();
    });
    let channels: Vec<_> = transfer.drain().map(|outcome| outcome.channel).collect();
    assert_eq!(channels, [gone, first, gone, first]);
}

#[test]
fn rail_that_refuses_posts_gets_no_more_and_others_carry_out_what_it_had() {
    for (refusing, refusals, lost) in [(1, 1, 0), (1, 20, 0), (1, 2000, 0), (2, 2000, SOME)] {
        let mut ends = Ends::new(3, 2);
        for rail in 0..refusing {
            (0..refusals).for_each(|_| drop(ends.near[rail].refuse("ibv_post_send", 5).clone()));
        }
        let mut transfer = Transfer::default();
        (0..SOME).for_each(|page| transfer.add(ends.rails.id(), ends.write(page)));
        let result = ends.near[0].enter(|| ends.rails.transfer(&mut transfer, None));
        assert_eq!(result.is_err(), lost > 0, "{result:?}");
        let failed = transfer.drain().filter_map(|outcome| outcome.result.err());
        let refused = |error: TransportError| {
            matches!(error, TransportError::Rejected(RejectReason::Post(_)))
        };
        assert_eq!(failed.filter(|error| refused(*error)).count(), lost);
        assert!(ends.rails.channels().all(|rail| !rail.is_down()));
    }
}

#[test]
fn channel_that_comes_late_does_not_replace_one_that_has_operations() {
    let mut ends = Ends::on(Fabric::real_time(7), 1);
    let ours = ends.rails.channels().next().unwrap().pd().clone();
    let theirs = ends.peers[0].pd().clone();
    let ((go, orders), (tell, told)) = (channel::<()>(), channel());
    let domains = [ours.clone(), theirs.clone()];
    ends.rails.channel_mut(0).unwrap().abort();
    let connect = move |_| {
        orders.recv().map_err(|_over| "over")?;
        let [left, peer] = connected(&domains[0], &domains[1]);
        tell.send(peer).unwrap();
        Ok::<_, &str>(left)
    };
    ends.rails.reconnect_with(connect).unwrap();
    // Meanwhile, the program puts one there itself. A write that is not permitted takes that one down.
    let [left, _peer] = connected(&ours, &theirs);
    *ends.rails.channel_mut(0).unwrap() = left;
    let first = ends.rails.channels().next().unwrap().id();
    let remote = ends.there.remote(&theirs).unwrap();
    let beyond = remote.addr() + (1 << 30);
    let beyond = RemoteMemoryRegion::new(beyond, PAGE as u64, remote.rkey()).unwrap();
    let mut transfer = Transfer::default();
    transfer.add(first, Outgoing::write(ends.page(0).0, beyond));
    (1..60).for_each(|page| transfer.add(ends.rails.id(), ends.write(page)));
    let mut peer = None;
    let deadline = Some(Instant::now() + LONG);
    let result = ends
        .rails
        .transfer_with(&mut transfer, deadline, |index, _| {
            if index == 0 {
                go.send(()).unwrap();
                peer = Some(told.recv().unwrap());
                thread::sleep(Duration::from_millis(20));
            }
        });
    assert!(!result.unwrap_err().is_stuck());
    let failed = transfer.drain().filter(|outcome| outcome.result.is_err());
    assert_eq!(failed.map(|outcome| outcome.index).collect::<Vec<_>>(), [0]);
    assert!(ends.here.is_idle());
}

#[test]
fn rails_are_connected_with_pauses_and_none_waits_for_another() {
    let mut ends = Ends::on(Fabric::real_time(7), 3);
    let [ours, theirs] = ends.domains();
    let attempts = Arc::new([0; 3].map(AtomicU32::new));
    let (counts, begun) = (Arc::clone(&attempts), Instant::now());
    (0..3).for_each(|rail| ends.rails.channel_mut(rail).unwrap().abort());
    let (tell, told) = channel();
    let connect = move |rail: usize| {
        let before = counts[rail].fetch_add(1, Ordering::SeqCst);
        if rail == 1 && before == 0 {
            panic!("of the function");
        }
        let [mut left, peer] = connected(&ours[rail], &theirs[rail]);
        match rail {
            // It is down at once.
            0 => left.abort(),
            2 if before < 2 => return Err("it takes longer"),
            _ => tell.send(peer).unwrap(),
        }
        Ok(left)
    };
    ends.rails.reconnect_with(connect).unwrap();
    let mut transfer = Transfer::default();
    (0..SOME).for_each(|page| transfer.add(ends.rails.id(), ends.write(page)));
    ends.rails
        .transfer(&mut transfer, Some(begun + LONG))
        .unwrap();
    while ends.rails.channels().skip(1).any(Channel::is_down) {
        ends.rails.transfer(&mut transfer, None).unwrap();
        thread::yield_now();
    }
    let most = u32::try_from(begun.elapsed().as_millis() / 100).unwrap() + 1;
    let attempts = attempts
        .each_ref()
        .map(|count| count.load(Ordering::SeqCst));
    assert!((2..=most).contains(&attempts[0]), "{attempts:?} of {most}");
    assert_eq!(attempts[1..], [2, 3]);
    drop(told);
}

/// In real time: empty polls would move the clock to the flush.
#[test]
fn rails_that_are_not_flushed_or_do_not_answer_are_given_up_and_others_carry_on() {
    for answers in [true, false] {
        let cards = Profile {
            flush_delay: LONG,
            ..Profile::default()
        };
        let mut ends = Ends::with(Fabric::real_time(3), 2, &cards);
        let first = ends.near[0].clone();
        let qp_num = ends
            .rails
            .channels()
            .next()
            .unwrap()
            .endpoint()
            .unwrap()
            .qp_num();
        let mut transfer = Transfer::default();
        (0..SOME).for_each(|page| transfer.add(ends.rails.id(), ends.write(page)));
        // The other rail has more in flight, and waits for longer.
        let long = ends.here.slice(..).unwrap();
        let other = ends.rails.channels().nth(1).unwrap().id();
        transfer.add(other, OwnedRequest::receive(long));
        let deadline = Some(Instant::now() + Duration::from_secs(20));
        let mut seen = 0;
        let fail = |_, _| {
            seen += 1;
            match (seen, answers) {
                (100, true) => drop(first.qp_fatal(qp_num).clone()),
                (100, false) => drop(first.stop().refuse("ibv_query_qp", 5).clone()),
                (SOME, _) => drop(ends.peers[1].start_send(OwnedBuffer::empty()).unwrap()),
                _ => {}
            }
        };
        ends.rails
            .transfer_with(&mut transfer, deadline, fail)
            .unwrap();
        let downs = ends.rails.channels().map(Channel::is_down);
        assert_eq!(downs.collect::<Vec<_>>(), [true, false]);
    }
}

#[test]
fn operations_on_what_the_rails_do_not_have_any_more_say_so() {
    let mut ends = Ends::new(3, 1);
    let before = ends.rails.channels().next().unwrap().id();
    let ours = ends.rails.channels().next().unwrap().pd().clone();
    let [left, _peer] = connected(&ours, ends.peers[0].pd());
    *ends.rails.channel_mut(0).unwrap() = left;
    ends.rails.remove_remote(ends.remote);
    let mut none = Rails::new([]);
    let error = none.add_remote([]).unwrap_err().to_string();
    assert_eq!(
        error,
        "the number of rails 0 is out of range: at least 1 is needed"
    );
    assert!(none.id().to_string().starts_with("rails "));
    assert_eq!(
        format!("{:?}", none.id()),
        format!("ChannelId({})", none.id())
    );
    let mut transfer = Transfer::default();
    let cases = [
        (before, false, RejectReason::UnknownChannel),
        (ends.rails.id(), false, RejectReason::UnknownRemote),
        (none.id(), true, RejectReason::UnknownChannel),
    ];
    for (channel, has_none, expected) in cases {
        transfer.add(channel, ends.write(0));
        let rails = if has_none { &mut none } else { &mut ends.rails };
        rails.transfer(&mut transfer, None).unwrap_err();
        let result = transfer.drain().next().unwrap().result;
        assert_eq!(result.unwrap_err(), TransportError::Rejected(expected));
    }
}

#[test]
fn operations_that_no_rail_took_by_the_deadline_have_timed_out() {
    let mut ends = Ends::on(Fabric::real_time(8), 1);
    ends.rails.channel_mut(0).unwrap().abort();
    let nobody = |_| Err::<Channel, _>("there is nobody");
    ends.rails.reconnect_with(nobody).unwrap();
    let mut transfer = Transfer::default();
    transfer.add(ends.rails.id(), ends.write(0));
    let deadline = Some(Instant::now() + Duration::from_millis(20));
    ends.rails.transfer(&mut transfer, deadline).unwrap_err();
    let late = TransportError::Rejected(RejectReason::TimedOut);
    let outcome = transfer.drain().next().unwrap();
    assert_eq!(outcome.result.unwrap_err(), late);
}

#[test]
fn parts_of_one_region_are_known_beside_each_other() {
    let mut ends = Ends::on(Fabric::real_time(9), 1);
    ends.rails.remove_remote(ends.remote);
    let whole = ends.there.remote(ends.peers[0].pd()).unwrap();
    let parts = [0, PAGE as u64].map(|at| whole.slice(at..at + PAGE as u64).unwrap());
    let added = parts.map(|part| ends.rails.add_remote([part]).unwrap());
    assert_eq!(added, parts);
    let mut writes = |removed: &[RemoteMemoryRegion]| {
        removed
            .iter()
            .for_each(|&part| ends.rails.remove_remote(part));
        let mut transfer = Transfer::default();
        for part in parts {
            transfer.add(ends.rails.id(), Outgoing::write(ends.page(0).0, part));
        }
        let _result = ends.rails.transfer(&mut transfer, None);
        let results = transfer.drain().map(|outcome| outcome.result.is_ok());
        results.collect::<Vec<_>>()
    };
    assert_eq!(writes(&[]), [true, true]);
    assert_eq!(writes(&parts[..1]), [false, true]);
}
