//! Ends of channels, and of groups, that share their receives: no block is lost.

use fake_libibverbs::{assert_all_is_well, is_in_flight};
use verbs_channel::DownReason;
use verbs_channel::verbs_core::verbs_sys::{IBV_WC_LOC_LEN_ERR, IBV_WC_WR_FLUSH_ERR};

use crate::fake_device::{calls, forget_the_past, posted, refuse};
use crate::shared_receives::{Shared, connected, fails};

#[test]
fn message_longer_than_a_block_ends_its_channel_and_the_block_is_posted_again() {
    let mut shared = Shared::new(2, 2, 2);
    let (id, qp_num) = shared.channels[0];
    fails(posted()[0], qp_num, IBV_WC_LOC_LEN_ERR);
    fails(posted()[1], qp_num, IBV_WC_WR_FLUSH_ERR);
    let end = shared.next();
    assert_eq!(end.channel, id);
    assert!(matches!(end.end(), Some(DownReason::Work { .. })));
    assert!(shared.group.next_message().is_none());
    assert_eq!(posted().len(), 4);
    shared.arrives(2, 1);
    assert_eq!(shared.next().channel, shared.channels[1].0);
}

#[test]
fn queue_pair_is_in_error_and_its_messages_polled_before_it_is_destroyed() {
    let mut shared = Shared::new(4, 4, 1);
    forget_the_past();
    shared.group.remove(shared.channels[0].0).unwrap();
    assert_eq!(calls(), ["ibv_modify_qp", "ibv_destroy_qp"]);
}

#[test]
fn blocks_stay_while_a_prepared_channel_keeps_the_queue() {
    let Shared {
        group, pool, pd, ..
    } = Shared::new(4, 4, 1);
    let (member, _) = connected(&group);
    let factory = group.factory();
    drop(group);
    assert_eq!(pool.available(), 0);
    assert!(posted().iter().all(|wr_id| is_in_flight(*wr_id)));
    drop(factory);
    assert_eq!(pool.available(), 0);
    drop((member, pd));
    assert_eq!(pool.available(), 4);
    drop(pool);
    assert_all_is_well();
}

#[test]
fn closing_queue_pair_keeps_the_blocks() {
    let Shared {
        mut group,
        pool,
        pd,
        channels,
    } = Shared::new(4, 4, 1);
    let engine = group.engine_mut();
    engine.defer_closing();
    engine.destroy(channels[0].0, DownReason::Closed).unwrap();
    let closing = engine.next_closing().unwrap();
    drop((group, pd));
    assert_eq!(pool.available(), 0);
    drop(closing);
    assert_eq!(pool.available(), 4);
}

#[test]
fn blocks_are_leaked_if_the_queue_cannot_be_destroyed() {
    let Shared {
        group, pool, pd, ..
    } = Shared::new(4, 3, 1);
    refuse("ibv_destroy_srq", 1);
    drop((group, pd));
    assert_eq!(pool.available(), 1);
    assert!(posted().iter().all(|wr_id| is_in_flight(*wr_id)));
}
