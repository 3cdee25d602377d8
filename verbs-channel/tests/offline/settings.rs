//! The settings of channels.

use fake_libibverbs::assert_all_is_well;
use verbs_channel::{Channel, ChannelBuilder, OwnedBuffer};

use crate::fake_device::{connected, pd, shut_down};

#[test]
fn one_builder_makes_any_number_of_channels_and_groups() {
    struct Server {
        channels: ChannelBuilder,
    }

    let builder = Channel::builder(&pd()).max_send_wr(2).port_num(1);
    let server = Server {
        channels: builder.gid_index(None),
    };
    for builder in [server.channels.clone(), server.channels] {
        let mut channel = connected(builder.build().unwrap());
        let mut start = || channel.start_send(OwnedBuffer::empty());
        let _tickets = [start().unwrap(), start().unwrap()];
        assert!(
            start().unwrap_err().error().is_backpressure(),
            "two at once"
        );
        shut_down(&mut channel);
        drop(channel);
        let mut group = builder.group(2).unwrap();
        for _ in 0..2 {
            let prepared = group.prepare().unwrap();
            let endpoint = prepared.endpoint();
            group.join(prepared.handshake(&endpoint).unwrap()).unwrap();
        }
        assert_eq!(group.len(), 2);
    }
    assert_all_is_well();
}
