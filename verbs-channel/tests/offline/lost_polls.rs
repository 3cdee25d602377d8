//! Polls that fail where one channel ends: completions of the others may be lost, so all are taken down.

use std::time::Instant;

use fake_libibverbs::with;
use verbs_channel::{ChannelGroup, ChannelId, DownReason};

use crate::fake_device::{group, pd, refuse};
use crate::shared_receives::{Shared, connected};

/// The next poll fails, and loses the completions that it has taken.
fn next_poll_fails() {
    with(|library| library.poll_answer = Some(-2));
}

fn is_poll(reason: Option<DownReason>) -> bool {
    matches!(reason, Some(DownReason::Poll(_)))
}

/// A way for one channel to end, with a poll that fails.
type End = fn(&mut ChannelGroup, ChannelId);

const ENDS: [(&str, End); 4] = [
    ("destroyed", |group, id| {
        next_poll_fails();
        let engine = group.engine_mut();
        engine.destroy(id, DownReason::Closed).unwrap();
    }),
    ("removed", |group, id| {
        next_poll_fails();
        group.remove(id).unwrap();
    }),
    ("destroyed elsewhere", |group, id| {
        let engine = group.engine_mut();
        engine.defer_closing();
        engine.destroy(id, DownReason::Closed).unwrap();
        let closed = engine.next_closing().unwrap().destroy();
        next_poll_fails();
        engine.finish_close(closed).unwrap();
        // The other one's.
        let closed = engine.next_closing().unwrap().destroy();
        engine.finish_close(closed).unwrap();
    }),
    ("probed", |group, id| {
        let buffer = group.pd().reg_mr(vec![0_u8; 64]).unwrap();
        let mut channel = group.channel(id).unwrap();
        let _ticket = channel.start_receive(buffer).unwrap();
        refuse("ibv_query_qp", 1);
        next_poll_fails();
        group.engine_mut().probe(Instant::now());
    }),
];

#[test]
fn failed_poll_at_the_end_of_a_channel_ends_the_others_too() {
    for (name, end) in ENDS {
        let pd = pd();
        let (mut group, ids) = group(&pd, 2);
        let buffer = pd.reg_mr(vec![0_u8; 64]).unwrap();
        let mut other = group.channel(ids[0]).unwrap();
        let ticket = other.start_receive(buffer).unwrap();
        end(&mut group, ids[1]);
        let ended = group.poll(ticket).unwrap().unwrap();
        let error = ended.result.unwrap_err();
        assert!(is_poll(error.down_reason()), "{name}: {error:?}");
    }
}

#[test]
fn failed_poll_at_the_start_of_a_channel_that_shares_its_receives_ends_the_others() {
    let mut shared = Shared::new(8, 8, 2);
    let (member, _) = connected(&shared.group);
    next_poll_fails();
    let id = shared.group.join(member).unwrap();
    for (id, _) in &shared.channels {
        let channel = shared.group.channel(*id).unwrap();
        assert!(is_poll(channel.down_reason()));
        assert!(is_poll(shared.group.next_message().unwrap().end()));
    }
    // The new channel has lost nothing.
    assert_eq!(shared.group.channel(id).unwrap().down_reason(), None);
}

#[test]
fn failed_poll_at_the_end_of_a_channel_that_shares_its_receives_ends_the_others() {
    type End = fn(&mut Shared, ChannelId);
    let ends: [(&str, End); 2] = [
        ("removed", |shared, id| {
            next_poll_fails();
            shared.group.remove(id).unwrap();
        }),
        ("reported", |shared, id| {
            let engine = shared.group.engine_mut();
            engine.flush(id, DownReason::Closed).unwrap();
            next_poll_fails();
            assert_eq!(shared.next().end(), Some(DownReason::Closed));
        }),
    ];
    for (name, end) in ends {
        let mut shared = Shared::new(8, 8, 2);
        let [(id, _), (other, _)] = shared.channels[..] else {
            panic!("two channels");
        };
        end(&mut shared, id);
        let channel = shared.group.channel(other).unwrap();
        assert!(is_poll(channel.down_reason()), "{name}");
        let message = shared.next();
        assert!(
            message.channel == other && is_poll(message.end()),
            "{name}: {message:?}"
        );
    }
}
