//! Every opcode in every way: blocking, in scopes, lent, owned, in batches.

use verbs_channel::verbs_core::codes::WcOpcode;
use verbs_channel::verbs_core::{GatherElement, RemoteMemoryRegion, ScatterElement};
use verbs_channel::{Channel, Error, Incoming, Outgoing, Result, ScopeError};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::{PATIENCE, begin};

use super::ends::{NOTHING, bytes, filled, given, pair, pattern, zeros};

/// A way to use a channel: how it moves bytes out, and how it gets bytes in.
struct Way {
    name: &'static str,
    out: for<'a> fn(&mut Channel, Outgoing<GatherElement<'a>>) -> Result<()>,
    into: for<'a> fn(&mut Channel, Incoming<ScatterElement<'a>>) -> Result<()>,
}

/// Ways that are the same in both directions.
macro_rules! ways {
    ($($name:literal: |$channel:ident, $work:ident| $run:expr;)*) => {
        [$(Way {
            name: $name,
            out: |$channel, $work| $run,
            into: |$channel, $work| $run,
        }),*]
    };
}

/// Runs this in a scope of this kind.
macro_rules! within {
    ($channel:ident.$kind:ident, |$scope:ident| $run:expr) => {{
        let ended = $channel.$kind(|$scope| Ok::<_, Error>($run));
        ended.map(drop).map_err(ScopeError::flatten)
    }};
}

const WAYS: [Way; 7] = ways! {
    "blocking": |channel, work| Ok(channel.run(work).map(drop)?);
    "blocking, with a timeout": |channel, work| Ok(channel.run(work.timeout(PATIENCE)).map(drop)?);
    "scoped": |channel, work| within!(channel.scope, |scope| scope.post(work)?.spin_poll()?);
    "left to the scope": |channel, work| within!(channel.scope, |scope| drop(scope.post(work)?));
    "in a manual scope": |channel, work| within!(channel.manual_scope, |scope| {
        scope.post(work)?.wait_timeout(PATIENCE).expect("in time")?
    });
    "lent": |channel, work| within!(channel.scope, |scope| scope.lend(work)?.spin_poll().0?);
    "in a batch of one": |channel, work| within!(channel.scope, |scope| {
        scope.post_batch([work])?.spin_poll()?
    });
};

const LEN: usize = 10_000;

#[test]
#[ignore = "needs an RDMA device"]
fn sends_arrive_with_and_without_immediate_data() {
    let _test = begin!(iwarp lacks "immediates");
    for (seed, way) in WAYS.iter().enumerate() {
        let (mut a, mut b) = pair();
        let from = filled(&a, seed, LEN);
        for imm_data in [None, Some(0x0102_0304 + u32::try_from(seed).unwrap())] {
            let mut into = zeros(&b, LEN + 5);
            let mut work = Outgoing::send(from.gather_element(..).unwrap()).solicited();
            if let Some(imm_data) = imm_data {
                work = work.immediate(imm_data);
            }
            let received = b.scope(|scope| {
                let receive = scope.post_receive(into.scatter_element(..)?)?;
                (way.out)(&mut a, work)?;
                Ok::<_, Error>(receive.spin_poll()?)
            });
            let received = received.unwrap();
            assert_eq!(received.byte_len() as usize, LEN, "{}", way.name);
            assert_eq!(received.imm_data(), imm_data, "{}", way.name);
            assert_eq!(received.opcode(), WcOpcode::RECV);
            assert!(into[..LEN] == pattern(seed, LEN), "{}", way.name);
            assert_eq!(into[LEN..], [0; 5], "{}", way.name);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn writes_arrive_and_complete_a_receive_if_they_have_immediate_data() {
    let _test = begin!(iwarp lacks "immediates");
    for (seed, way) in WAYS.iter().enumerate() {
        let (mut a, mut b) = pair();
        let from = filled(&a, seed, LEN);
        let target = given(&b, vec![0; LEN + 20]);
        let remote = target.remote().slice(10..).unwrap();
        let work = Outgoing::write(from.gather_element(..).unwrap(), remote);
        (way.out)(&mut a, work).unwrap();
        let written = bytes(&target);
        assert!(written[10..LEN + 10] == pattern(seed, LEN), "{}", way.name);
        assert_eq!(
            (&written[..10], &written[LEN + 10..]),
            (&[0; 10][..], &[0; 10][..])
        );

        let received = b.scope(|scope| {
            let receive = scope.post_receive(NOTHING)?;
            (way.out)(&mut a, work.immediate(77).fence())?;
            Ok::<_, Error>(receive.spin_poll()?)
        });
        let received = received.unwrap();
        let (imm_data, len) = (received.imm_data(), received.byte_len() as usize);
        assert_eq!((imm_data, len), (Some(77), LEN));
        let opcode = received.opcode();
        assert_eq!(opcode, WcOpcode::RECV_RDMA_WITH_IMM, "{}", way.name);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn reads_return_the_peers_bytes() {
    let _test = begin!();
    for (seed, way) in WAYS.iter().enumerate() {
        let (mut a, b) = pair();
        let source = given(&b, pattern(seed, LEN));
        let mut into = zeros(&a, LEN);
        let mut work = Incoming::read(into.scatter_element(7..).unwrap(), source.remote());
        // Soft-iWARP rejects a fence.
        if !is_iwarp() {
            work = work.fence();
        }
        (way.into)(&mut a, work).unwrap();
        assert_eq!(into[..7], [0; 7], "{}", way.name);
        assert!(into[7..] == pattern(seed, LEN)[..LEN - 7], "{}", way.name);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn atomics_change_the_peers_number_and_return_its_previous_value() {
    let _test = begin!(iwarp lacks "atomics");
    for way in &WAYS {
        let (mut a, b) = pair();
        let number = given(&b, 40_u64.to_ne_bytes().repeat(2));
        let second = number.remote().slice(8..).unwrap();
        let mut before = zeros(&a, 8);
        let mut now = |a: &mut Channel,
                       work: fn(
            ScatterElement<'_>,
            RemoteMemoryRegion,
        ) -> Incoming<ScatterElement<'_>>| {
            let work = work(before.scatter_element(..).unwrap(), second);
            (way.into)(a, work).unwrap();
            let was = u64::from_ne_bytes(before[..].try_into().unwrap());
            let is = u64::from_ne_bytes(bytes(&number)[8..].try_into().unwrap());
            (was, is)
        };
        let name = way.name;
        let add = now(&mut a, |list, at| Incoming::fetch_and_add(list, at, 2));
        assert_eq!(add, (40, 42), "{name}");
        let hit = now(&mut a, |list, at| {
            Incoming::compare_and_swap(list, at, 42, 7)
        });
        assert_eq!(hit, (42, 7), "{name}");
        let miss = now(&mut a, |list, at| {
            Incoming::compare_and_swap(list, at, 42, 8)
        });
        assert_eq!(miss, (7, 7), "{name}");
        assert_eq!(
            bytes(&number)[..8],
            40_u64.to_ne_bytes(),
            "the other number"
        );
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn inline_bytes_are_copied_during_the_post() {
    let _test = begin!();
    for (seed, way) in WAYS.iter().enumerate() {
        let (mut a, mut b) = pair();
        let from = filled(&a, seed, 64);
        let mut into = zeros(&b, 64);
        let received = b.scope(|scope| {
            let receive = scope.post_receive(into.scatter_element(..)?)?;
            (way.out)(&mut a, Outgoing::send(from.gather_element(..)?).inline())?;
            Ok::<_, Error>(receive.spin_poll()?)
        });
        received.unwrap();
        assert!(into[..] == pattern(seed, 64), "{}", way.name);
        let target = given(&b, vec![0_u8; 64]);
        let work = Outgoing::write(from.gather_element(..).unwrap(), target.remote());
        (way.out)(&mut a, work.inline()).unwrap();
        assert!(bytes(&target) == pattern(seed, 64), "{}", way.name);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn lists_are_gathered_and_scattered_in_order() {
    let _test = begin!(iwarp lacks "receives without an element");
    let (mut a, mut b) = pair();
    let from = filled(&a, 1, 3000);
    let mut into = zeros(&b, 3000);
    let (x, rest) = from.gather_element(..).unwrap().split_at(1000).unwrap();
    let (y, z) = rest.split_at(1500).unwrap();
    let received = b.scope(|scope| {
        let chunks = into.scatter_element(..)?.chunks_mut(750)?;
        let receive = scope.post_receive(chunks.collect::<Vec<_>>())?;
        a.send([z, x, y])?;
        Ok::<_, Error>(receive.spin_poll()?)
    });
    assert_eq!(received.unwrap().byte_len(), 3000);
    assert!(into[..] == [&from[2500..], &from[..2500]].concat());
    // Elements of memory that the peer may use as well.
    let shared = given(&a, pattern(2, 64));
    let target = given(&b, vec![0_u8; 64]);
    a.write(
        vec![shared.element(32..).unwrap(), shared.element(..32).unwrap()],
        target.remote(),
    )
    .unwrap();
    assert!(bytes(&target) == [&pattern(2, 64)[32..], &pattern(2, 64)[..32]].concat());
    a.read(shared.element(..).unwrap(), target.remote())
        .unwrap();
    assert!(bytes(&shared) == bytes(&target));
    // No bytes at all are a message too.
    let none = b.scope(|scope| {
        let receive = scope.post_receive(Vec::<ScatterElement<'_>>::new())?;
        a.send(Vec::<GatherElement<'_>>::new())?;
        Ok::<_, Error>(receive.spin_poll()?)
    });
    assert_eq!(none.unwrap().byte_len(), 0);
}
