//! Datagram endpoints that find each other by `rdma_cm`, on every notifier.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, join, select};
use verbs_async::verbs_channel::exchange::ExchangeError;
use verbs_async::verbs_channel::verbs_core::path::QKey;
use verbs_async::verbs_channel::verbs_core::rdmacm::{DatagramListener, Message};
use verbs_async::verbs_channel::verbs_core::{Device, ProtectionDomain};
use verbs_async::verbs_channel::{self, Datagrams, DownReason};
use verbs_async::{AsyncDatagrams, CmDatagramListener, Error};
use verbs_harness::{begin, peer_name};

use super::by_manager::pd_to;
use super::ends::{PATIENCE, WAYS, Way, buffer, events, run};

/// The time that has to pass.
const SOON: Duration = Duration::from_millis(100);

fn endpoint(way: Way, pd: &ProtectionDomain) -> AsyncDatagrams {
    let builder = Datagrams::builder(pd).qkey(QKey::RDMA_UDP);
    AsyncDatagrams::create(builder, &events(way, pd.context())).unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn endpoints_find_each_other_or_why_not() {
    let test = begin!(iwarp lacks "datagrams");
    let there = Device::by_name(&peer_name()).unwrap().open().unwrap();
    let Some(ip) = verbs_harness::ip(&there) else {
        return test.skip("the device has no IPv4 address");
    };
    for way in WAYS {
        let listener = DatagramListener::bind((ip, 0).into(), 16).unwrap();
        let addr: SocketAddr = listener.local_addr().unwrap();
        let (pd, here) = (there.alloc_pd().unwrap(), pd_to(addr));
        run(way, async move {
            let (serving, asking) = (endpoint(way, &pd), endpoint(way, &here));
            let mut listener =
                CmDatagramListener::new(listener, &events(way, pd.context())).unwrap();
            assert_eq!(listener.local_addr(), Some(addr));
            let answering = async {
                let request = listener.request().await.unwrap();
                assert_eq!(request.private_data().message(), Some(&b"please"[..]));
                assert!(request.peer_addr().is_some());
                serving
                    .answer_cm(request, Message::raw(b"yes"))
                    .await
                    .unwrap();
            };
            let (found, ()) = join(asking.find_cm(addr, PATIENCE, b"please"), answering).await;
            let (service, answer) = found.unwrap();
            assert!(answer.as_bytes().starts_with(b"yes\0"));
            asking
                .send_to(&service, buffer(&here, b"marco"))
                .await
                .unwrap();
            let datagram = serving.receive_from().await.unwrap();
            assert_eq!(
                (&*datagram, datagram.from()),
                (&b"marco"[..], asking.endpoint())
            );

            // It is rejected with a reason, by a listener that has been polled and dropped before.
            drop(select(pin!(listener.request()), pin!(async {})).await);
            let failure = {
                let full = b"VRBC\0\x01\x09\0\x04no room";
                let rejecting = async {
                    let request = listener.request().await.unwrap();
                    request.reject(Message::raw(full)).await.unwrap();
                };
                let (found, ()) = join(asking.find_cm(addr, PATIENCE, b""), rejecting).await;
                found.unwrap_err().to_string()
            };
            assert_eq!(
                failure,
                format!("{addr} refused the connection: \"no room\"")
            );

            // It is never answered, and a search that is dropped leaves the next one undisturbed.
            {
                let searching = pin!(asking.find_cm(addr, PATIENCE, b""));
                let asked = pin!(listener.request());
                let Either::Right((request, _)) = select(searching, asked).await else {
                    panic!("it was found");
                };
                drop(request);
            }
            let failure = asking.find_cm(addr, SOON, b"").await.unwrap_err();
            let Error::Channel(verbs_channel::Error::Exchange(failure)) = failure else {
                panic!("{failure:?}");
            };
            assert!(
                matches!(failure.error, ExchangeError::TimedOut { .. }),
                "{failure:?}"
            );

            // A service that was closed rejects its peers, also the one above, which may have asked.
            serving.close().await.unwrap();
            let rejecting = async {
                loop {
                    let request = listener.request().await.unwrap();
                    let error = serving.answer_cm(request, b"").await.unwrap_err();
                    assert!(
                        matches!(error.down_reason(), Some(DownReason::Closed)),
                        "{error:?}"
                    );
                }
            };
            let searching = asking.find_cm(addr, PATIENCE, b"");
            let Either::Left((found, _)) = select(pin!(searching), pin!(rejecting)).await;
            assert!(matches!(found, Err(Error::Channel(_))), "{found:?}");
            let error = serving.find_cm(addr, PATIENCE, b"").await.unwrap_err();
            assert!(error.down_reason().is_some(), "{error:?}");
        });
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn groups_are_joined_and_left() {
    let test = begin!(iwarp lacks "datagrams");
    let devices = [
        verbs_harness::context(),
        Device::by_name(&peer_name()).unwrap().open().unwrap(),
    ];
    let [Some(from), Some(to)] = devices.each_ref().map(verbs_harness::ip) else {
        return test.skip("the devices have no IPv4 addresses");
    };
    let [here, there] = devices.map(|context| context.alloc_pd().unwrap());
    let group = IpAddr::from([239, 1, 2, 5]);
    for way in WAYS {
        let (here, there) = (here.clone(), there.clone());
        run(way, async move {
            let (sending, member) = (endpoint(way, &here), endpoint(way, &there));
            // Helper threads that are faster than this one can make the join ready at once.
            let joining = pin!(member.join_cm(to, group, PATIENCE));
            let is_ready = matches!(select(joining, pin!(async {})).await, Either::Left(_));
            let all = sending.join_cm(from, group, PATIENCE).await.unwrap();
            // It is still there, and they may have ended it since.
            assert!(member.leave_cm(&all).await.unwrap() || !is_ready);
            assert_eq!(member.join_cm(to, group, PATIENCE).await.unwrap(), all);
            sending.send_to(&all, buffer(&here, b"all")).await.unwrap();
            if verbs_harness::is_soft() && verbs_harness::drops_multicast().is_none() {
                let datagram = member.receive_from().await.unwrap();
                assert_eq!(
                    (&*datagram, datagram.from()),
                    (&b"all"[..], sending.endpoint())
                );
            }
            assert_eq!(member.ended_group_cm().await.unwrap(), None);
            assert!(member.leave_cm(&all).await.unwrap());
            let wrong = sending
                .join_cm([192, 0, 2, 1].into(), group, PATIENCE)
                .await;
            assert!(matches!(wrong, Err(Error::Channel(_))), "{wrong:?}");
            member.join_cm(to, group, PATIENCE).await.unwrap();
            member.close().await.unwrap();
        });
    }
}
