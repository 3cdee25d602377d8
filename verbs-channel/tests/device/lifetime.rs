//! Lifetimes: drops in every order, with operations in flight.

use verbs_channel::verbs_core::{AccessFlags, CompletionQueue};
use verbs_channel::{BufferPool, Channel};
use verbs_harness::begin;
use verbs_harness::drops::{drop_in, orders};

use super::ends::{bounded, here, meet};

#[test]
#[ignore = "needs an RDMA device"]
fn drops_in_every_order_with_operations_in_flight() {
    let _test =
        begin!(iwarp lacks "connections that end in milliseconds, of which this has thousands");
    for order in orders(6) {
        let pd = here();
        let builder = || Channel::builder(&pd).max_send_wr(4).max_recv_wr(4);
        let (left, right) = (builder().build().unwrap(), builder().build().unwrap());
        let (mut left, right) = meet(left, right);
        let mut group = builder().group(2).unwrap();
        let (member, peer) = meet(group.prepare().unwrap(), builder().build().unwrap());
        let number = group.join(member).unwrap();
        let pool = BufferPool::new(&pd, 64, 8).unwrap();
        let target = pd.reg_shared(vec![0_u8; 64], AccessFlags::REMOTE).unwrap();
        // In flight: a receive and a write on each, of blocks and of regions.
        let block = || pool.take().unwrap();
        let _ticket = left.start_receive(block()).unwrap();
        let _ticket = left.start_write(block(), target.remote()).unwrap();
        let _ticket = left
            .start_receive(pd.reg_mr(vec![0_u8; 64]).unwrap())
            .unwrap();
        let mut member = group.channel(number).unwrap();
        let _ticket = member.start_receive(block()).unwrap();
        let _ticket = member.start_write(block(), target.remote()).unwrap();
        // SAFETY: the queue is only dropped.
        let cq: CompletionQueue = unsafe { left.engine_mut().cq() }.clone();
        bounded(|| {
            drop_in(
                order,
                [
                    Box::new(pd),
                    Box::new(cq),
                    Box::new((left, right, peer)),
                    Box::new(group),
                    Box::new(pool),
                    Box::new(target),
                ],
            );
        });
    }
}
