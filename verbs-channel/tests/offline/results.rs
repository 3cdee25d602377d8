//! Results that stay in a group until they are taken: their tickets, slots and channels.

use std::time::Duration;

use verbs_channel::error::Queue;
use verbs_channel::verbs_core::verbs_sys::IBV_WC_REM_ACCESS_ERR;
use verbs_channel::{ChannelGroup, DownReason, Error, TransportError};

use crate::driven::polls;
use crate::fake_device::{ends, forget_the_past, group, join, pd, posted, succeeds};

const CLOSED: TransportError = TransportError::Aborted(DownReason::Closed);

#[test]
fn index_is_not_reused_while_results_are_untaken() {
    let pd = pd();
    let (mut group, ids) = group(&pd, 2);
    // Other channels have operations, too, which stay in flight.
    let tickets = [1, 0, 0].map(|number| {
        let buffer = pd.reg_mr(vec![0_u8; 64]).unwrap();
        let mut member = group.channel(ids[number]).unwrap();
        member.start_receive(buffer).unwrap()
    });
    group.remove(ids[0]).unwrap();
    // The ticket of one is returned, that of the other is not.
    assert_eq!(group.engine_mut().next_ticket(), Some(tickets[1]));
    for ticket in [tickets[2], tickets[1]] {
        let next = join(&mut group);
        assert_eq!(next.index(), 2);
        group.remove(next).unwrap();
        let ended = group.poll(ticket).unwrap().unwrap();
        assert_eq!((ended.channel, ended.result.unwrap_err()), (ids[0], CLOSED));
    }
    assert_eq!(join(&mut group).index(), 0);
    assert!(group.poll(tickets[0]).unwrap().is_none(), "it goes on");
}

#[test]
fn success_is_returned_once_and_for_its_own_ticket_only() {
    let pd = pd();
    let (mut group, ids) = group(&pd, 1);
    let start = |group: &mut ChannelGroup| {
        forget_the_past();
        let buffer = pd.reg_mr(vec![0_u8; 64]).unwrap();
        let mut member = group.channel(ids[0]).unwrap();
        let ticket = member.start_receive(buffer).unwrap();
        (ticket, posted()[0])
    };
    let (first, first_id) = start(&mut group);
    succeeds(first_id);
    assert!(group.engine_mut().poll_success(first).is_some());
    assert!(
        group.engine_mut().poll_success(first).is_none(),
        "it was taken"
    );
    // Another operation has its slot, and the device repeats a completion.
    let (second, second_id) = start(&mut group);
    assert_eq!(first.slot(), second.slot());
    succeeds(first_id);
    assert!(
        group.engine_mut().poll_success(first).is_none(),
        "it is in flight"
    );
    succeeds(second_id);
    assert_eq!(group.engine_mut().next_ticket(), Some(second));
    assert!(
        group.engine_mut().poll_success(first).is_none(),
        "another operation"
    );
    // Taking a completed operation costs no poll, and returns its credit only once.
    succeeds(second_id);
    let before = polls();
    assert!(group.engine_mut().take(second).unwrap().is_some());
    assert_eq!(polls(), before);
    assert!(group.next_completed().is_none());
    assert_eq!(group.channel(ids[0]).unwrap().credits(Queue::Receive), 4);
    // A failure is not a success, whatever the previous result of the slot was.
    let (third, third_id) = start(&mut group);
    ends(third_id, IBV_WC_REM_ACCESS_ERR);
    assert!(group.engine_mut().poll_success(third).is_none());
    let failed = group.poll(third).unwrap().unwrap();
    assert!(failed.result.is_err() && failed.buffer.is_some());
}

#[test]
fn ticket_is_valid_in_its_own_group_only() {
    let pd = pd();
    // The first operation of each group: both have the same slot and generation.
    let [ours, others] = [(); 2].map(|()| {
        let (mut group, ids) = group(&pd, 1);
        let buffer = pd.reg_mr(vec![0_u8; 64]).unwrap();
        let mut member = group.channel(ids[0]).unwrap();
        let ticket = member.start_receive(buffer).unwrap();
        (group, ticket)
    });
    let ((mut ours, ticket), (mut others, theirs)) = (ours, others);
    assert_ne!(ticket, theirs);
    let refuses = |group: &mut ChannelGroup, ticket| {
        assert!(matches!(group.poll(ticket), Err(Error::StaleTicket)));
        assert!(matches!(
            group.engine_mut().take(ticket),
            Err(Error::StaleTicket)
        ));
        assert!(group.engine_mut().poll_success(ticket).is_none());
    };
    refuses(&mut others, ticket);
    succeeds(posted()[0]);
    assert_eq!(others.engine_mut().next_ticket(), Some(theirs));
    refuses(&mut others, ticket);
    refuses(&mut ours, theirs);
    // Taking a completed operation costs no poll.
    let before = polls();
    assert!(others.poll(theirs).unwrap().is_some());
    assert_eq!(polls(), before);
    assert!(ours.poll(ticket).unwrap().is_none(), "it goes on");
}

#[test]
fn channel_of_a_group_does_not_take_results_of_another() {
    let pd = pd();
    let (mut group, ids) = group(&pd, 2);
    let buffer = pd.reg_mr(vec![0_u8; 64]).unwrap();
    let ticket = group
        .channel(ids[1])
        .unwrap()
        .start_receive(buffer)
        .unwrap();
    succeeds(posted()[0]);
    let mut first = group.channel(ids[0]).unwrap();
    assert!(matches!(first.poll(ticket), Err(Error::StaleTicket)));
    let waited = first.wait(ticket, Some(Duration::ZERO));
    assert!(matches!(waited, Err(Error::StaleTicket)));
    let mut second = group.channel(ids[1]).unwrap();
    assert!(second.poll(ticket).unwrap().unwrap().result.is_ok());
}

#[test]
fn id_of_a_removed_channel_is_unknown() {
    let pd = pd();
    let (mut group, ids) = group(&pd, 2);
    group.engine_mut().destroy_all(DownReason::Abandoned);
    assert_eq!(
        join(&mut group).index(),
        2,
        "those that are down have their places"
    );
    let channel = group.channel(ids[0]).unwrap();
    assert_eq!(channel.down_reason(), Some(DownReason::Abandoned));
    group.remove(ids[0]).unwrap();
    let next = join(&mut group);
    assert_eq!(next.index(), ids[0].index(), "it has the place");
    let gone = |error: Error| matches!(error, Error::UnknownChannel(id) if id == ids[0]);
    assert!(gone(group.channel(ids[0]).map(drop).unwrap_err()));
    assert!(gone(group.remove(ids[0]).unwrap_err()));
    assert!(gone(group.engine_mut().reserve(ids[0], 1).unwrap_err()));
    let destroyed = group.engine_mut().destroy(ids[0], DownReason::Closed);
    assert!(gone(destroyed.unwrap_err()));
    assert!(!group.channel(next).unwrap().is_down());
}
