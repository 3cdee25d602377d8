//! A scope is not used after it has ended.

use verbs_channel::Channel;

fn broken(channel: &mut Channel) {
    let mut kept = None;
    let ended = channel.scope(|scope| {
        kept = Some(scope);
        Ok::<_, ()>(())
    });
    ended.unwrap();
    kept.unwrap().poll();
}

fn main() {}
