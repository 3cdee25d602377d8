//! A channel's queue pair is in a thread domain of its own, if the device has any.

use fake_libibverbs::{assert_all_is_well, posted, with};
use verbs_channel::verbs_core::ProtectionDomain;
use verbs_channel::verbs_core::completion::CompletionChannel;
use verbs_channel::verbs_core::error::ErrorKind;
use verbs_channel::{BufferPool, Channel, CreateChannel as _, Error};

use crate::fake_device::{called, calls, connected, forget_the_past, group, pd, refuse, succeeds};

/// A protection domain of a device with thread domains.
fn pd_with_thread_domains() -> ProtectionDomain {
    with(|library| library.thread_domains = true);
    let pd = pd();
    forget_the_past();
    pd
}

/// The calls that make and end these objects.
fn of_objects() -> Vec<&'static str> {
    let of_these = ["_td", "_domain", "_pd", "_qp"];
    let mut calls = calls();
    calls.retain(|verb| {
        let is_one = of_these.iter().any(|end| verb.ends_with(end));
        is_one && !matches!(*verb, "ibv_modify_qp" | "ibv_query_qp")
    });
    calls
}

fn works(channel: &mut Channel, pd: &ProtectionDomain) {
    let pool = BufferPool::new(pd, 64, 1).unwrap();
    let ticket = channel.start_send(pool.take().unwrap()).unwrap();
    succeeds(posted()[0]);
    let completed = channel.poll(ticket).unwrap().unwrap();
    completed.result.unwrap();
}

#[test]
fn a_channel_has_a_thread_domain_to_itself() {
    let pd = pd_with_thread_domains();
    let prepared = pd.create_channel().build().unwrap();
    let made = ["ibv_alloc_td", "ibv_alloc_parent_domain", "ibv_create_qp"];
    assert_eq!(of_objects(), made);
    let mut channel = connected(prepared);
    assert_eq!(
        channel.pd().as_ptr(),
        pd.as_ptr(),
        "regions are registered in the plain domain"
    );
    works(&mut channel, &pd);

    let again = channel.reset().unwrap();
    let ended = ["ibv_destroy_qp", "ibv_dealloc_pd", "ibv_dealloc_td"];
    assert_eq!(of_objects(), [ended, made].concat());
    forget_the_past();
    drop((channel, again));
    assert_eq!(of_objects(), ended);
    drop(pd);
    assert_all_is_well();
}

#[test]
fn a_prepared_receive_may_be_of_the_plain_domain() {
    let pd = pd_with_thread_domains();
    let pool = BufferPool::new(&pd, 64, 1).unwrap();
    let mut prepared = pd.create_channel().build().unwrap();
    prepared.start_receive(pool.take().unwrap()).unwrap();
    let mut channel = connected(prepared);
    assert_eq!(channel.prepared_receives().len(), 1);
    drop((channel, pool, pd));
    assert_all_is_well();
}

#[test]
fn a_channel_without_a_thread_domain_works_as_well() {
    for (refused, made, ended) in [
        (
            "ibv_alloc_td",
            vec!["ibv_create_qp"],
            vec!["ibv_destroy_qp"],
        ),
        (
            "ibv_alloc_parent_domain",
            vec!["ibv_dealloc_td", "ibv_create_qp"],
            vec!["ibv_destroy_qp"],
        ),
        (
            "ibv_create_qp",
            vec!["ibv_dealloc_pd", "ibv_dealloc_td", "ibv_create_qp"],
            vec!["ibv_destroy_qp"],
        ),
    ] {
        let pd = pd_with_thread_domains();
        refuse(refused, 1);
        let prepared = pd.create_channel().build().unwrap();
        let all = of_objects();
        let at = all.iter().position(|verb| *verb == refused).unwrap();
        assert_eq!(all[at + 1..], made, "{refused} is refused");
        let mut channel = connected(prepared);
        works(&mut channel, &pd);
        forget_the_past();
        drop(channel);
        assert_eq!(of_objects(), ended);
    }
    assert_all_is_well();
}

#[test]
fn an_error_that_is_not_of_the_thread_domain_is_returned() {
    let pd = pd_with_thread_domains();
    refuse("ibv_create_qp", 2);
    match pd.create_channel().build() {
        Err(Error::Core(error)) => assert_eq!(error.errno(), Some(5)),
        other => panic!("{other:?}"),
    }
    let asked = pd.create_channel().max_send_wr(1 << 30).build();
    match asked {
        Err(Error::Core(error)) => assert_eq!(error.kind(), ErrorKind::Limit),
        Err(Error::Capacity { .. }) => {}
        other => panic!("{other:?}"),
    }
    drop(pd);
    assert_all_is_well();
}

#[test]
fn channels_that_share_an_engine_have_no_thread_domain() {
    let pd = pd_with_thread_domains();
    let group = group(&pd, 2).0;
    let events = CompletionChannel::create(pd.context()).unwrap();
    let (engine, factory) = Channel::builder(&pd).config().engine(1, &events).unwrap();
    let prepared = factory.prepare().unwrap();
    assert!(called("ibv_create_qp") && !called("ibv_alloc_td"));
    drop((group, engine, prepared, factory, events, pd));
    assert_all_is_well();
}
