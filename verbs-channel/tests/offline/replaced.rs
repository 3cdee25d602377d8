//! Channels of a group whose place another channel has got meanwhile: nothing of theirs reaches that one.

use verbs_channel::error::Queue;
use verbs_channel::{BufferPool, Channel, ChannelId, DownReason};

use crate::fake_device::{bounded, group, member, pd, posted};

/// Removes a channel by the engine that its handle hands out, and joins another, which gets its place.
fn replace(
    channel: &mut Channel<verbs_channel::channel::InGroup<'_>>,
    other: verbs_channel::engine::ConnectedMember,
) -> ChannelId {
    let id = channel.id();
    let engine = channel.engine_mut();
    engine.remove(id).unwrap();
    let other = engine.join(other).unwrap();
    assert_eq!(other.index(), id.index(), "it has another place");
    other
}

#[test]
fn handle_of_a_removed_channel_posts_nothing_on_the_one_that_has_its_place() {
    let pd = pd();
    let pool = BufferPool::new(&pd, 64, 4).unwrap();
    let mut group = group(&pd, 1).0;
    let (first, other) = (group.channels().next().unwrap(), member(&group));
    let mut region = pd.reg_mr(vec![0_u8; 64]).unwrap();
    let count = posted().len();
    let mut channel = group.channel(first).unwrap();
    let other = replace(&mut channel, other);
    // Owned, borrowed, and in a scope; sends and receives; one and a batch.
    let is_down = |reason: Option<DownReason>| reason == Some(DownReason::Closed);
    let rejected = channel.start_send(pool.take().unwrap()).unwrap_err();
    assert!(is_down(rejected.error().down_reason()));
    let rejected = channel.start_receive(pool.take().unwrap()).unwrap_err();
    assert!(is_down(rejected.error().down_reason()));
    let error = bounded(|| channel.send(region.gather_element(..).unwrap()));
    assert!(is_down(error.unwrap_err().down_reason()));
    let error = bounded(|| channel.receive(region.scatter_element(..).unwrap()));
    assert!(is_down(error.unwrap_err().down_reason()));
    let scoped = bounded(|| {
        channel.scope(|scope| {
            let rejected = scope.post_send(region.gather_element(..)?).err();
            Ok::<_, verbs_channel::Error>(rejected.and_then(|reason| reason.down_reason()))
        })
    });
    assert!(is_down(scoped.unwrap()));
    assert_eq!(posted().len(), count);
    assert!(is_down(channel.down_reason()) && channel.endpoint().is_none());
    assert_eq!(channel.credits(Queue::Send), 0);
    assert_eq!(group.channel(other).unwrap().down_reason(), None);
}

#[test]
fn handle_of_a_removed_channel_ends_nothing_of_the_one_that_has_its_place() {
    let ends: [fn(Channel<verbs_channel::channel::InGroup<'_>>); 2] = [
        |mut channel| bounded(|| channel.abort()),
        |channel| bounded(|| channel.close()).unwrap(),
    ];
    for end in ends {
        let pd = pd();
        let mut group = group(&pd, 1).0;
        let (first, other) = (group.channels().next().unwrap(), member(&group));
        let mut channel = group.channel(first).unwrap();
        let other = replace(&mut channel, other);
        end(channel);
        assert_eq!(group.channel(other).unwrap().down_reason(), None);
        let block = pd.reg_mr(vec![0_u8; 8]).unwrap();
        group.channel(other).unwrap().start_send(block).unwrap();
    }
}

#[test]
fn handle_of_a_channel_of_another_engine_reaches_no_channel() {
    let pd = pd();
    let (mut one, mut two) = (group(&pd, 1).0, group(&pd, 1).0);
    let first = one.channels().next().unwrap();
    let mut channel = one.channel(first).unwrap();
    std::mem::swap(channel.engine_mut(), two.engine_mut());
    let block = pd.reg_mr(vec![0_u8; 8]).unwrap();
    let rejected = channel.start_send(block).unwrap_err();
    assert_eq!(rejected.error().down_reason(), Some(DownReason::Closed));
    assert!(channel.is_down());
}
