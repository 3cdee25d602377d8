//! Transfers over rails, one of which is cut: nothing is lost, and nothing happens twice that may not.

use std::collections::HashMap;
use std::iter;
use std::time::{Duration, Instant};

use soft_verbs::{Fabric, Host, Link, Profile};
use verbs_channel::buffer::SharedSlice;
use verbs_channel::engine::TransferError;
use verbs_channel::verbs_core::{AccessFlags, Context, ProtectionDomain, RemoteMemoryRegion};
use verbs_channel::{
    Channel, Incoming, Outgoing, OwnedBuffer, OwnedRequest, Rails, RejectReason, SharedMemory,
    Transfer, TransportError,
};

use super::leases::{bytes, region};

const PAGE: usize = 64;
/// All are moved by one transfer after the other, each of which moves a part.
const PAGES: usize = 10_000;
const PART: usize = 500;
/// Behind the pages: what atomics add to, and where they put the value before.
const LEN: usize = PAGES * PAGE + 16;
const LONG: Duration = Duration::from_secs(600);

mod faults;

struct Ends {
    fabric: Fabric,
    near: Vec<Host>,
    far: Vec<Host>,
    rails: Rails,
    peers: Vec<Channel>,
    here: SharedMemory,
    there: SharedMemory,
    remote: RemoteMemoryRegion,
}

fn domain(host: &Host) -> ProtectionDomain {
    host.enter(|| Context::first_active().unwrap().alloc_pd().unwrap())
}

/// The two ends of a rail.
fn connected(ours: &ProtectionDomain, theirs: &ProtectionDomain) -> [Channel; 2] {
    let [left, right] = [ours, theirs].map(|pd| {
        let builder = Channel::builder(pd).max_send_wr(64).max_recv_wr(512);
        builder.timeout(LONG).build().unwrap()
    });
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    [(left, to_right), (right, to_left)].map(|(end, to)| end.handshake(&to).unwrap())
}

impl Ends {
    fn new(seed: u64, count: usize) -> Self {
        Self::on(Fabric::seeded(seed), count)
    }

    fn on(fabric: Fabric, count: usize) -> Self {
        Self::with(fabric, count, &Profile::default())
    }

    /// The cards are of this kind.
    fn with(fabric: Fabric, count: usize, cards: &Profile) -> Self {
        let hosts = |side: &str| -> Vec<_> {
            let names = (0..count).map(|rail| format!("{side} {rail}"));
            names
                .map(|name| fabric.host_with(&name, cards.clone()))
                .collect()
        };
        let (near, far) = (hosts("near"), hosts("far"));
        for (near, far) in near.iter().zip(&far) {
            fabric.link(near, far).delay(Duration::from_micros(20));
        }
        let ours: Vec<_> = near.iter().map(domain).collect();
        let theirs: Vec<_> = far.iter().map(domain).collect();
        let here =
            SharedMemory::register(&ours, vec![0_u8; LEN], AccessFlags::LOCAL_WRITE).unwrap();
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
        let there = SharedMemory::register(&theirs, vec![0_u8; LEN], access).unwrap();
        let each = ours.iter().zip(&theirs);
        let (lefts, peers): (Vec<_>, _) = near[0].enter(|| {
            each.map(|(ours, theirs)| <(_, _)>::from(connected(ours, theirs)))
                .unzip()
        });
        let mut rails = Rails::new(lefts);
        let regions = theirs.iter().map(|pd| there.remote(pd).unwrap());
        let remote = rails.add_remote(regions).unwrap();
        Self {
            fabric,
            near,
            far,
            rails,
            peers,
            here,
            there,
            remote,
        }
    }

    /// Those of the rails, and those of the other ends.
    fn domains(&self) -> [Vec<ProtectionDomain>; 2] {
        let of = |channel: &Channel| channel.pd().clone();
        [
            self.rails.channels().map(of).collect(),
            self.peers.iter().map(of).collect(),
        ]
    }

    fn link(&self, rail: usize) -> Link {
        self.fabric.link(&self.near[rail], &self.far[rail])
    }

    fn slice(&self, at: usize, len: usize) -> (SharedSlice, RemoteMemoryRegion) {
        let there = self.remote.slice(at as u64..(at + len) as u64).unwrap();
        (self.here.slice(at..at + len).unwrap(), there)
    }

    fn page(&self, page: usize) -> (SharedSlice, RemoteMemoryRegion) {
        self.slice(page * PAGE, PAGE)
    }

    fn write(&self, page: usize) -> OwnedRequest {
        let (here, there) = self.page(page);
        Outgoing::write(here, there).into()
    }
}

fn number(page: usize) -> u32 {
    u32::try_from(page).unwrap()
}

fn filled(page: usize) -> [u8; PAGE] {
    std::array::from_fn(|at| (page * 31 + at + 1).to_le_bytes()[0])
}

/// The operation of a page.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Write,
    Read,
    Atomic,
    Announced,
}

const fn kind(page: usize) -> Kind {
    match page % 50 {
        7 => Kind::Atomic,
        13 => Kind::Announced,
        place if place % 2 == 0 => Kind::Write,
        _ => Kind::Read,
    }
}

/// Moves all pages. A rail fails meanwhile: it is cut both ways, or for acknowledgements only, or the queue pair
/// of one end breaks.
fn moves_all(seed: u8, count: usize) {
    let mut ends = Ends::new(seed.into(), count);
    for rail in 0..count {
        ends.link(rail).loss(0.0005).reordering(0.002);
    }
    for page in 0..PAGES {
        let memory = match kind(page) {
            Kind::Read => &ends.there,
            _ => &ends.here,
        };
        region(memory).write(page * PAGE, &filled(page)).unwrap();
    }
    for (peer, host) in ends.peers.iter_mut().zip(&ends.far) {
        host.enter(|| {
            for _ in 0..512 {
                peer.start_receive(OwnedBuffer::empty()).unwrap();
            }
        });
    }
    let cut = usize::from(seed) % count;
    let cut_after = PAGES / 4 + (usize::from(seed) * 997) % (PAGES / 2);
    let qp_num = |end: &Channel| end.endpoint().unwrap().qp_num();
    let ours = qp_num(ends.rails.channels().nth(cut).unwrap());
    let theirs = qp_num(&ends.peers[cut]);
    let (near, far) = (ends.near[cut].clone(), ends.far[cut].clone());
    let (link, acks) = (ends.link(cut), ends.fabric.one_way(&far, &near));
    let fail = || match seed % 4 {
        0 => drop(link.cut().clone()),
        1 => drop(acks.cut().clone()),
        2 => drop(near.qp_fatal(ours).clone()),
        _ => drop(far.qp_fatal(theirs).clone()),
    };
    let (mut seen, mut failed, mut added, mut announced) = (0, 0, 0, vec![]);
    let mut transfer = Transfer::with_capacity(PART);
    let near = ends.near[0].clone();
    near.enter(|| {
        for first in (0..PAGES).step_by(PART) {
            for page in first..first + PART {
                let (here, there) = ends.page(page);
                let request: OwnedRequest = match kind(page) {
                    Kind::Write => Outgoing::write(here, there).into(),
                    Kind::Read => Incoming::read(here, there).into(),
                    Kind::Announced => Outgoing::write(here, there).immediate(number(page)).into(),
                    Kind::Atomic => {
                        let (_, counter) = ends.slice(PAGES * PAGE, 8);
                        let before = ends.here.slice(LEN - 8..).unwrap();
                        Incoming::fetch_and_add(before, counter, 1).into()
                    }
                };
                transfer.add(ends.rails.id(), request);
            }
            let mut each = vec![0; PART];
            let deadline = Some(Instant::now() + LONG);
            let result = ends
                .rails
                .transfer_with(&mut transfer, deadline, |index, _| {
                    each[index] += 1;
                    seen += 1;
                    if seen == cut_after {
                        fail();
                    }
                });
            assert_eq!(each, [1; PART], "each ends once");
            let mut failures = 0;
            for outcome in transfer.drain() {
                let page = first + outcome.index;
                assert!(outcome.buffer.is_some());
                match (kind(page), outcome.result) {
                    (Kind::Atomic, Ok(_)) => added += 1,
                    (Kind::Announced, Ok(_)) => announced.push(number(page)),
                    (Kind::Read | Kind::Write, Ok(_)) => {}
                    (Kind::Atomic | Kind::Announced, Err(_)) => failures += 1,
                    (_, Err(error)) => panic!("page {page} is lost: {error}"),
                }
            }
            assert_eq!(result.is_err(), failures > 0, "{result:?}");
            failed += failures;
        }
    });
    let (here, there) = (bytes(&ends.here), bytes(&ends.there));
    let mut lost = 0;
    for page in 0..PAGES {
        let range = page * PAGE..(page + 1) * PAGE;
        match kind(page) {
            Kind::Atomic => {}
            Kind::Announced if !announced.contains(&number(page)) => lost += 1,
            _ => {
                assert_eq!(here[range.clone()], filled(page), "page {page}");
                assert_eq!(there[range], filled(page), "page {page}");
            }
        }
    }
    let counter: [u8; 8] = there[LEN - 16..LEN - 8].try_into().unwrap();
    let counter = u64::from_ne_bytes(counter);
    assert!((added..=added + failed).contains(&counter), "{counter}");
    let mut came: HashMap<u32, u32> = HashMap::new();
    for (peer, host) in ends.peers.iter_mut().zip(&ends.far) {
        host.enter(|| {
            for completed in iter::from_fn(|| peer.next_completed()) {
                if let Ok(success) = completed.result {
                    *came.entry(success.imm_data().unwrap()).or_default() += 1;
                }
            }
        });
    }
    assert!(came.values().all(|times| *times == 1), "{came:?}");
    assert!(announced.iter().all(|page| came.contains_key(page)));
    assert!(came.len() <= announced.len() + lost);
    let up = ends.rails.channels().filter(|rail| !rail.is_down());
    assert_eq!(up.count(), count - 1, "seed {seed}");
    // All rails had a part.
    for rail in ends.rails.channels() {
        assert!(rail.counters().read().completed > (PAGES / count / 20) as u64);
    }
}

#[test]
fn pages_move_over_rails_one_of_which_fails() {
    for count in [2, 4, 8] {
        (0..8).for_each(|seed| moves_all(seed, count));
    }
}

const fn is_timed_out(error: &TransportError) -> bool {
    matches!(error, TransportError::Aborted(reason) if reason.is_timed_out())
}

#[test]
fn all_rails_are_quiesced_at_the_deadline() {
    let mut ends = Ends::new(3, 4);
    for rail in 0..4 {
        ends.link(rail).cut();
    }
    let mut transfer = Transfer::with_capacity(1000);
    (0..1000).for_each(|page| transfer.add(ends.rails.id(), ends.write(page)));
    ends.near[0].enter(|| {
        // Less than the retries take, and several of the timers that empty polls move to.
        let soon = Instant::now() + Duration::from_millis(300);
        let result = ends.rails.transfer(&mut transfer, Some(soon));
        let late = Instant::now() - soon;
        assert!(late < Duration::from_secs(1), "{late:?}");
        assert!(matches!(
            result,
            Err(TransferError::Failed { failed: 1000, .. })
        ));
    });
    let errors = transfer.drain().map(|outcome| {
        assert!(outcome.buffer.is_some());
        outcome.result.unwrap_err()
    });
    let errors: Vec<_> = errors.collect();
    // Those that were in flight, and the others.
    let in_flight = errors.iter().filter(|error| is_timed_out(error)).count();
    assert!((4..=256).contains(&in_flight), "{in_flight}");
    assert!(
        ends.rails
            .channels()
            .all(|rail| rail.is_down() && rail.is_idle())
    );
    assert!(ends.here.is_idle(), "no slice is left");
}

#[test]
fn operation_that_is_not_permitted_takes_down_one_rail_only() {
    let mut ends = Ends::new(4, 3);
    let beyond = ends.remote;
    let wrong = RemoteMemoryRegion::new(beyond.addr(), 1 << 40, beyond.rkey()).unwrap();
    let wrong = wrong.slice(LEN as u64 + (1 << 20)..).unwrap();
    // The region is said to be longer than it is.
    let longer = |region: RemoteMemoryRegion| {
        RemoteMemoryRegion::new(region.addr(), 1 << 40, region.rkey()).unwrap()
    };
    let keys = ends.peers.iter();
    let keys = keys.map(|peer| longer(ends.there.remote(peer.pd()).unwrap()));
    let keys: Vec<_> = keys.collect();
    ends.rails.add_remote(keys).unwrap();
    let mut transfer = Transfer::with_capacity(101);
    for page in 0..100 {
        transfer.add(ends.rails.id(), ends.write(page));
        if page == 50 {
            let (here, _) = ends.page(page);
            transfer.add(
                ends.rails.id(),
                Outgoing::write(here, wrong.slice(..PAGE as u64).unwrap()),
            );
        }
    }
    let result = ends.near[0].enter(|| ends.rails.transfer(&mut transfer, None));
    assert!(
        matches!(
            result,
            Err(TransferError::Failed {
                failed: 1,
                of: 101,
                ..
            })
        ),
        "{result:?}"
    );
    let failed = transfer
        .drain()
        .find(|outcome| outcome.result.is_err())
        .unwrap();
    assert_eq!(failed.index, 51);
    let down = ends.rails.channels().filter(|rail| rail.is_down()).count();
    assert_eq!(down, 1);
}

#[test]
fn region_that_the_rails_do_not_know_is_rejected() {
    let mut ends = Ends::new(5, 2);
    let other = RemoteMemoryRegion::new(1 << 40, 4096, !ends.remote.rkey()).unwrap();
    let mut transfer = Transfer::default();
    transfer.add(ends.rails.id(), Outgoing::write(ends.page(0).0, other));
    let failed = ends.near[0]
        .enter(|| ends.rails.transfer(&mut transfer, None))
        .unwrap_err();
    let TransferError::Failed { first, .. } = failed else {
        panic!("{failed}")
    };
    assert_eq!(first, TransportError::Rejected(RejectReason::UnknownRemote));
    assert!(ends.rails.add_remote([other]).is_err());
}

#[test]
fn operations_of_one_channel_go_over_that_one_and_no_other() {
    let mut ends = Ends::new(6, 2);
    let [first, second] = [0, 1].map(|at| ends.rails.channels().nth(at).unwrap().id());
    let remote = ends.there.remote(ends.peers[1].pd()).unwrap();
    ends.link(1).cut();
    let mut transfer = Transfer::default();
    for page in 0..20 {
        let (here, _) = ends.page(page);
        let there = remote.slice((page * PAGE) as u64..).unwrap();
        transfer.add(second, Outgoing::write(here, there));
        transfer.add(ends.rails.id(), ends.write(page));
    }
    ends.near[0]
        .enter(|| ends.rails.transfer(&mut transfer, None))
        .unwrap_err();
    for outcome in transfer.drain() {
        let expected = if outcome.index % 2 == 0 {
            second
        } else {
            first
        };
        assert_eq!(outcome.channel, expected);
        assert_eq!(outcome.result.is_err(), outcome.channel == second);
    }
}

/// In real time: the function runs on a thread.
#[test]
fn rails_that_went_down_are_connected_in_the_background() {
    let mut ends = Ends::on(Fabric::real_time(7), 2);
    let [ours, theirs] = ends.domains();
    let (tell, told) = std::sync::mpsc::channel();
    let mut attempts = [0; 2];
    let connect = move |rail: usize| {
        attempts[rail] += 1;
        if attempts[rail] == 1 {
            return Err("the first attempt fails");
        }
        let [left, peer] = connected(&ours[rail], &theirs[rail]);
        tell.send(peer).unwrap();
        Ok(left)
    };
    ends.rails.reconnect_with(connect).unwrap();
    let mut transfer = Transfer::default();
    for _ in 0..3 {
        for rail in 0..2 {
            ends.rails.channel_mut(rail).unwrap().abort();
        }
        (0..100).for_each(|page| transfer.add(ends.rails.id(), ends.write(page)));
        // None is up: it waits for the first.
        ends.rails
            .transfer(&mut transfer, Some(Instant::now() + LONG))
            .unwrap();
        assert!(transfer.drain().all(|outcome| outcome.result.is_ok()));
        assert!(ends.rails.channels().any(|rail| !rail.is_down()));
        // Both come back, whoever needs them.
        while ends.rails.channels().any(Channel::is_down) {
            ends.rails.transfer(&mut transfer, None).unwrap();
            std::thread::yield_now();
        }
    }
    drop(ends.rails);
    // The thread ends with the rails.
    assert_eq!(told.iter().count(), 6);
}
