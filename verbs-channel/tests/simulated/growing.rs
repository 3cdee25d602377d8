//! Groups whose completion queue grows as channels join.

use std::iter;
use std::time::Duration;

use soft_verbs::{Fabric, Host, Profile};
use verbs_channel::engine::ConnectedMember;
use verbs_channel::verbs_core::error::ErrorKind;
use verbs_channel::{BufferPool, Channel, ChannelConfig, ChannelGroup, ChannelId, Error};

use super::{LONG, pd};

/// A host whose completion queues have the room that was asked for, and no more.
fn host(fabric: &Fabric, max_cqe: u32) -> Host {
    let profile = Profile {
        max_cqe,
        rounds_up: false,
        ..Profile::default()
    };
    fabric.host_with("a", profile)
}

fn config(budget: Option<u32>) -> ChannelConfig {
    let builder = Channel::builder(&pd()).max_send_wr(4).max_recv_wr(4);
    builder.in_flight(budget).config()
}

/// A channel of the group that is connected to itself.
fn member(group: &ChannelGroup) -> ConnectedMember {
    let member = group.prepare().unwrap();
    let itself = member.endpoint();
    member.handshake(&itself).unwrap()
}

/// Posts a receive and a send, if there is room for both.
fn post(group: &mut ChannelGroup, at: ChannelId, pool: &BufferPool) -> Option<()> {
    let mut channel = group.channel(at).unwrap();
    channel.start_receive(pool.take()?).ok()?;
    channel.start_send(pool.take()?).ok()?;
    Some(())
}

/// All queues are full, and nothing is polled, as each channel joins.
#[test]
fn completion_queue_that_grows_has_room_for_all_that_is_in_flight() {
    for (budget, first) in [(None, 4), (Some(6), 3)] {
        let fabric = Fabric::seeded(1);
        host(&fabric, 1000).enter(|| {
            let mut group = config(budget).group(1).unwrap();
            let pool = BufferPool::new(group.pd(), 8, 100).unwrap();
            let mut pairs = Vec::new();
            for _ in 0..9 {
                let member = member(&group);
                let at = group.join(member).unwrap();
                pairs.push(iter::from_fn(|| post(&mut group, at, &pool)).count());
                fabric.run_for(Duration::from_millis(1));
            }
            assert!(pairs[0] == first && !pairs.contains(&0), "{pairs:?}");
            for _ in 0..2 * pairs.iter().sum::<usize>() {
                let completed = group.wait_completed(LONG).unwrap();
                completed.result.unwrap();
            }
        });
    }
}

#[test]
fn completion_queue_that_grows_has_room_for_the_shared_receives() {
    let fabric = Fabric::seeded(1);
    host(&fabric, 1000).enter(|| {
        let config = config(None);
        let pool = BufferPool::new(config.pd(), 8, 100).unwrap();
        let mut group = config.shared_receives(&pool, 8).group(1).unwrap();
        let ids = [(); 3].map(|()| {
            let member = member(&group);
            group.join(member).unwrap()
        });
        for at in ids {
            for _ in 0..4 {
                let block = pool.take().unwrap();
                let _ticket = group.channel(at).unwrap().start_send(block).unwrap();
            }
        }
        fabric.run_for(Duration::from_millis(1));
        for _ in 0..3 * 4 {
            let message = group.wait_message(LONG).unwrap();
            assert_eq!(message.bytes().map(<[u8]>::len), Some(8));
        }
        for _ in 0..3 * 4 {
            group.wait_completed(LONG).unwrap().result.unwrap();
        }
    });
}

#[test]
fn channel_for_which_the_queue_does_not_grow_is_handed_back_and_can_join_later() {
    let fabric = Fabric::seeded(1);
    // Twice the room of two channels is more than the device has.
    let host = host(&fabric, 28);
    host.enter(|| {
        let mut group = config(None).group(2).unwrap();
        let pool = BufferPool::new(group.pd(), 8, 100).unwrap();
        let mut ids = [(); 2].map(|()| {
            let member = member(&group);
            group.join(member).unwrap()
        });
        // To twice its length, and to what is needed.
        for _ in 0..2 {
            host.refuse("ibv_resize_cq", libc::EOPNOTSUPP);
        }
        let refused = group.join(member(&group)).unwrap_err();
        let Error::GroupFull(reason) = refused.error() else {
            panic!("{}", refused.error());
        };
        assert_eq!(reason.kind(), ErrorKind::Unsupported);
        // It is not counted.
        let third = group.join(refused.into_given()).unwrap();
        let full = group.join(member(&group)).unwrap_err();
        let Error::GroupFull(reason) = full.error() else {
            panic!("{}", full.error());
        };
        let text = reason.to_string();
        assert!(text.contains("32") && text.contains("28"), "{text}");
        group.remove(ids[0]).unwrap();
        ids[0] = group.join(full.into_given()).unwrap();
        for at in [ids[0], ids[1], third] {
            assert_eq!(iter::from_fn(|| post(&mut group, at, &pool)).count(), 4);
        }
        fabric.run_for(Duration::from_millis(1));
        for _ in 0..3 * 2 * 4 {
            group.wait_completed(LONG).unwrap().result.unwrap();
        }
    });
}
