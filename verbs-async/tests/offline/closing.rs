//! Channels that are closed in order.

use verbs_channel::verbs_core::verbs_sys::{IBV_WC_WR_FLUSH_ERR, ibv_wc};

use crate::bench::{Bench, Task, done};
use crate::groups::{Peer, announce, posted};
use crate::library::{assert_all_is_well, with};

#[test]
fn what_is_sent_is_waited_for_and_receives_are_aborted() {
    {
        let bench = Bench::new();
        let peer = Peer::new(&bench);
        let mut receive = Task::new(peer.channel.receive(peer.buffer()));
        let mut sends = [(); 3].map(|()| peer.send());
        let ids = posted();
        let mut close = Task::new(peer.channel.close()).waits();
        done(ids[1..].iter().copied());
        announce(&bench);
        // The third was in line until now.
        assert_eq!((posted().len(), close.was_woken()), (4, 0));
        assert!(close.poll().is_pending());
        done(posted().last().copied());
        announce(&bench);
        assert_eq!(close.was_woken(), 1);
        // Until the card is done with the receive, too.
        assert!(close.poll().is_pending());
        assert!(receive.poll().is_pending());
        let flushed = ibv_wc {
            wr_id: ids[0],
            status: IBV_WC_WR_FLUSH_ERR,
            ..Default::default()
        };
        with(|library| library.done.push_back(flushed));
        announce(&bench);
        assert_eq!((close.was_woken(), receive.was_woken()), (2, 1));
        close.ends().unwrap();
        assert!(sends.iter_mut().all(|send| send.ends().0.is_ok()));
        let (aborted, buffer) = receive.ends();
        assert!(aborted.is_err());
        assert_eq!(buffer.capacity(), 64);
    }
    assert_all_is_well();
}

#[test]
fn what_is_received_alone_is_not_waited_for() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let receive = Task::new(peer.channel.receive(peer.buffer())).waits();
    // It is dropped, as with a timeout around it: that closes the channel at once.
    drop(Task::new(peer.channel.close()).waits());
    assert_eq!(receive.was_woken(), 1);
    let mut receive = receive;
    assert!(receive.ends().0.is_err());
}
