//! Tasks that sleep until a message was sent: woken by its completion, although their own poll sent it.
//!
//! Nothing else drives the stream: no message arrives, and the background thread has no
//! reason to.

use std::time::Duration;

use fake_libibverbs::{share, with};

use crate::bench::{Bench, WakeCounter, announce, done};
use crate::streams::{
    CREDIT, HELLO, arrive, destroyed, flush, hello, made, met, read, sends, write,
};

/// Completes all sends that are in flight.
fn all_is_sent() {
    let sent = with(|library| {
        let posted = library.posted.iter().flatten();
        let sends = posted.filter(|posted| posted.opcode != 0);
        sends.map(|posted| posted.wr_id).collect::<Vec<_>>()
    });
    // An earlier completion belongs to no send.
    done(sent);
}

#[test]
fn flush_or_write_that_sends_earlier_data_is_woken_when_it_has_arrived() {
    let _sharing = share();
    for is_flush in [true, false] {
        let bench = Bench::new();
        let mut stream = met(&bench);
        let task = WakeCounter::new();
        // One write with a credit, and then one for each block.
        assert!(write(&mut stream, &[1; 64], &task).is_ready());
        all_is_sent();
        for _ in 0..if is_flush { 1 } else { 2 } {
            assert!(write(&mut stream, &[2; 64], &task).is_ready());
        }
        assert_eq!(sends(), [1, 2]);
        arrive(1, CREDIT, b"");
        let poll = |stream: &mut _| match is_flush {
            true => flush(stream, &task),
            false => write(stream, &[4; 64], &task).map_ok(drop),
        };
        assert!(poll(&mut stream).is_pending());
        assert_eq!(sends(), [1, 2, 2]);
        assert_eq!(task.wakes(), 0);
        all_is_sent();
        announce(&bench);
        assert_eq!(task.wakes(), 1, "it sleeps on");
        assert!(poll(&mut stream).is_ready());
        destroyed(|| drop(stream));
        with(|library| library.posted.clear());
    }
}

#[test]
fn block_longer_than_the_peers_is_sent_while_its_task_only_reads() {
    let _sharing = share();
    let bench = Bench::new();
    let mut stream = made(&bench, 8);
    stream.set_linger(Duration::ZERO);
    let task = WakeCounter::new();
    all_is_sent();
    // Before the HELLO of the peer, whose blocks are shorter.
    assert!(write(&mut stream, &[7; 64], &task).is_ready());
    arrive(0, HELLO, &hello(32, 8));
    assert!(read(&mut stream, &task).is_pending());
    assert_eq!(sends(), [1, 2], "the first half");
    assert_eq!(task.wakes(), 0);
    all_is_sent();
    announce(&bench);
    assert_eq!(task.wakes(), 1, "the rest is not sent");
    assert!(read(&mut stream, &task).is_pending());
    assert_eq!(sends(), [1, 2, 2]);
}
