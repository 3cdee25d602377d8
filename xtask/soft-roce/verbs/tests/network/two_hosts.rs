//! Faults that channels between two hosts see.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, process};

use soft_verbs::Fabric;
use verbs_channel::{Incoming, PollStrategy};

use crate::ends::{Result, channel_config, channels, domain, hosts};

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
        assert!((200..2000).contains(&begun.elapsed().as_millis()));
        Ok(())
    })?;
    assert!(start.elapsed() < Duration::from_secs(5));
    Ok(())
}

#[test]
fn wireshark_finds_no_malformed_packet() -> Result {
    let mut tshark = Command::new("tshark");
    if tshark
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_err()
    {
        println!("SKIPPED two_hosts::wireshark_finds_no_malformed_packet: tshark is not installed");
        return Ok(());
    }
    let fabric = Fabric::seeded(7);
    let [a, b] = hosts(&fabric);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.pcap", process::id()));
    fabric.pcap(&path)?;
    a.enter(|| -> Result {
        let [mut left, mut right] = channels(&a, &b)?;
        let into = right.pd().reg_mr(vec![0_u8; 64])?;
        let ticket = right.start_receive(into).expect("it has room");
        let hello = left.pd().reg_mr(vec![7_u8; 64])?;
        left.send(hello.gather_element(..)?)?;
        assert!(right.wait(ticket, None)?.is_some());
        Ok(())
    })?;
    let fields = [
        "-T",
        "fields",
        "-e",
        "infiniband.bth.opcode",
        "-e",
        "_ws.malformed",
    ];
    let output = Command::new("tshark")
        .arg("-r")
        .arg(&path)
        .args(fields)
        .output()?;
    fs::remove_file(path)?;
    // A send that is one packet (0x04), and its acknowledgement (0x11).
    assert_eq!(String::from_utf8(output.stdout)?, "4\t\n17\t\n");
    Ok(())
}

#[test]
fn a_blocking_wait_for_an_event_moves_virtual_time() -> Result {
    let fabric = Fabric::seeded(7);
    let [a, b] = hosts(&fabric);
    a.enter(|| -> Result {
        let build = || {
            let mut config = channel_config(&domain());
            config.strategy = PollStrategy::Notify { after: 0 };
            config.build()
        };
        let (left, right) = (a.enter(build)?, b.enter(build)?);
        let (to_left, to_right) = (left.endpoint(), right.endpoint());
        let (mut left, mut right) = (left.handshake(&to_right)?, right.handshake(&to_left)?);
        fabric.link(&a, &b).delay(Duration::from_secs(1));
        let (mut into, start) = (right.pd().reg_mr(vec![0_u8; 8])?, Instant::now());
        let late =
            right.run(Incoming::receive(into.scatter_element(..)?).timeout(Duration::from_secs(9)));
        assert!(late.is_err());
        assert!(
            (9..12).contains(&start.elapsed().as_secs()),
            "{:?}",
            start.elapsed()
        );
        let hello = left.pd().reg_mr(b"hello".to_vec())?;
        assert!(
            left.send(hello.gather_element(..)?).is_err(),
            "the peer's channel is down"
        );
        Ok(())
    })
}
