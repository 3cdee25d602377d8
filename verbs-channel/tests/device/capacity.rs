//! Queues filled to the last place, and more requests than fit.

use verbs_channel::error::Queue;
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::{Channel, Error, PreparedChannel, RejectReason};
use verbs_harness::{PATIENCE, begin};

use super::ends::{NOTHING, bytes, filled, given, pair_of, works, zeros};

/// Not a number to which a driver rounds.
const SENDS: usize = 7;
const RECEIVES: usize = 5;

fn small(pd: &ProtectionDomain) -> PreparedChannel {
    Channel::builder(pd)
        .max_send_wr(7)
        .max_recv_wr(5)
        .timeout(PATIENCE)
        .build()
        .unwrap()
}

const ROUNDS: usize = 100;

#[test]
#[ignore = "needs an RDMA device"]
fn all_queues_can_be_filled_completely_many_times() {
    let _test = begin!(iwarp lacks "writes that are in place when they have completed");
    let (mut a, mut b) = pair_of(small);
    let from = filled(&a, 1, SENDS * 8);
    let back = filled(&b, 2, RECEIVES * 8);
    let target = given(&b, vec![0; SENDS * 8]);
    let mut into = zeros(&a, RECEIVES * 8);
    for round in 0..ROUNDS {
        let ended = a.scope(|scope| {
            for chunk in into.scatter_element(..)?.chunks_mut(8)? {
                drop(scope.post_receive(chunk)?);
            }
            assert_eq!(
                scope.post_receive(NOTHING).unwrap_err(),
                RejectReason::Backpressure(Queue::Receive),
                "round {round}"
            );
            for (chunk, at) in from.gather_element(..)?.chunks(8)?.zip(0_u64..) {
                drop(scope.post_write(chunk, target.remote().slice(at * 8..)?)?);
            }
            // All operations complete before this side polls.
            for chunk in back.gather_element(..)?.chunks(8)? {
                b.send(chunk)?;
            }
            Ok::<_, Error>(())
        });
        ended.unwrap();
        assert!(
            into[..] == back[..] && bytes(&target) == from[..],
            "round {round}"
        );
        into.fill(0);
        target.write(0, &[0; SENDS * 8]).unwrap();
    }
    works(&mut a, &mut b, 10);
}
