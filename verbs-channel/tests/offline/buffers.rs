//! Blocks and owned buffers: their owners, and their ranges.

use std::mem;
use std::ops::Bound;
use std::thread;

use fake_libibverbs::{assert_all_is_well, with};
use verbs_channel::{
    BufferPool, Channel, Outgoing, OwnedBuffer, OwnedRequest, PoolBuffer, RejectReason,
};

use crate::fake_device::{called, channel, forget_the_past, pd, region, succeeds};

/// Sends a buffer. Returns the elements that the driver received, and the buffer.
fn sent(channel: &mut Channel, buffer: OwnedBuffer) -> (Vec<(u64, u32)>, OwnedBuffer) {
    forget_the_past();
    let ticket = channel.start_send(buffer).unwrap();
    let seen = with(|library| library.posted[0][0].clone());
    succeeds(seen.wr_id);
    let ended = channel.poll(ticket).unwrap().unwrap();
    let list = seen.list.iter().map(|(addr, length, ..)| (*addr, *length));
    (list.collect(), ended.buffer.unwrap())
}

fn addr(bytes: &[u8]) -> u64 {
    bytes.as_ptr().addr() as u64
}

#[test]
fn a_block_with_a_range_is_returned_to_the_pool_whole() {
    let mut channel = channel();
    let pool = BufferPool::new(channel.pd(), 64, 1).unwrap();
    let mut block = pool.take().unwrap();
    let start = addr(&block);
    for range in [8..16, 0..64, 1..64, 0..63, 64..64, 0..0] {
        let (first, len) = (range.start as u64, u32::try_from(range.len()).unwrap());
        let buffer = block.into_range(range).unwrap();
        assert_eq!(addr(&buffer), start + first);
        let (seen, buffer) = sent(&mut channel, buffer);
        let filled = (len > 0).then_some((start + first, len));
        assert_eq!(seen, filled.into_iter().collect::<Vec<_>>());
        assert_eq!((buffer.len(), buffer.capacity()), (len as usize, 64));

        block = buffer.into_block().unwrap();
        let element = block.scatter_element(..).unwrap();
        assert_eq!((element.addr(), element.length()), (start, 64));
        assert_eq!((addr(&block), block.len()), (start, 64));
        let (seen, buffer) = sent(&mut channel, block.into());
        assert_eq!(seen, [(start, 64)]);

        let mut buffer = buffer;
        buffer.set_range(3..5).unwrap();
        drop(buffer);
        block = pool.take().unwrap();
        assert_eq!((addr(&block), block.len()), (start, 64), "taken again");
        assert_eq!(block.gather_element(..).unwrap().length(), 64);
    }
    assert!(block.into_range(60..65).is_err());
    assert_eq!(pool.available(), 1, "it is returned");
}

#[test]
fn a_part_of_a_block_is_an_element() {
    let pool = BufferPool::new(&pd(), 64, 2).unwrap();
    let mut block = pool.take().unwrap();
    let start = addr(&block);
    let part = block.gather_element(8..=15).unwrap();
    assert_eq!((part.addr(), part.length()), (start + 8, 8));
    let mut part = block.scatter_element(60..).unwrap();
    assert_eq!((part.addr(), part.length()), (start + 60, 4));
    part.fill(7);
    assert_eq!((block[59], block[60]), (0, 7));
    assert!(block.gather_element(64..).unwrap().is_empty());
    assert!(block.gather_element(60..65).is_err());
    assert!(block.scatter_element(65..).is_err());
    let (from, to) = (Bound::Excluded(1), Bound::Excluded(1));
    assert!(block.scatter_element((from, to)).is_err());
}

#[test]
fn pool_is_freed_with_its_last_clone_or_block() {
    let pool = BufferPool::new(&pd(), 64, 3).unwrap();
    let (mut first, second) = (pool.take().unwrap(), pool.take().unwrap());
    let elsewhere = pool.clone();
    let first = thread::spawn(move || {
        drop((elsewhere, second));
        first.fill(7);
        OwnedBuffer::from(first)
    });
    drop(pool);
    let first = first.join().unwrap();
    assert!(!called("ibv_dereg_mr"));
    let first = first.into_block().unwrap();
    assert!(first.len() == 64 && first.iter().all(|byte| *byte == 7));
    drop(first);
    assert!(called("ibv_dereg_mr"));
    assert_all_is_well();
}

#[test]
#[expect(clippy::mem_forget, reason = "the test leaks blocks")]
fn a_block_that_is_leaked_keeps_its_pool() {
    let pool = BufferPool::new(&pd(), 64, 2).unwrap();
    mem::forget(pool.take().unwrap());
    mem::forget(OwnedBuffer::from(pool.take().unwrap()));
    assert!(pool.take().is_none());
    drop(pool);
    assert!(!called("ibv_dereg_mr"));
}

#[test]
fn a_region_is_returned_unchanged() {
    let mut channel = channel();
    let region = region(&channel);
    let start = addr(&region);
    let mut buffer = OwnedBuffer::from(region);
    buffer.set_range(60..).unwrap();
    buffer.fill(9);
    let (seen, buffer) = sent(&mut channel, buffer);
    assert_eq!(seen, [(start + 60, 4)]);
    let buffer = buffer.into_block().unwrap_err();
    let debug = "OwnedBuffer { range: 60..64, capacity: 64 }";
    assert_eq!((format!("{buffer:?}").as_str(), buffer.len()), (debug, 4));
    let region = buffer.into_region().unwrap();
    assert_eq!((addr(&region), region.len()), (start, 64));
    assert_eq!(region[59..], [0, 9, 9, 9, 9]);
    drop(OwnedBuffer::from(region));
    assert!(called("ibv_dereg_mr"));

    let pool = BufferPool::new(channel.pd(), 64, 1).unwrap();
    let mut block = OwnedBuffer::from(pool.take().unwrap());
    block.set_range(1..2).unwrap();
    let block = block.into_region().unwrap_err();
    assert_eq!((block.len(), block.capacity()), (1, 64), "as it was");
}

#[test]
fn a_range_too_long_for_an_element_is_rejected_when_it_is_posted() {
    let mut channel = channel();
    let most = u32::MAX as usize;
    // Its pages are never accessed, so it uses no memory.
    let region = channel.pd().reg_mr(vec![0_u8; most + 2]).unwrap();
    let start = addr(&region);
    let mut buffer = OwnedBuffer::from(region);
    for range in [0..most + 2, 0..most + 1, 1..most + 2] {
        let len = range.len() as u64;
        buffer.set_range(range).unwrap();
        assert_eq!(buffer.len() as u64, len);
        forget_the_past();
        let rejected = channel.start_send(buffer).unwrap_err();
        assert_eq!(*rejected.error(), RejectReason::ElementTooLong { len });
        let works = vec![OwnedRequest::from(Outgoing::send(rejected.into_given()))];
        let rejected = channel.start_batch(works).unwrap_err();
        assert_eq!(*rejected.error(), RejectReason::ElementTooLong { len });
        buffer = rejected.into_given().remove(0).into_buffer();
        assert!(with(|library| library.posted.is_empty()));
    }
    // As long as an element can be: longer than a message of this port, but valid in a receive.
    buffer.set_range(2..).unwrap();
    let rejected = channel.start_send(buffer).unwrap_err();
    let too_long = RejectReason::MessageTooLong {
        len: u32::MAX.into(),
        max: 1 << 30,
    };
    assert_eq!(*rejected.error(), too_long);
    forget_the_past();
    let ticket = channel.start_receive(rejected.into_given()).unwrap();
    let (seen, wr_id) = with(|library| {
        let (addr, length, ..) = library.posted[0][0].list[0];
        ((addr, length), library.posted[0][0].wr_id)
    });
    assert_eq!(seen, (start + 2, u32::MAX));
    succeeds(wr_id);
    let ended = channel.poll(ticket).unwrap().unwrap();
    let region = ended.buffer.unwrap().into_region().unwrap();
    assert_eq!(region.len(), most + 2);
}

#[test]
fn buffers_are_pointers_and_are_send_and_sync() {
    fn goes_anywhere<T: Send + Sync + 'static>() -> usize {
        size_of::<T>()
    }
    assert_eq!(goes_anywhere::<OwnedBuffer>(), size_of::<usize>());
    assert_eq!(goes_anywhere::<PoolBuffer>(), size_of::<usize>());
    const NONE: OwnedBuffer = OwnedBuffer::empty();
    let mut empty = NONE;
    assert!(empty.set_range(..).is_ok() && empty.set_range(..1).is_err());
    assert_eq!(
        format!("{empty:?}"),
        "OwnedBuffer { range: 0..0, capacity: 0 }"
    );
    let empty = empty.into_block().unwrap_err().into_region().unwrap_err();
    assert_eq!((empty.len(), empty.capacity()), (0, 0));
}

#[test]
fn a_pool_is_cut_out_of_any_region() {
    let mut channel = channel();
    let region = channel.pd().reg_mr(vec![7_u8; 200]).unwrap();
    let start = addr(&region);
    let pool = BufferPool::from_region(region, 64).unwrap();
    assert_eq!((pool.capacity(), pool.block_len()), (3, 64));
    let mut blocks: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
    assert!(pool.take().is_none());
    blocks.sort_by_key(|block| addr(block));
    let starts: Vec<_> = blocks.iter().map(|block| addr(block) - start).collect();
    assert_eq!(starts, [0, 64, 128]);
    let block = blocks.pop().unwrap();
    assert_eq!(&block[..], [7; 64], "its contents are the region's");
    let (seen, _) = sent(&mut channel, block.into());
    assert_eq!(seen, [(start + 128, 64)]);
    drop(pool);
    assert!(!called("ibv_dereg_mr"), "its blocks keep it");
    drop(blocks);
    assert!(called("ibv_dereg_mr"));

    for block_len in [0, 65] {
        let region = channel.pd().reg_mr(vec![0_u8; 64]).unwrap();
        let error = BufferPool::from_region(region, block_len).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&format!("block_len {block_len} is out of range")),
            "{text}"
        );
    }
    drop(channel);
    assert_all_is_well();
}

#[test]
fn a_pool_that_is_longer_than_the_address_space_names_no_limit_of_the_device() {
    for new in [BufferPool::new, BufferPool::in_huge_pages] {
        for (block_len, count) in [(usize::MAX, 2), (2, usize::MAX), (1 << 40, 1 << 30)] {
            let error = new(&pd(), block_len, count).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("block_len * count"), "{text}");
            assert!(!text.contains("device"), "{text}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no huge pages")]
fn a_pool_without_free_huge_pages_is_an_error_with_a_way_out() {
    // More than any machine has.
    let error = BufferPool::in_huge_pages(&pd(), 1 << 36, 1 << 10).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/proc/sys/vm/nr_hugepages"), "{text}");
    assert!(BufferPool::in_huge_pages(&pd(), 0, 1).is_err());
    assert!(BufferPool::in_huge_pages(&pd(), usize::MAX, 2).is_err());
}
