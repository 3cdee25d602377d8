//! Groups: many channels on one completion queue.

use std::collections::BTreeMap;
use std::thread;

use verbs_channel::verbs_core::{
    AccessFlags, ProtectionDomain, RemoteMemoryRegion, ScatterElement,
};
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, Completed, DownReason, Error, Outgoing,
    OwnedBuffer, OwnedRequest, PollStrategy, PreparedChannel, Queue, RejectReason, Ticket,
    TransportError,
};
use verbs_harness::{PATIENCE, begin, until};

use super::ends::{SOON, Sleeper, bounded, bytes, here, impatient, meet, pattern, stubborn};

fn group_of(pd: &ProtectionDomain, max_channels: u32) -> ChannelGroup {
    let builder = Channel::builder(pd).max_send_wr(4).max_recv_wr(4);
    builder.timeout(PATIENCE).group(max_channels).unwrap()
}

/// A member of the group, and the channel at its other end.
fn join(
    group: &mut ChannelGroup,
    peer: fn(&ProtectionDomain) -> PreparedChannel,
) -> (ChannelId, Channel) {
    let pd = group.pd().clone();
    let (member, peer) = (group.prepare().unwrap(), peer(&pd));
    let (member, peer) = meet(member, peer);
    (group.join(member).unwrap(), peer)
}

/// A channel whose device retries for seconds: threads of a busy machine are slow.
fn patient(pd: &ProtectionDomain) -> PreparedChannel {
    Channel::builder(pd).timeout(PATIENCE).build().unwrap()
}

/// Starts a receive on a channel of the group.
fn receive(group: &mut ChannelGroup, number: ChannelId, into: impl Into<OwnedBuffer>) -> Ticket {
    let mut channel = group.channel(number).unwrap();
    channel.start_receive(into).unwrap()
}

/// Waits for an operation of a channel of the group.
fn wait(group: &mut ChannelGroup, number: ChannelId, ticket: Ticket) -> Completed {
    let mut channel = group.channel(number).unwrap();
    channel.wait(ticket, Some(PATIENCE)).unwrap().unwrap()
}

fn send(channel: &mut Channel, bytes: Vec<u8>) {
    let from = channel.pd().reg_mr(bytes).unwrap();
    channel
        .run_timeout(Outgoing::send(from.gather_element(..).unwrap()), PATIENCE)
        .unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn sixty_four_channels_share_one_queue() {
    let _test = begin!();
    let pd = here();
    let mut group = group_of(&pd, 64);
    let pool = BufferPool::new(&pd, 64, 64 * 4).unwrap();
    let mut peers: Vec<_> = (0..64).map(|_| join(&mut group, impatient)).collect();
    let last = peers.last().unwrap().0;
    assert_eq!((group.len(), last.index()), (64, 63));
    for round in 0..3 {
        for (number, _) in &peers {
            let _ticket = receive(&mut group, *number, pool.take().unwrap());
        }
        for (number, peer) in peers.iter_mut().rev() {
            send(peer, pattern(number.index() + 64 * round, 64));
        }
        // In the order of completion, which is that of the sends.
        for (number, _) in peers.iter().rev() {
            let completed = group.wait_completed(Some(PATIENCE)).unwrap();
            assert_eq!(completed.channel, *number);
            completed.result.unwrap();
            assert!(completed.buffer.unwrap()[..] == pattern(number.index() + 64 * round, 64));
        }
    }
    assert_eq!(pool.available(), 64 * 4);
}

#[test]
#[ignore = "needs an RDMA device"]
fn channel_rejected_by_a_full_group_joins_later() {
    let _test = begin!();
    let pd = here();
    let mut group = group_of(&pd, 1);
    let (number, _peer) = join(&mut group, impatient);
    let (member, peer) = (group.prepare().unwrap(), patient(&pd));
    let (member, mut peer) = meet(member, peer);
    let full = group.join(member).unwrap_err();
    assert!(matches!(full.error(), Error::GroupFull(1)));
    let mut other = group_of(&pd, 1);
    let foreign = other.join(full.into_given()).unwrap_err();
    assert!(matches!(foreign.error(), Error::ForeignMember));
    assert!(other.is_empty());
    group.remove(number).unwrap();
    // Its peer has not noticed that.
    let number = group.join(foreign.into_given()).unwrap();
    let buffer = pd.reg_mr(vec![0; 8]).unwrap();
    let mut channel = group.channel(number).unwrap();
    let _ticket = channel.start_receive(buffer).unwrap();
    send(&mut peer, pattern(3, 8));
    let completed = group.wait_completed(Some(PATIENCE)).unwrap();
    completed.result.unwrap();
    assert!(completed.buffer.unwrap()[..] == pattern(3, 8));
}

#[test]
#[ignore = "needs an RDMA device"]
fn no_channel_starves_another() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    let pd = here();
    let mut group = group_of(&pd, 8);
    let pool = BufferPool::new(&pd, 8, 8 * 4).unwrap();
    let peers: Vec<_> = (0..8).map(|_| join(&mut group, patient)).collect();
    for (number, _) in &peers {
        for _ in 0..4 {
            let _ticket = receive(&mut group, *number, pool.take().unwrap());
        }
    }
    // One peer never stops; the others have a few messages each.
    let counts = thread::scope(|threads| {
        for (number, mut peer) in peers {
            threads.spawn(move || {
                for _ in 0..if number.index() == 0 { 200 } else { 10 } {
                    send(&mut peer, vec![0_u8; 8]);
                }
            });
        }
        let mut counts = BTreeMap::new();
        for _ in 0..200 + 7 * 10 {
            let completed = group.wait_completed(Some(PATIENCE)).unwrap();
            completed.result.unwrap();
            *counts.entry(completed.channel.index()).or_insert(0) += 1;
            let mut channel = group.channel(completed.channel).unwrap();
            let _ticket = channel.start_receive(completed.buffer.unwrap()).unwrap();
        }
        counts
    });
    let expected = (0..8).map(|number| (number, if number == 0 { 200 } else { 10 }));
    assert!(counts.into_iter().eq(expected));
}

#[test]
#[ignore = "needs an RDMA device"]
fn channel_of_a_group_has_all_operations() {
    let _test = begin!();
    let pd = here();
    let mut group = group_of(&pd, 3);
    let (other, _other_peer) = join(&mut group, impatient);
    let (number, mut peer) = join(&mut group, impatient);
    let source = pd.reg_shared(pattern(1, 100), AccessFlags::REMOTE).unwrap();
    let mut into = pd.reg_mr(vec![0_u8; 100]).unwrap();
    let mut member = group.channel(number).unwrap();
    member
        .read(into.scatter_element(..).unwrap(), source.remote())
        .unwrap();
    assert!(into[..] == pattern(1, 100));
    source.write(0, &[0; 100]).unwrap();
    member
        .write(into.gather_element(..).unwrap(), source.remote())
        .unwrap();
    // On iWARP, a write completes before its bytes are there. A read behind it is served after that.
    into.fill(0);
    member
        .read(into.scatter_element(..).unwrap(), source.remote())
        .unwrap();
    assert!(into[..] == pattern(1, 100) && bytes(&source) == into[..]);
    let ended = member.scope(|scope| {
        let receive = scope.post_receive(into.scatter_element(..)?)?;
        send(&mut peer, pattern(2, 100));
        Ok::<_, Error>(receive.spin_poll()?)
    });
    assert_eq!(ended.unwrap().byte_len(), 100);
    assert!(into[..] == pattern(2, 100));
    // It has queues of its own: room for four, whatever the others do.
    let ended = member.scope(|scope| {
        for chunk in into.scatter_element(..).unwrap().chunks_mut(25).unwrap() {
            drop(scope.post_receive(chunk).unwrap());
        }
        let fifth = scope.post_receive(Vec::<ScatterElement<'_>>::new());
        assert!(fifth.unwrap_err().is_backpressure());
        Err::<(), _>(())
    });
    assert!(ended.is_err());
    assert_eq!(member.down_reason(), Some(DownReason::Abandoned));
    // A channel that is down affects no other.
    assert!(!group.channel(other).unwrap().is_down());
    let wait = bounded(|| group.wait_completed(Some(SOON)));
    assert!(wait.is_none());
}

#[test]
#[ignore = "needs an RDMA device"]
fn failed_peer_takes_down_its_own_channel_only() {
    let _test = begin!(iwarp lacks "a failed completion of what the peer rejects");
    let pd = here();
    let mut group = group_of(&pd, 2);
    let (first, first_peer) = join(&mut group, impatient);
    let (second, mut second_peer) = join(&mut group, impatient);
    let target = pd.reg_shared(vec![0_u8; 8], AccessFlags::REMOTE).unwrap();
    let remote = target.remote();
    let wrong = RemoteMemoryRegion::new(remote.addr(), 8, remote.rkey() ^ 1);
    let ticket = receive(&mut group, second, pd.reg_mr(vec![0_u8; 8]).unwrap());
    let from = pd.reg_mr(vec![1_u8; 8]).unwrap();
    let mut channel = group.channel(first).unwrap();
    let error = channel
        .write(from.gather_element(..).unwrap(), wrong.unwrap())
        .unwrap_err();
    let failed = matches!(
        error,
        Error::Transport(TransportError::Work {
            queue: Queue::Send,
            ..
        })
    );
    assert!(failed, "{error:?}");
    assert!(channel.is_down());
    send(&mut second_peer, vec![2; 8]);
    let mut channel = group.channel(second).unwrap();
    let done = channel.wait(ticket, Some(PATIENCE)).unwrap().unwrap();
    assert_eq!(done.channel, second);
    done.result.unwrap();
    drop(first_peer);
}

#[test]
#[ignore = "needs an RDMA device"]
fn deadline_in_a_group_aborts_one_channel() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    let pd = here();
    let mut group = group_of(&pd, 2);
    let (first, _silent) = join(&mut group, stubborn);
    let (second, mut peer) = join(&mut group, impatient);
    let ticket = receive(&mut group, second, pd.reg_mr(vec![0_u8; 8]).unwrap());
    let from = pd.reg_mr(vec![1_u8; 8]).unwrap();
    let mut channel = group.channel(first).unwrap();
    let sent =
        bounded(|| channel.run_timeout(Outgoing::send(from.gather_element(..).unwrap()), SOON));
    assert!(sent.is_err());
    let reason = DownReason::TimedOut {
        queue: Queue::Send,
        after: SOON,
    };
    assert_eq!(channel.down_reason(), Some(reason));
    send(&mut peer, vec![2; 8]);
    let done = wait(&mut group, second, ticket);
    done.result.unwrap();
}

fn assert_unknown(group: &mut ChannelGroup, id: ChannelId) {
    let named = group.channel(id).unwrap_err();
    assert!(matches!(named, Error::UnknownChannel(of) if of == id));
    let removed = group.remove(id).unwrap_err();
    assert!(matches!(removed, Error::UnknownChannel(of) if of == id));
}

#[test]
#[ignore = "needs an RDMA device"]
fn removed_channels_are_replaced_by_new_ones() {
    let _test = begin!();
    let pd = here();
    let mut group = group_of(&pd, 4);
    let pool = BufferPool::new(&pd, 16, 64).unwrap();
    assert!(group.is_empty());
    let mut other_group = group_of(&pd, 1);
    let (stranger, _stranger_peer) = join(&mut other_group, impatient);
    assert_unknown(&mut group, stranger);
    // No result of it is left, and another channel gets its place.
    let (gone, _) = join(&mut group, impatient);
    group.remove(gone).unwrap();
    let mut peers: Vec<_> = (0..4).map(|_| join(&mut group, impatient)).collect();
    assert_eq!(peers[0].0.index(), gone.index());
    assert_unknown(&mut group, gone);
    for round in 0..30 {
        let (number, peer) = peers.remove(round % 4);
        let mut channel = group.channel(number).unwrap();
        let tickets: Vec<_> = (0..4)
            .map(|_| channel.start_receive(pool.take().unwrap()).unwrap())
            .collect();
        group.remove(number).unwrap();
        assert_eq!(group.len(), 3);
        // Operations in flight have ended, and nothing new begins.
        let mut channel = group.channel(number).unwrap();
        assert_eq!(channel.down_reason(), Some(DownReason::Closed));
        let rejected = channel.start_receive(pool.take().unwrap()).unwrap_err();
        assert_eq!(*rejected.error(), RejectReason::Down(DownReason::Closed));
        drop(rejected);
        if round % 2 == 0 {
            for ticket in tickets {
                let ended = group
                    .channel(number)
                    .unwrap()
                    .poll(ticket)
                    .unwrap()
                    .unwrap();
                assert_eq!(
                    ended.result.unwrap_err(),
                    TransportError::Aborted(DownReason::Closed)
                );
            }
        } else {
            // Its place is not reused before its results are taken: the new channel has another.
            let (other, other_peer) = join(&mut group, impatient);
            assert_ne!(other.index(), number.index());
            for _ in tickets {
                assert_eq!(group.next_completed().unwrap().channel, number);
            }
            group.remove(other).unwrap();
            drop(other_peer);
        }
        assert_eq!(pool.available(), 64);
        drop(peer);
        let (again, mut peer) = join(&mut group, impatient);
        let ticket = receive(&mut group, again, pool.take().unwrap());
        send(&mut peer, pattern(round, 16));
        let done = wait(&mut group, again, ticket);
        assert!(done.buffer.unwrap()[..] == pattern(round, 16));
        peers.push((again, peer));
        assert_eq!(group.len(), 4);
    }
    // Thirty channels were removed, and indices stay small.
    let mut places = peers.iter().map(|(number, _)| number.index());
    assert!(places.all(|place| place < 6), "{peers:?}");
    assert_unknown(&mut group, gone);
    assert_unknown(&mut group, stranger);
    assert_eq!(group.len(), 4);
}

#[test]
#[ignore = "needs an RDMA device"]
fn ticket_of_another_group_is_stale() {
    let _test = begin!();
    let pd = here();
    let (mut group, mut other) = (group_of(&pd, 2), group_of(&pd, 2));
    let (number, _peer) = join(&mut group, impatient);
    let (theirs, _their_peer) = join(&mut other, impatient);
    let ticket = receive(&mut group, number, pd.reg_mr(vec![0_u8; 8]).unwrap());
    // The ticket of the other group has the same slot.
    assert_eq!(theirs.index(), number.index());
    let own = pd.reg_mr(vec![0_u8; 8]).unwrap();
    let own = receive(&mut other, theirs, own);
    assert_ne!(own, ticket);
    let stale = other.channel(theirs).unwrap().poll(ticket);
    assert!(matches!(stale, Err(Error::StaleTicket)));
    assert!(
        group
            .channel(number)
            .unwrap()
            .poll(ticket)
            .unwrap()
            .is_none()
    );
}

#[test]
#[ignore = "needs an RDMA device"]
fn poll_success_takes_successes_only() {
    let _test = begin!(iwarp lacks "receives without an element");
    let pd = here();
    let (mut group, mut other) = (group_of(&pd, 2), group_of(&pd, 2));
    let (number, mut peer) = join(&mut group, impatient);
    let start = |group: &mut ChannelGroup, len| {
        let buffer = pd.reg_mr(vec![0_u8; len]).unwrap();
        group.channel(number).unwrap().start_receive(buffer)
    };
    let [first, second] = [(); 2].map(|()| start(&mut group, 8).unwrap());
    assert!(group.engine_mut().poll_success(first).is_none());
    send(&mut peer, vec![1; 8]);
    send(&mut peer, vec![2; 8]);
    // The second may complete before the first is polled for, or later.
    let mut success = |ticket| {
        let mut found = None;
        assert!(until(PATIENCE, || {
            found = group.engine_mut().poll_success(ticket);
            found.is_some()
        }));
        found.unwrap()
    };
    for (ticket, byte) in [(second, 2), (first, 1)] {
        let (success, buffer) = success(ticket);
        assert_eq!((success.byte_len(), &buffer[..]), (8, &[byte; 8][..]));
    }
    assert!(
        group.engine_mut().poll_success(first).is_none(),
        "it was taken"
    );
    assert!(matches!(group.poll(first), Err(Error::StaleTicket)));

    // A ticket of another group with the same slot; a batch; a failure.
    let theirs = start(&mut group, 8).unwrap();
    let (stranger, _their_peer) = join(&mut other, impatient);
    let own = pd.reg_mr(vec![0_u8; 8]).unwrap();
    let own = receive(&mut other, stranger, own);
    send(&mut peer, vec![3; 8]);
    assert!(other.engine_mut().poll_success(theirs).is_none());
    assert!(other.poll(own).unwrap().is_none(), "it is in flight");
    assert!(until(PATIENCE, || group
        .engine_mut()
        .poll_success(theirs)
        .is_some()));

    let works = vec![OwnedRequest::from(Outgoing::send(OwnedBuffer::empty()))];
    let mut channel = group.channel(number).unwrap();
    let batch = channel.start_batch(works).unwrap();
    let into = peer.start_receive(OwnedBuffer::empty()).unwrap();
    assert!(peer.wait(into, Some(PATIENCE)).unwrap().is_some());
    let mut done = None;
    assert!(until(PATIENCE, || {
        assert!(group.engine_mut().poll_success(batch).is_none());
        done = group.poll(batch).unwrap();
        done.is_some()
    }));
    assert_eq!(done.unwrap().batch.unwrap().len(), 1);

    let failing = start(&mut group, 8).unwrap();
    group.engine_mut().destroy_all(DownReason::Closed);
    assert!(group.engine_mut().poll_success(failing).is_none());
    let failed = group.poll(failing).unwrap().unwrap();
    assert!(failed.result.is_err() && failed.buffer.is_some());
}

#[test]
#[ignore = "needs an RDMA device"]
fn group_sleeps_until_any_channel_has_a_completion() {
    let _test = begin!();
    let pd = here();
    let builder = Channel::builder(&pd).strategy(PollStrategy::Notify { after: 10 });
    let mut group = builder.max_send_wr(4).max_recv_wr(4).group(8).unwrap();
    let mut peers: Vec<_> = (0..8).map(|_| join(&mut group, impatient)).collect();
    for (number, _) in &peers {
        let _ticket = receive(&mut group, *number, pd.reg_mr(vec![0_u8; 8]).unwrap());
    }
    let waits = Sleeper::this_thread();
    thread::scope(|threads| {
        threads.spawn(|| {
            for (number, peer) in &mut peers {
                waits.sleeps();
                send(peer, vec![u8::try_from(number.index()).unwrap(); 8]);
            }
        });
        for number in 0..8_u8 {
            let done = group.wait_completed(Some(PATIENCE)).unwrap();
            assert_eq!(done.buffer.unwrap()[..], [number; 8]);
        }
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn destroying_all_channels_ends_all_operations_at_once() {
    let _test = begin!(iwarp lacks "sends that wait for a receive");
    let pd = here();
    let mut group = group_of(&pd, 3);
    let pool = BufferPool::new(&pd, 64, 6).unwrap();
    let peers: Vec<_> = (0..3).map(|_| join(&mut group, stubborn)).collect();
    for (number, _) in &peers {
        let mut channel = group.channel(*number).unwrap();
        let _ticket = channel.start_receive(pool.take().unwrap()).unwrap();
        let works = vec![Outgoing::send(pool.take().unwrap()).into()];
        let _ticket = channel.start_batch(works).unwrap();
        let qp_num = channel.endpoint().unwrap().qp_num();
        assert_eq!(group.engine_mut().channel_of(qp_num), Some(*number));
    }
    let reason = DownReason::Device(libc::ENODEV);
    bounded(|| group.engine_mut().destroy_all(reason));
    let mut buffers = [0; 3];
    while let Some(ended) = group.next_completed() {
        assert_eq!(ended.result.unwrap_err(), TransportError::Aborted(reason));
        buffers[ended.channel.index()] +=
            usize::from(ended.buffer.is_some()) + ended.batch.map_or(0, |batch| batch.len());
    }
    assert_eq!((buffers, pool.available()), ([2; 3], 6));
    for (number, _) in &peers {
        let channel = group.channel(*number).unwrap();
        assert_eq!(
            (channel.down_reason(), channel.is_idle()),
            (Some(reason), true)
        );
    }
}
