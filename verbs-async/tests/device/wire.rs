//! Faults of the wire while tasks wait.

use std::time::Instant;

use futures_util::future::{join, join_all};
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use verbs_async::verbs_channel::verbs_core::{AckTimeout, Device, MaxAckRetries};
use verbs_async::verbs_channel::{BufferPool, Channel};
use verbs_async::{AsyncChannel, AsyncGroup};
use verbs_harness::wire::Disturbed;
use verbs_harness::{PATIENCE, begin, device_name, faults, peer_name, wire};

use super::ends::{Way, block, connect, events, run, within};

/// Both ends, across the wire; the devices retry after `timeout`, six times.
fn across(way: Way, timeout: AckTimeout) -> [(AsyncGroup, AsyncChannel); 2] {
    let [here, there] = [device_name(), peer_name()].map(|device| {
        let context = Device::by_name(&device).unwrap().open().unwrap();
        let builder = Channel::builder(&context.alloc_pd().unwrap()).ack_timeout(timeout);
        AsyncGroup::new(builder, 1, &events(way, &context)).unwrap()
    });
    let (left, right) = connect(&here, &there);
    [(here, left), (there, right)]
}

/// Sends a message.
async fn works(left: &AsyncChannel, right: &AsyncChannel) {
    let [own, theirs] = [left, right].map(|side| BufferPool::new(side.pd(), 8, 1).unwrap());
    let receive = right.receive(block(&theirs, &[0; 8]));
    left.send(block(&own, &[1; 8])).await.0.unwrap();
    let (received, bytes) = within(PATIENCE, receive).await.expect("it waits on");
    received.unwrap();
    assert_eq!(bytes[..], [1; 8]);
}

/// Sends a message, then makes both ends a stream and writes to the left one, while `breaks` is done to the
/// wire, of which it is given both interfaces. Each ends with an error, which is recorded.
fn ends_both(fault: &'static str, breaks: fn(&[String; 2]) -> wire::Broken) {
    let test = begin!(alone, iwarp lacks "retries");
    let Some(netdevs) = wire::netdevs(&test) else {
        return;
    };
    // 16 ms, seven times.
    let timeout = AckTimeout::new(12).unwrap();
    let retry_cnt = MaxAckRetries::default().get();
    let retries = move |start| faults::retries(start, timeout.get(), retry_cnt);
    run(Way::Thread, async move {
        let [(group, left), (_there, right)] = across(Way::Thread, timeout);
        works(&left, &right).await;
        let pool = BufferPool::new(group.pd(), 8, 4).unwrap();
        let (broken, start) = (breaks(&netdevs), Instant::now());
        let sending = within(PATIENCE, left.send(block(&pool, &[1; 8]))).await;
        let error = sending.expect("it waits on").0.unwrap_err();
        faults::error(fault, "async", &error, retries(start));
        drop(broken);
        let [(_group, left), (_there, right)] = across(Way::Thread, timeout);
        let (mut left, _right) = (left.into_stream().unwrap(), right.into_stream().unwrap());
        left.write_all(b"works").await.unwrap();
        left.flush().await.unwrap();
        let (_broken, start) = (breaks(&netdevs), Instant::now());
        let writing = async {
            left.write_all(b"in vain").await?;
            left.flush().await
        };
        let written = within(PATIENCE, writing).await.expect("it waits on");
        faults::error(fault, "stream", &written.unwrap_err(), retries(start));
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn total_loss_ends_sends_and_streams() {
    ends_both(faults::ALL_PACKETS, |[here, _]| {
        wire::netem(here, &["loss", "100%"])
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn link_down_ends_sends_and_streams() {
    ends_both(faults::LINK, |[here, _]| wire::down(here));
}

#[test]
#[ignore = "needs an RDMA device"]
fn peers_link_down_ends_sends_and_streams() {
    ends_both(faults::PEERS_LINK, |[_, there]| wire::down(there));
}

#[test]
#[ignore = "needs an RDMA device"]
fn removed_address_ends_sends_and_streams() {
    ends_both(faults::ADDRESS, |[here, _]| wire::without_address(here));
}

#[test]
#[ignore = "needs an RDMA device"]
fn removed_address_of_the_peer_ends_sends_and_streams() {
    ends_both(faults::PEERS_ADDRESS, |[_, there]| {
        wire::without_address(there)
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn streams_survive_loss_duplication_and_reordering() {
    let test = begin!(alone, iwarp lacks "retries");
    let Some(netdevs) = wire::netdevs(&test) else {
        return;
    };
    let recorded = |layer, start| {
        let within = faults::retries_by_default(start);
        faults::seen(faults::SOME_PACKETS, layer, faults::SLOWER, within);
    };
    run(Way::Thread, async move {
        for disturbance in wire::DISTURBANCES {
            let [(group, left), (_there, right)] =
                across(Way::Thread, AckTimeout::new(14).unwrap());
            let disturbed = Disturbed::new(&netdevs, disturbance);
            let pool = BufferPool::new(group.pd(), 5000, 8).unwrap();
            let theirs = BufferPool::new(right.pd(), 5000, 8).unwrap();
            let end = Instant::now() + PATIENCE;
            let mut both = [(&left, &pool), (&right, &theirs)];
            while !disturbed.was_seen() {
                assert!(Instant::now() < end, "{disturbance:?}: not a packet");
                both.reverse();
                let [(from, pool), (to, theirs)] = both;
                let receives: Vec<_> = (0..8)
                    .map(|_| to.receive(block(theirs, &[0; 5000])))
                    .collect();
                let start = Instant::now();
                let sends = (0..8).map(|at| from.send(block(pool, &[at; 5000])));
                for (sent, _) in join_all(sends).await {
                    sent.unwrap();
                }
                for (at, (received, bytes)) in (0..).zip(join_all(receives).await) {
                    received.unwrap();
                    assert_eq!(bytes[..], [at; 5000]);
                }
                recorded("async", start);
            }
            drop(disturbed);

            let mut both = [left, right].map(|channel| channel.into_stream().unwrap());
            let disturbed = Disturbed::new(&netdevs, disturbance);
            let bytes: Vec<u8> = (0..20_000_u16).flat_map(u16::to_be_bytes).collect();
            while !disturbed.was_seen() {
                assert!(Instant::now() < end, "{disturbance:?}: not a packet");
                both.reverse();
                let [from, to] = &mut both;
                let (mut read, start) = (vec![0; bytes.len()], Instant::now());
                let writing = async {
                    from.write_all(&bytes).await?;
                    from.flush().await
                };
                let (written, reading) = join(writing, to.read_exact(&mut read)).await;
                written.and(reading).unwrap();
                assert!(read == bytes);
                recorded("stream", start);
            }
        }
    });
}
