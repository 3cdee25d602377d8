//! Leases of async channels.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use verbs_async::AsyncChannel;
use verbs_async::verbs_channel::lease::LeaseKind;
use verbs_async::verbs_channel::verbs_core::{AccessFlags, RemoteMemoryRegion, SharedRegion};
use verbs_async::verbs_channel::{Outgoing, OwnedBuffer, SharedMemory};
use verbs_harness::begin;

use super::ends::{WAYS, Way, leasing_pair, run};

const LEN: usize = 4096;

fn memory(channel: &AsyncChannel) -> SharedMemory {
    SharedMemory::register([channel.pd()], vec![0_u8; LEN], AccessFlags::MW_BIND).unwrap()
}

async fn write(peer: &AsyncChannel, remote: RemoteMemoryRegion) -> bool {
    let buffer = peer.pd().reg_mr(vec![7_u8; LEN]).unwrap();
    peer.write(buffer, remote).result().await.is_ok()
}

#[test]
#[ignore = "needs an RDMA device"]
fn lease_opens_memory_until_it_is_revoked_given_back_or_dropped() {
    let _test = begin!();
    for way in WAYS {
        for end in ["revoked", "given back", "dropped"] {
            run(way, async move {
                let (_group, owner, peer) = leasing_pair(way);
                let memory = memory(&owner);
                for _ in 0..3 {
                    let slice = memory.slice(..).unwrap();
                    let lease = owner.lease(slice, AccessFlags::REMOTE_WRITE).await.unwrap();
                    let remote = lease.remote();
                    assert!(write(&peer, remote).await);
                    match end {
                        "given back" if lease.kind() == LeaseKind::Window => {
                            let receive = owner.receive(OwnedBuffer::empty());
                            let empty = Outgoing::send(OwnedBuffer::empty());
                            let sent = peer.run(empty.invalidate(remote.rkey()));
                            sent.result().await.unwrap();
                            let received = receive.result().await.unwrap();
                            drop(lease.given_back(owner.id(), &received).unwrap());
                        }
                        "revoked" => drop(owner.revoke(lease).await.unwrap()),
                        _ => drop(lease),
                    }
                    let region: &SharedRegion<Vec<u8>> = memory.region().unwrap();
                    region.write(0, &[0; LEN]).unwrap();
                }
                let slice = memory.slice(..).unwrap();
                let lease = owner.lease(slice, AccessFlags::REMOTE_WRITE).await.unwrap();
                let remote = lease.remote();
                drop(owner.revoke(lease).await.unwrap());
                assert!(!write(&peer, remote).await);
                let region: &SharedRegion<Vec<u8>> = memory.region().unwrap();
                let mut bytes = [1; LEN];
                region.read(0, &mut bytes).unwrap();
                assert!(bytes == [0; LEN]);
            });
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn dropped_future_of_a_lease_leaves_the_channel_up_and_its_memory_free() {
    let _test = begin!();
    run(Way::Tokio, async {
        let (_group, owner, peer) = leasing_pair(Way::Tokio);
        let memory = memory(&owner);
        for polls in 0..4 {
            let slice = memory.slice(..).unwrap();
            let granted = owner.lease(slice, AccessFlags::REMOTE_WRITE);
            poll_once(granted, polls > 1).await;
            let slice = memory.slice(..).unwrap();
            let lease = owner.lease(slice, AccessFlags::REMOTE_WRITE).await.unwrap();
            let remote = lease.remote();
            assert!(write(&peer, remote).await);
            poll_once(owner.revoke(lease), polls % 2 == 1).await;
        }
        // All that was abandoned has completed before this send.
        let receive = peer.receive(OwnedBuffer::empty());
        owner.send(OwnedBuffer::empty()).result().await.unwrap();
        receive.result().await.unwrap();
        assert!(!owner.is_down());
        drop(owner);
        drop(peer);
        let end = memory.deregister();
        end.await.unwrap();
    });
}

/// Polls a future, if it is to be polled, and drops it.
async fn poll_once<T>(future: impl Future<Output = T>, is_polled: bool) {
    let mut future = pin!(future);
    if is_polled {
        poll_fn(|cx| {
            let _ended = future.as_mut().poll(cx);
            Poll::Ready(())
        })
        .await;
    }
}
