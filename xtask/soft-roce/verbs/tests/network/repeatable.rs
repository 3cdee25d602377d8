//! The same program with the same seed has the same packets and completions.
//!
//! `REPEATS=1000` runs another number of seeds.

use std::time::Instant;

use soft_verbs::Fabric;

use crate::ends::{Result, channels, hosts};

const MESSAGES: usize = 100;

/// A hundred messages in both directions on a bad link, and the hash of it.
fn run(seed: u64) -> Result<u64> {
    let fabric = Fabric::seeded(seed);
    let [a, b] = hosts(&fabric);
    a.enter(|| -> Result {
        let mut ends = channels(&a, &b)?;
        let link = fabric.link(&a, &b);
        link.loss(0.02)
            .duplication(0.02)
            .reordering(0.02)
            .corruption(0.02);
        for number in 0..MESSAGES {
            let [from, to] = &mut ends;
            let into = to.pd().reg_mr(vec![0_u8; 64])?;
            let ticket = to.start_receive(into).expect("it has room");
            let message = from.pd().reg_mr(vec![number.to_le_bytes()[0]; 64])?;
            from.send(message.gather_element(..)?)?;
            let received = to.wait(ticket, None)?.ok_or("no message")?;
            assert_eq!(received.message(), Some(&message[..]));
            ends.reverse();
        }
        Ok(())
    })?;
    Ok(fabric.hash())
}

fn hashes(count: u64) -> Vec<u64> {
    let start = Instant::now();
    let hashes = (0..count).map(|seed| run(seed).expect("a bad link loses nothing for good"));
    let hashes = hashes.collect();
    println!(
        "{count} seeds of {MESSAGES} messages: {:?}",
        start.elapsed()
    );
    hashes
}

#[test]
fn the_same_seeds_have_the_same_hashes() {
    let count = std::env::var("REPEATS").map_or(20, |text| text.parse().expect("a number"));
    let mut first = hashes(count);
    assert_eq!(first, hashes(count));
    // On other threads, beside other load.
    let other = std::thread::spawn(move || hashes(count));
    assert_eq!(hashes(count), other.join().expect("it ends"));
    first.sort_unstable();
    first.dedup();
    assert_eq!(first.len() as u64, count, "seeds differ");
}
