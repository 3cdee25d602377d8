//! Results of operations without their buffers.

use fake_libibverbs::with;
use verbs_async::verbs_channel::BufferPool;
use verbs_async::verbs_channel::verbs_core::verbs_sys::{IBV_WC_REM_ACCESS_ERR, ibv_wc};

use crate::bench::{Bench, Task, announce, done};
use crate::groups::{Peer, posted};

#[test]
fn result_of_an_operation_drops_the_buffer_and_can_be_awaited_again() {
    let bench = Bench::new();
    let peer = Peer::new(&bench);
    let pool = BufferPool::new(peer.channel.pd(), 64, 1).unwrap();
    let operation = peer.channel.send(pool.take().unwrap());
    let mut result = Task::new(operation.result()).waits();
    // As after a timeout around `&mut result`.
    assert!(result.poll().is_pending());
    assert_eq!(pool.available(), 0);
    done(posted());
    announce(&bench);
    assert_eq!(result.was_woken(), 1);
    assert!(result.ends().is_ok());
    assert_eq!(pool.available(), 1);
    // Dropped: the operation is abandoned, and its block comes back when it has completed.
    drop(Task::new(peer.channel.send(pool.take().unwrap()).result()).waits());
    assert_eq!(pool.available(), 0);
    done(posted().last().copied());
    announce(&bench);
    assert_eq!(pool.available(), 1);
    // A batch, which fails.
    let mut batch = Task::new(peer.channel.batch(peer.sends()).result()).waits();
    let failed = ibv_wc {
        wr_id: *posted().last().unwrap(),
        status: IBV_WC_REM_ACCESS_ERR,
        ..Default::default()
    };
    with(|library| library.done.push_back(failed));
    announce(&bench);
    assert!(batch.ends().is_err());
}
