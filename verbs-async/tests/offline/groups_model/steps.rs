//! Steps in the life of a group's channels.

use proptest::prelude::{Just, Strategy, any};
use proptest::{collection, prop_oneof};

/// A step of a program. Numbers choose among the objects that exist.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Join,
    Leave(usize),
    Begin(usize, Kind),
    Poll(usize),
    Abandon(usize),
    /// The device completes this many.
    Complete(usize, usize),
    Fail(usize),
    Announce,
    /// The next post fails at this request, with or without a `bad_wr`.
    RefusePost(usize, bool),
    RefuseArming,
    RefusePoll,
    /// A completion of no operation.
    Stray(u64),
    /// The next queue pair cannot be destroyed.
    Stick,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Send,
    Receive,
    Batch(usize),
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let chosen = || any::<usize>();
    let kind = prop_oneof![
        3 => Just(Kind::Send),
        3 => Just(Kind::Receive),
        2 => (1..5_usize).prop_map(Kind::Batch),
    ];
    let step = prop_oneof![
        2 => Just(Step::Join),
        1 => chosen().prop_map(Step::Leave),
        16 => (chosen(), kind).prop_map(|(channel, kind)| Step::Begin(channel, kind)),
        16 => chosen().prop_map(Step::Poll),
        3 => chosen().prop_map(Step::Abandon),
        12 => (chosen(), 1..20_usize).prop_map(|(first, count)| Step::Complete(first, count)),
        1 => chosen().prop_map(Step::Fail),
        6 => Just(Step::Announce),
        1 => (0..2_usize, any::<bool>()).prop_map(|(at, named)| Step::RefusePost(at, named)),
        1 => Just(Step::RefuseArming),
        1 => Just(Step::RefusePoll),
        1 => any::<u64>().prop_map(Step::Stray),
    ];
    collection::vec(step, 0..if cfg!(miri) { 12 } else { 150 })
}

/// Three channels with room for five each have all of it, or a part.
pub(super) fn in_flight() -> impl Strategy<Value = u32> {
    prop_oneof![Just(15), 6..15_u32]
}
