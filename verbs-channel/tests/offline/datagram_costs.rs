//! Datagrams that cost less: those that are inline, and none that allocates.

use fake_libibverbs::{assert_all_is_well, with};
use verbs_channel::verbs_core::AccessFlags;
use verbs_channel::verbs_core::verbs_sys::IBV_SEND_INLINE;
use verbs_channel::{OwnedBuffer, SharedMemory};

use crate::datagrams::{buffer, builder, peer};
use crate::fake_device::{forget_the_past, pd, posted, succeeds};

#[test]
fn short_datagrams_of_readable_memory_are_sent_inline() {
    let pd = pd();
    let mut short = builder(&pd);
    (short.max_send_wr, short.max_inline_data) = (8, 64);
    let mut datagrams = short.build().unwrap();
    let shared = SharedMemory::register([&pd], vec![7_u8; 64], AccessFlags::LOCAL_WRITE).unwrap();
    let given: [OwnedBuffer; 5] = [
        buffer(&pd, &[1; 64]),
        buffer(&pd, &[1; 65]),
        buffer(&pd, &[1]),
        // The processor may not be able to read it.
        shared.slice(..8).unwrap().into(),
        OwnedBuffer::empty(),
    ];
    let lens = given.each_ref().map(|buffer| buffer.len());
    assert_eq!(lens[..3], [64, 65, 1]);
    forget_the_past();
    for buffer in given {
        datagrams.send_to(&peer(1), buffer).unwrap();
    }
    let is_inline = with(|library| {
        let requests = library.posted.iter().flatten();
        requests
            .map(|request| request.send_flags & IBV_SEND_INLINE.0 != 0)
            .collect::<Vec<_>>()
    });
    assert_eq!(is_inline, [true, false, true, false, false]);
    posted().into_iter().for_each(succeeds);
    assert!(datagrams.flush(None));
    drop((datagrams, shared));
    // Nothing is inline unless it is asked for.
    let mut datagrams = builder(&pd).build().unwrap();
    datagrams.send_to(&peer(1), buffer(&pd, b"x")).unwrap();
    let last = with(|library| library.posted.last().unwrap()[0].clone());
    assert_eq!(last.send_flags & IBV_SEND_INLINE.0, 0);
    drop((datagrams, short, pd));
    assert_all_is_well();
}
