//! The settings of channels.

use std::time::Duration;

use fake_libibverbs::{assert_all_is_well, with};
use verbs_channel::verbs_core::completion::CompletionChannel;
use verbs_channel::verbs_core::memory::SharedElement;
use verbs_channel::verbs_core::{AccessFlags, RemoteMemoryRegion};
use verbs_channel::{
    Channel, ChannelConfig, Datagrams, Error, Incoming, OwnedBuffer, TransportError,
};

use crate::fake_device::{connected, join, pd, region, shut_down};

#[test]
fn one_configuration_makes_any_number_of_channels_and_groups() {
    struct Server {
        channels: ChannelConfig,
    }

    let builder = Channel::builder(&pd()).max_send_wr(2).port_num(1);
    assert_eq!(Channel::builder(&pd()).config().timeout, None, "by default");
    let server = Server {
        channels: builder.gid_index(None).config(),
    };
    for config in [server.channels.clone(), server.channels] {
        let mut channel = connected(config.build().unwrap());
        let mut start = || channel.start_send(OwnedBuffer::empty());
        let _tickets = [start().unwrap(), start().unwrap()];
        assert!(
            start().unwrap_err().error().is_backpressure(),
            "two at once"
        );
        shut_down(&mut channel);
        drop(channel);
        let mut group = config.group(2).unwrap();
        for _ in 0..2 {
            join(&mut group);
        }
        assert_eq!(group.len(), 2);
    }
    assert_all_is_well();
}

#[test]
fn queue_pair_takes_one_element_although_none_was_asked_for() {
    let builder = Channel::builder(&pd()).max_send_sge(0).max_recv_sge(0);
    let mut channel = connected(builder.build().unwrap());
    let _receive = channel.start_receive(region(&channel)).unwrap();
    let _send = channel.start_send(region(&channel)).unwrap();
    drop(channel);
    // The library checks what is posted against what was asked for.
    assert_all_is_well();
}

#[test]
fn completion_queue_that_is_too_long_is_an_error_of_the_settings() {
    let mut config = Channel::builder(&pd()).config();
    // The device has 4096 entries.
    drop(config.group(32).unwrap());
    let error = config.group(33).unwrap_err();
    assert_eq!(
        error.to_string(),
        "33 channels of 64 + 64 requests need 4224 completion queue entries, but the device has 4096: \
         lower max_send_wr or max_recv_wr, or the number of channels"
    );
    let error = config.group(u32::MAX).unwrap_err();
    assert!(error.to_string().contains(" need 549755813760 "), "{error}");
    config.max_recv_wr = 4096;
    let error = config.build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "a channel of 64 + 4096 requests needs 4160 completion queue entries, but the device has 4096: \
         lower max_send_wr or max_recv_wr"
    );
    config.max_recv_wr = 64;
    let error = config.shared_immediates(16).group(64).unwrap_err();
    let words = "64 channels of 64 requests, and 16 shared receives, need 4112";
    assert!(error.to_string().starts_with(words), "{error}");
    drop(config);
    assert_all_is_well();
}

#[test]
fn peer_timeout_below_two_seconds_is_an_error() {
    let builder = Channel::builder(&pd()).peer_timeout(Duration::from_millis(1999));
    let mut config = builder.config();
    let events = CompletionChannel::create(config.pd().context()).unwrap();
    for error in [
        config.build().unwrap_err(),
        config.group(1).unwrap_err(),
        config.engine(1, &events).unwrap_err(),
        config.shared_immediates(16).group(1).unwrap_err(),
    ] {
        assert!(
            matches!(error, Error::PeerTimeout(timeout) if timeout.as_millis() == 1999),
            "{error}"
        );
    }
    for timeout in [Some(Duration::from_secs(2)), Some(Duration::MAX), None] {
        config.peer_timeout = timeout;
        drop(config.build().unwrap());
    }
    drop((config, events));
    assert_all_is_well();
}

#[test]
fn depths_of_a_channel_are_those_of_its_builder() {
    with(|library| {
        // All queue pairs of the device share the latter.
        library.attr.max_qp = 1000;
        library.attr.max_res_rd_atom = 16;
    });
    let pd = pd();
    let connected = |config: ChannelConfig| {
        let prepared = config.build()?;
        let endpoint = prepared.endpoint();
        let depths = (endpoint.max_rd_atomic(), endpoint.max_dest_rd_atomic());
        Ok::<_, Error>((depths, prepared.handshake(&endpoint)?))
    };
    let few = || {
        Channel::builder(&pd)
            .max_rd_atomic(2)
            .max_dest_rd_atomic(3)
            .config()
    };
    let five = [(); 5].map(|()| connected(few()).unwrap());
    assert!(five.iter().all(|(depths, _)| *depths == (2, 3)));
    // One is left: what was set is not changed, and a default is.
    let error = connected(few()).unwrap_err();
    let words = "max_dest_rd_atomic 3 exceeds what is left of this device's max_res_rd_atom 16";
    assert!(format!("{error:?}").contains(words), "{error:?}");
    drop(connected(Channel::builder(&pd).config()).unwrap());
}

#[test]
fn completion_vector_is_that_of_the_settings() {
    let pd = pd();
    // The device has 3.
    drop(Channel::builder(&pd).comp_vector(2).build().unwrap());
    for error in [
        Channel::builder(&pd).comp_vector(3).build().unwrap_err(),
        Channel::builder(&pd).comp_vector(3).group(1).unwrap_err(),
        Datagrams::builder(&pd).comp_vector(3).build().unwrap_err(),
    ] {
        let words = "comp_vector 3 is out of range: 0 to 2 are possible";
        assert_eq!(error.to_string(), words);
    }
    drop(pd);
    assert_all_is_well();
}

#[test]
fn atomic_on_several_elements_names_their_number() {
    let pd = pd();
    let region = pd
        .reg_shared(vec![0_u8; 16], AccessFlags::LOCAL_WRITE)
        .unwrap();
    let remote = RemoteMemoryRegion::new(0x1000, 8, 7).unwrap();
    let element = |at| region.element(at..at + 4).unwrap();
    let text = |elements: Vec<SharedElement<'_>>| {
        let mut channel = connected(Channel::builder(&pd).build().unwrap());
        let add = Incoming::fetch_and_add(elements, remote, 1);
        match channel.run(add) {
            Err(TransportError::Rejected(reason)) => reason.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let words = "2 elements in a request that can have 1: an atomic has one, of 8 bytes; make two requests of another";
    assert_eq!(text(vec![element(0), element(4)]), words);
    let words = "an atomic works on 8 bytes at an address divisible by 8, not on 4 bytes at 0x1000";
    assert_eq!(text(vec![element(0)]), words);
}
