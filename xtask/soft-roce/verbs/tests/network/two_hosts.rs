//! Faults that channels between two hosts see.

use std::time::{Duration, Instant};

use soft_verbs::Fabric;
use verbs_channel::{Incoming, PollStrategy};

use crate::ends::{Result, channel_config, domain, hosts};

#[test]
fn a_blocking_wait_for_an_event_moves_virtual_time() -> Result {
    let fabric = Fabric::seeded(7);
    let [a, b] = hosts(&fabric);
    a.enter(|| -> Result {
        let build = || {
            let mut config = channel_config(&domain());
            config.strategy = PollStrategy::Notify { after: 0 };
            config.build()
        };
        let (left, right) = (a.enter(build)?, b.enter(build)?);
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (mut left, mut right) = (left.handshake(&to_right)?, right.handshake(&to_left)?);
        fabric.link(&a, &b).delay(Duration::from_secs(1));
        let (mut into, start) = (right.pd().reg_mr(vec![0_u8; 8])?, Instant::now());
        let late =
            right.run(Incoming::receive(into.scatter_element(..)?).timeout(Duration::from_secs(9)));
        assert!(late.is_err());
        assert!(
            (9..12).contains(&start.elapsed().as_secs()),
            "{:?}",
            start.elapsed()
        );
        let hello = left.pd().reg_mr(b"hello".to_vec())?;
        assert!(
            left.send(hello.gather_element(..)?).is_err(),
            "the peer's channel is down"
        );
        Ok(())
    })
}
