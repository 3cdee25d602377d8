//! The connection manager on networks that lose its messages.

use std::time::Duration;

use soft_verbs::{Fabric, Host};
use verbs_core::rdmacm::{Connected, Connector, Listener, Pending};
use verbs_core::{CompletionQueue, PreparedQueuePair, QueuePair};

use crate::ends::{Result, domain, hosts};

/// Longer than all repeats of a message.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(200));

fn prepared(host: &Host) -> Result<PreparedQueuePair> {
    host.enter(|| {
        let pd = domain();
        let cq = CompletionQueue::create(pd.context(), 4)?;
        Ok(QueuePair::builder(&pd, &cq, &cq).build()?)
    })
}

/// Both ends, and how long that took.
fn connected(fabric: &Fabric, a: &Host, b: &Host) -> Result<[Connected; 2]> {
    let mut listener = b.enter(|| Listener::bind(([10, 0, 0, 2], 7471).into(), 1))?;
    let [qa, qb] = [prepared(a)?, prepared(b)?];
    let mut asks: Pending<Connected> = a.enter(|| -> Result<_> {
        let to = ([10, 0, 0, 2], 7471).into();
        let resolved = Connector::new()?.resolve_addr(to, Duration::from_secs(1))?;
        let route = resolved
            .wait(PATIENCE)?
            .resolve_route(Duration::from_secs(1))?;
        Ok(route.wait(PATIENCE)?.connect(qa, b"please")?)
    })?;
    let request = b
        .enter(|| listener.request(PATIENCE))?
        .expect("it comes again");
    assert_eq!(request.private_data().message(), Some(&b"please"[..]));
    let mut answers = b.enter(|| request.accept(qb, b"gladly"))?;
    let mut ends = [None, None];
    while ends.iter().any(Option::is_none) {
        for (end, step) in ends.iter_mut().zip([&mut asks, &mut answers]) {
            if end.is_none() {
                *end = step.poll()?;
            }
        }
        fabric.run_for(Duration::from_millis(100));
        assert!(
            fabric.now() < Duration::from_secs(200),
            "they do not connect"
        );
    }
    Ok(ends.map(|end| end.expect("both are there")))
}

#[test]
fn messages_that_are_lost_are_sent_again() -> Result {
    let mut repeated = 0;
    for seed in 0..40 {
        let fabric = Fabric::seeded(seed);
        let [a, b] = hosts(&fabric);
        fabric
            .link(&a, &b)
            .loss(0.3)
            .duplication(0.2)
            .reordering(0.2);
        let [mut asked, mut answered] = connected(&fabric, &a, &b)?;
        repeated += u32::from(fabric.now() > Duration::from_secs(4));
        a.enter(|| asked.connection.disconnect())?;
        assert!(b.enter(|| answered.connection.wait_disconnected(PATIENCE))?);
        b.enter(|| answered.connection.disconnect())?;
        assert!(a.enter(|| asked.connection.wait_disconnected(PATIENCE))?);
    }
    assert!(repeated > 10, "{repeated}");
    Ok(())
}

#[test]
fn peer_that_no_message_reaches_is_given_up() -> Result {
    let fabric = Fabric::seeded(1);
    let [a, b] = hosts(&fabric);
    let _listener = b.enter(|| Listener::bind(([10, 0, 0, 2], 7471).into(), 1))?;
    fabric.link(&a, &b).cut();
    let error = connected_to_nobody(&a)?;
    assert!(
        error.contains("unreachable: Connection timed out"),
        "{error}"
    );
    // 16 times 4.3 s.
    assert_eq!(fabric.now().as_secs(), 68);
    Ok(())
}

fn connected_to_nobody(a: &Host) -> Result<String> {
    let qa = prepared(a)?;
    a.enter(|| {
        let to = ([10, 0, 0, 2], 7471).into();
        let resolved = Connector::new()?.resolve_addr(to, Duration::from_secs(1))?;
        let route = resolved
            .wait(PATIENCE)?
            .resolve_route(Duration::from_secs(1))?;
        let asks = route.wait(PATIENCE)?.connect(qa, b"")?;
        Ok(asks.wait(PATIENCE).unwrap_err().to_string())
    })
}
