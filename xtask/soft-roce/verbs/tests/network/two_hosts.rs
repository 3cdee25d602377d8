//! Faults that channels between two hosts see.

use std::time::{Duration, Instant};

use soft_verbs::Fabric;

use crate::ends::{Result, channels, hosts};

#[test]
fn a_link_that_is_cut_ends_a_send_after_its_retries_in_no_time() -> Result {
    let fabric = Fabric::seeded(7);
    let [a, b] = hosts(&fabric);
    let start = Instant::now();
    a.enter(|| -> Result {
        let [mut left, _right] = channels(&a, &b)?;
        let hello = left.pd().reg_mr(b"hello".to_vec())?;
        fabric.link(&a, &b).cut();
        let begun = Instant::now();
        let error = left.send(hello.gather_element(..)?).unwrap_err();
        println!("{error}: {:?}", begun.elapsed());
        assert!(begun.elapsed() > Duration::from_millis(200));
        Ok(())
    })?;
    assert!(start.elapsed() < Duration::from_secs(5));
    Ok(())
}
