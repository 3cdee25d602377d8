//! Faults that a test asks for, as programs see them.

use std::process::Command;
use std::time::Duration;

use soft_verbs::Fabric;
use verbs_channel::verbs_core::device::EventType;
use verbs_channel::verbs_core::{CompletionQueue, Context, Device, PollSlot, QueuePair};

use crate::ends::{Result, channels, hosts};

#[test]
fn events_of_all_kinds_come_to_their_contexts() -> Result {
    let fabric = Fabric::seeded(1);
    let [a, _] = hosts(&fabric);
    a.enter(|| -> Result {
        let context = Context::first_active()?;
        let (pd, cq) = (context.alloc_pd()?, CompletionQueue::create(&context, 4)?);
        let left = QueuePair::builder(&pd, &cq, &cq).build()?;
        let right = QueuePair::builder(&pd, &cq, &cq).build()?;
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (left, _right) = (left.handshake(&to_right)?, right.handshake(&to_left)?);
        a.cq_err().qp_fatal(left.qp_num()).device_fatal();
        for expected in [
            EventType::CQ_ERR,
            EventType::QP_FATAL,
            EventType::DEVICE_FATAL,
        ] {
            let event = context.get_async_event(Some(Duration::from_secs(1)))?;
            assert_eq!(event.map(|event| event.event_type()), Some(expected));
        }
        assert!(
            context
                .get_async_event(Some(Duration::from_secs(1)))?
                .is_none()
        );
        Ok(())
    })
}

#[test]
fn a_dead_host_fails_at_once_and_its_peer_after_its_retries() -> Result {
    let fabric = Fabric::seeded(1);
    let [a, b] = hosts(&fabric);
    a.enter(|| -> Result {
        let [mut left, mut right] = channels(&a, &b)?;
        let hello = left.pd().reg_mr(b"hello".to_vec())?;
        let mut into = right.pd().reg_mr(vec![0_u8; 8])?;
        b.at_step(fabric.steps() + 2).die();
        let start = fabric.now();
        assert!(left.send(hello.gather_element(..)?).is_err());
        let before = fabric.now();
        assert!(before - start < Duration::from_secs(2));
        assert!(right.receive(into.scatter_element(..)?).is_err());
        assert!(fabric.now() - before < Duration::from_secs(2));
        let event = right
            .pd()
            .context()
            .get_async_event(Some(Duration::from_secs(1)))?;
        let event = event.map(|event| event.event_type());
        assert_eq!(event, Some(EventType::DEVICE_FATAL));
        assert!(b.enter(Context::first_active).is_err());
        // A new host of this name has a device.
        assert!(fabric.host("b").enter(Context::first_active).is_ok());
        Ok(())
    })
}

/// Runs in a process of its own, with settings that another test makes.
#[test]
#[ignore = "run by another test"]
fn devices_of_the_default_network() {
    let devices = Device::list().expect("a list");
    println!("{} devices", devices.len());
    let context = devices.first().map(Device::open);
    if let Some(Ok(context)) = context {
        let cq = CompletionQueue::create(&context, 4).expect("a queue");
        assert!(
            cq.poll(&mut [const { PollSlot::new() }; 1])
                .expect("it works")
                .is_empty()
        );
    }
}

#[test]
fn a_setting_that_cannot_be_read_is_named_and_there_is_no_device() {
    let run = |name: &str, value: &str| {
        let own = std::env::current_exe().expect("this program");
        let mut command = Command::new(own);
        let command = command.args(["--ignored", "--exact", "--nocapture"]);
        let output = command.arg("faults::devices_of_the_default_network");
        let output = output.env(name, value).output().expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(output.stdout), text(output.stderr))
    };
    let (out, error) = run("SOFT_VERBS_PROFILE", "mlx9");
    assert!(out.contains("0 devices"), "{out}");
    let line =
        "soft-verbs has no device: SOFT_VERBS_PROFILE is `mlx9`, not `default` or `hostile`\n";
    assert!(error.contains(line), "{error}");
    for (name, value) in [("SOFT_VERBS_PROFILE", "hostile"), ("SOFT_VERBS_SEED", "17")] {
        let (out, error) = run(name, value);
        assert!(out.contains("2 devices"), "{out}{error}");
    }
}
