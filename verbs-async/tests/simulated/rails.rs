//! Transfers over rails, on a thread of their own.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

use verbs_async::transfer_over;
use verbs_async::verbs_channel::verbs_core::AccessFlags;
use verbs_async::verbs_channel::{
    Channel, Incoming, Outgoing, PollStrategy, Rails, SharedMemory, Transfer,
};
use verbs_harness::until;

use super::{LONG, alone, device};

/// Rails of two channels, their other ends, and a transfer that ends when the first of these sends 8 bytes: it receives them,
/// and writes 8 bytes. The owner lives as long as the device may write to the memory.
fn ends() -> (Rails, [Channel; 2], Transfer, Weak<()>) {
    let (pd, _events) = device();
    let builder = || Channel::builder(&pd).strategy(PollStrategy::Notify { after: 0 });
    let pairs = [(); 2].map(|()| builder().loopback().unwrap());
    let [(first, idle), (second, peer)] = pairs;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE;
    let memory = SharedMemory::register([&pd], vec![0_u8; 24], access).unwrap();
    let owner = Arc::new(());
    let received = memory.slice(..8).unwrap().owned_by(Arc::clone(&owner));
    let mut transfer = Transfer::with_capacity(2);
    transfer.add(second.id(), Incoming::receive(received));
    let mut rails = Rails::new([first, second]);
    let remote = memory.remote(&pd).unwrap();
    let remote = rails.add_remote([remote, remote]).unwrap();
    let write = Outgoing::write(memory.slice(8..16).unwrap(), remote.slice(16..).unwrap());
    transfer.add(rails.id(), write);
    (rails, [peer, idle], transfer, Arc::downgrade(&owner))
}

#[test]
fn transfer_over_rails_leaves_the_executor_to_other_tasks() {
    alone(async || {
        let (rails, [mut peer, _idle], transfer, _owner) = ends();
        let mut moving = pin!(transfer_over(rails, transfer, None).unwrap());
        let pending = poll_fn(|cx| Poll::Ready(moving.as_mut().poll(cx).is_pending()));
        assert!(pending.await, "nothing was sent yet");
        let sent = peer.pd().reg_mr(vec![7_u8; 8]).unwrap();
        peer.send(sent.gather_element(..).unwrap()).unwrap();
        let (rails, mut transfer, ended) = moving.await;
        ended.unwrap();
        assert_eq!(transfer.drain().count(), 2);
        assert!(rails.channels().all(|channel| !channel.is_down()));
    });
}

#[test]
fn dropped_transfer_over_rails_is_aborted_and_frees_its_memory() {
    alone(async || {
        let (rails, peers, transfer, owner) = ends();
        let counters = rails.channels().next().unwrap().counters();
        let mut moving = Box::pin(transfer_over(rails, transfer, None).unwrap());
        let pending = poll_fn(|cx| Poll::Ready(moving.as_mut().poll(cx).is_pending()));
        assert!(pending.await, "the peer sends nothing");
        assert!(
            until(LONG / 2, || counters.read().completed == 1),
            "the write"
        );
        drop(moving);
        assert!(until(LONG / 2, || owner.strong_count() == 0));
        drop(peers);
    });
}
