//! The lesson on tests: two hosts, a link that is cut, and a seed, on a machine that has no RDMA device.
#![cfg(test)]

use std::error::Error;

use soft_verbs::Fabric;
use verbs_channel::Channel;
use verbs_channel::verbs_core::Context;

#[test]
fn a_link_that_is_cut_is_an_error() -> Result<(), Box<dyn Error>> {
    let fabric = Fabric::seeded(7);
    let [a, b] = ["a", "b"].map(|name| fabric.host(name));
    let channel = || Channel::builder(&Context::first_active()?.alloc_pd()?).build();
    let (left, right) = (a.enter(channel)?, b.enter(channel)?);
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (mut left, _right) = (left.handshake(&to_right)?, right.handshake(&to_left)?);
    let hello = left.pd().reg_mr(b"hello".to_vec())?;
    let message = hello.gather_element(..)?;
    fabric.link(&a, &b).cut();
    let error = a.enter(|| left.send(message)).unwrap_err();
    // It prints its causes, too.
    assert!(format!("{error:?}").contains("IBV_WC_RETRY_EXC_ERR"));
    Ok(())
}
