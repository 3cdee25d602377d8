//! Registration: which memory, with which rights, and why not.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::thread;

use fake_libibverbs::{Advice, ladder, with};
use verbs_core::error::ErrorKind;
use verbs_core::memory::{Buffer, MrAdvice};
use verbs_core::queue_pair::{DataInOrder, WrOpcode};
use verbs_core::{AccessFlags, Error, MemoryRegion, SharedRegion};
use verbs_harness::{assert_says, faults};

#[test]
fn region_that_can_be_borrowed_permits_no_remote_access() {
    let (_, pd, _) = ladder();
    for flag in [
        AccessFlags::REMOTE_WRITE,
        AccessFlags::REMOTE_READ,
        AccessFlags::REMOTE_ATOMIC,
        AccessFlags::MW_BIND,
    ] {
        let refused = pd.reg_mr_with(vec![1_u8; 8], flag).unwrap_err();
        assert!(matches!(refused.error(), Error::RemoteAccess), "{refused}");
        assert_eq!(refused.into_given(), [1; 8]);
    }
    assert!(!with(|library| library.calls.contains(&"ibv_reg_mr")));
    assert!(
        pd.reg_mr_with(vec![1_u8; 8], AccessFlags::RELAXED_ORDERING)
            .is_ok()
    );
}

#[test]
fn empty_buffer_cannot_be_registered() {
    let (_, pd, _) = ladder();
    let refused = pd.reg_mr(Vec::<u8>::new()).unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::InvalidInput);
    assert_says(&refused, "length 0");
    let file = File::open("/dev/null").unwrap();
    // SAFETY: nothing is registered.
    let empty = unsafe { pd.reg_dmabuf_mr(file.as_fd(), 0, 0, 0, AccessFlags::empty(), ()) };
    assert_eq!(empty.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has mappings of its own")]
fn memory_that_cannot_be_pinned_is_named() {
    static READ_ONLY: [u8; 64] = [7; 64];
    let (_, pd, _) = ladder();
    let constant = NonNull::from(&READ_ONLY).cast();
    let nowhere = NonNull::new(ptr::without_provenance_mut::<u8>(4096)).unwrap();
    for (start, access, why) in [
        (constant, AccessFlags::LOCAL_WRITE, "is read-only"),
        (constant, AccessFlags::empty(), ""),
        (
            nowhere,
            AccessFlags::empty(),
            "64 bytes from 0x1000 on are not mapped",
        ),
    ] {
        with(|library| library.refuse.push(("ibv_reg_mr", libc::EFAULT)));
        // SAFETY: it is not registered.
        let error = unsafe { pd.register_raw(start, 64, access, ()) }.unwrap_err();
        let (text, plain) = (error.to_string(), "registering 64 bytes of memory failed");
        assert!(text.starts_with(plain) && text.contains(why), "{text}");
        assert_eq!(text == plain, why.is_empty(), "{text}");
        // A cause that is not certain follows the errno.
        let bare = format!("{text}: Bad address (os error 14)");
        assert!(faults::chain(&error).len() > bare.len() || !why.is_empty());
        assert_eq!(error.errno(), Some(libc::EFAULT));
    }
}

/// Moves a value as callers do: into a function, into a box, and out again.
#[inline(never)]
fn moved<T>(value: T) -> T {
    *std::hint::black_box(Box::new(value))
}

/// Writes through every way there is to the bytes of a region that is moved in between. Natively
/// this can't fail; Miri sees a pointer that was taken before its owner was moved.
fn reached_in_every_way<B: Buffer>(region: MemoryRegion<B>) -> B {
    let mut region = moved(region);
    region.as_bytes_mut()[0] = 1;
    let region = moved(region);
    assert_eq!(region.as_bytes()[..2], [1, 0]);
    assert_eq!(size_of_val(&region[..]), region.as_bytes().len());
    assert_eq!(region.gather_element(..).unwrap()[..2], [1, 0]);
    let mut region = moved(region);
    let whole = region.scatter_element(..).unwrap();
    let (mut first, mut second) = whole.split_at_mut(1).unwrap();
    second[0] = 2;
    first[0] = 3;
    assert_eq!(region.as_bytes()[..2], [3, 2]);
    moved(region).dereg().unwrap()
}

fn shared_in_every_way<B: Buffer + 'static>(region: SharedRegion<B>) -> B {
    let region = moved(region);
    region.write(0, &[3, 2]).unwrap();
    let region = moved(region);
    let mut bytes = [0; 2];
    region.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [3, 2]);
    // SAFETY: it is the second byte, which nothing borrows.
    unsafe { region.as_ptr().add(1).write(2) };
    moved(region).dereg().unwrap()
}

#[test]
fn a_buffer_is_reached_after_its_region_has_moved() {
    let (_, pd, _) = ladder();
    let refused = || with(|library| library.refuse.push(("ibv_reg_mr", libc::EFAULT)));
    macro_rules! buffers {
        ($($buffer:expr),* $(,)?) => {$({
            let buffer = reached_in_every_way(pd.reg_mr($buffer).unwrap());
            assert_eq!(buffer[..2], [3, 2]);
            // One that is given back is whole too.
            refused();
            let back = pd.reg_mr(buffer).unwrap_err().into_given();
            assert_eq!(back[..2], [3, 2]);
            drop(pd.reg_mr(back).unwrap());
        })*};
    }
    buffers![
        vec![0_u8; 8],
        vec![0_u8; 8].into_boxed_slice(),
        Box::new([0_u8; 8])
    ];
    let (mut array, mut slice) = ([0_u8; 8], [0_u8; 8]);
    buffers![&mut array, &mut slice[..]];
    assert_eq!(
        (array[..2].to_vec(), slice[..2].to_vec()),
        (vec![3, 2], vec![3, 2])
    );
    let shared = |buffer| {
        let region = pd.reg_shared(buffer, AccessFlags::REMOTE_WRITE);
        shared_in_every_way(region.unwrap())
    };
    let bytes: Box<[u8]> = shared(vec![0; 8].into_boxed_slice());
    assert_eq!(bytes[..2], [3, 2]);
    let mut words = [0_u32; 4];
    let region = pd.reg_mr(&mut words[..]).unwrap();
    assert_eq!(
        reached_in_every_way(region)[0],
        u32::from_ne_bytes([3, 2, 0, 0])
    );
    assert_eq!(words[0], u32::from_ne_bytes([3, 2, 0, 0]));
}

#[test]
fn elements_are_within_their_region() {
    let (_, pd, _) = ladder();
    let mut region = pd.reg_mr(vec![0_u8; 100]).unwrap();
    assert_eq!(region.gather_element(90..).unwrap().len(), 10);
    let error = region.gather_element(90..101).unwrap_err();
    assert_eq!(
        error.to_string(),
        "bytes 90..101 are not within the region's 100 bytes"
    );
    assert!(region.scatter_element(101..).is_err());
    assert!(region.gather_element(100..).unwrap().is_empty());
    let shared = pd
        .reg_shared(vec![0_u8; 100], AccessFlags::REMOTE_READ)
        .unwrap();
    assert!(shared.element(..101).is_err());
}

#[test]
fn shared_bytes_are_copied_within_their_region() {
    let (_, pd, _) = ladder();
    let shared = pd
        .reg_shared(vec![0_u8; 100], AccessFlags::REMOTE_WRITE)
        .unwrap();
    // Every alignment and length around the size of a word.
    for offset in 0..18 {
        for len in 0..34 {
            let from: Vec<u8> = (1..).take(len).collect();
            shared.write(offset, &from).unwrap();
            let mut all = [0; 100];
            shared.read(0, &mut all).unwrap();
            let mut expected = [0; 100];
            expected[offset..offset + len].copy_from_slice(&from);
            assert_eq!(all, expected, "{len} bytes at {offset}");
            let mut part = vec![0; len];
            shared.read(offset, &mut part).unwrap();
            assert_eq!(part, from);
            shared.write(0, &[0; 100]).unwrap();
        }
    }
    assert!(shared.write(99, &[0, 0]).is_err());
    assert!(shared.read(usize::MAX, &mut [0]).is_err());
    assert!(shared.read(100, &mut []).is_ok());
}

/// A buffer that begins and ends within a word.
struct Unaligned(Box<[u64]>);

// SAFETY: the box stays where it is and owns its bytes, and the part is always the same.
unsafe impl Buffer for Unaligned {
    type Item = u8;

    fn items(&mut self) -> NonNull<[u8]> {
        let bytes = self.0.items().cast::<u8>();
        // SAFETY: the box has at least 3 words.
        NonNull::slice_from_raw_parts(unsafe { bytes.add(3) }, 8 * self.0.len() - 8)
    }
}

/// Threads that copy bytes in and out, while another loads and adds words. Each word that a copy
/// covers whole is copied as one; and under Miri, atomics of different sizes that meet are found.
#[test]
fn copies_of_bytes_and_atomics_of_words_meet_in_a_region() {
    const ROUNDS: u8 = if cfg!(miri) { 4 } else { 200 };
    let (_, pd, _) = ladder();
    let buffer = Unaligned(vec![0; 4].into_boxed_slice());
    let shared = pd.reg_shared(buffer, AccessFlags::REMOTE).unwrap();
    // Bytes 5 to 12 and 13 to 20 are words; 0 to 4 and 21 to 23 are parts of two more.
    assert_eq!((shared.len(), shared.as_ptr().align_offset(8)), (24, 5));
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                shared.write(5, &[round; 8]).unwrap();
                // Ranges in every kind of piece, and over all of them.
                for (offset, len) in [(0, 5), (3, 4), (6, 3), (10, 6), (21, 3), (0, 24)] {
                    shared.write(offset, &[round; 24][..len]).unwrap();
                }
            }
        });
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let mut bytes = [0; 24];
                shared.read(0, &mut bytes).unwrap();
                shared.read(2, &mut bytes[..9]).unwrap();
            }
        });
        let word = shared.atomic_u64(13).unwrap();
        for _ in 0..ROUNDS {
            word.fetch_or(0, Ordering::Relaxed);
            word.load(Ordering::Acquire);
        }
    });
    let mut bytes = [0; 24];
    shared.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [ROUNDS - 1; 24]);
    // The bytes around the region are unchanged.
    let Unaligned(words) = shared.dereg().unwrap();
    let around = (words[0].to_ne_bytes(), words[3].to_ne_bytes());
    assert_eq!((&around.0[..3], &around.1[3..]), (&[0; 3][..], &[0; 5][..]));
}

#[test]
fn a_word_that_is_copied_is_never_torn() {
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 20_000 };
    let (_, pd, _) = ladder();
    let shared = pd.reg_shared(vec![0_u64], AccessFlags::REMOTE).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..ROUNDS {
                let byte = if round % 2 == 0 { 0xff } else { 0 };
                shared.write(0, &[byte; 8]).unwrap();
            }
        });
        while !writer.is_finished() {
            let word = shared.atomic_u64(0).unwrap().load(Ordering::Relaxed);
            assert!([0, u64::MAX].contains(&word), "{word:#x}");
            let mut bytes = [0; 8];
            shared.read(0, &mut bytes).unwrap();
            assert!([[0; 8], [0xff; 8]].contains(&bytes), "{bytes:?}");
        }
    });
}

#[test]
fn an_atomic_is_aligned_and_within() {
    let (_, pd, _) = ladder();
    let shared = pd
        .reg_shared(vec![0_u64; 2], AccessFlags::REMOTE_ATOMIC)
        .unwrap();
    shared
        .atomic_u64(8)
        .unwrap()
        .store(0x0102, Ordering::Relaxed);
    let mut bytes = [0; 8];
    shared.read(8, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 0x0102);
    assert!(matches!(
        shared.atomic_u64(4).unwrap_err(),
        Error::Misaligned { .. }
    ));
    assert!(matches!(
        shared.atomic_u64(16).unwrap_err(),
        Error::OutOfBounds { .. }
    ));
}

#[test]
fn a_region_with_an_iova_is_named_by_it() {
    let (_, pd, _) = ladder();
    let mut bytes = [0_u8; 64];
    let start = NonNull::from(&mut bytes).cast::<u8>();
    let register = |iova| {
        let access = AccessFlags::REMOTE_READ;
        // SAFETY: the bytes live longer than the region.
        unsafe { pd.register_raw_iova(start, 64, iova, access, ()) }
    };
    let region = register(0x1000).unwrap();
    assert_eq!(region.remote().addr(), 0x1000);
    assert_eq!(region.sge(8..).unwrap().addr(), 0x1008);
    assert_eq!(register(0).unwrap().remote().addr(), 0);
    let before = with(|library| library.calls.len());
    let wraps = register(u64::MAX - 8).unwrap_err();
    assert_eq!(wraps.kind(), ErrorKind::InvalidInput, "{wraps}");
    assert_eq!(
        with(|library| library.calls.len()),
        before,
        "nothing was registered"
    );
    // SAFETY: the bytes live longer than the region.
    let plain = unsafe { pd.register_raw(start, 64, AccessFlags::empty(), ()) }.unwrap();
    let addr = start.as_ptr().addr() as u64;
    assert_eq!(
        (plain.remote().addr(), plain.sge(..).unwrap().addr()),
        (addr, addr)
    );
}

#[test]
fn advice_names_the_elements() {
    let (_, pd, _) = ladder();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND;
    let mut region = pd.reg_mr_with(vec![0_u8; 64], access).unwrap();
    let lkey = region.lkey();
    let start = region.as_ptr().addr() as u64;
    let (head, tail) = region
        .scatter_element(..)
        .unwrap()
        .split_at_mut(16)
        .unwrap();
    pd.advise_mr(MrAdvice::PREFETCH_WRITE, true, &[head, tail])
        .unwrap();
    let element = region.gather_element(4..8).unwrap();
    pd.advise_mr(MrAdvice::PREFETCH_NO_FAULT, false, &[element])
        .unwrap();
    let advised = with(|library| std::mem::take(&mut library.advised));
    let parts = [
        ((1, 1), vec![(start, 16, lkey), (start + 16, 48, lkey)]),
        ((2, 0), vec![(start + 4, 4, lkey)]),
    ];
    assert_eq!(advised, parts.map(|(advice, list)| Advice { advice, list }));
    for (errno, kind) in [
        (libc::EOPNOTSUPP, ErrorKind::Unsupported),
        (libc::EFAULT, ErrorKind::Other),
    ] {
        with(|library| library.refuse.push(("ibv_advise_mr", errno)));
        let refused = pd
            .advise_mr(MrAdvice::PREFETCH, false, &[element])
            .unwrap_err();
        assert_eq!((refused.kind(), refused.errno()), (kind, Some(errno)));
    }
}

#[test]
fn data_in_order_is_what_the_library_promises() {
    let qp = fake_libibverbs::connected();
    let query = |answer: fn(u32) -> i32| {
        with(|library| library.data_in_order = Some(answer));
        qp.query_data_in_order(WrOpcode::RDMA_WRITE)
    };
    assert_eq!(query(|_| 0), DataInOrder::empty());
    let blocks = query(|flags| if flags == 1 { 2 } else { 0 });
    assert_eq!(blocks, DataInOrder::ALIGNED_128_BYTES);
    let both = DataInOrder::WHOLE_MSG | DataInOrder::ALIGNED_128_BYTES;
    assert_eq!(query(|flags| if flags == 1 { 3 } else { 1 }), both);
    // Libraries without flags reject them, or ignore them.
    assert_eq!(query(|flags| i32::from(flags == 0)), both);
    assert_eq!(query(|_| 1), both);
    assert_eq!(query(|_| -1), DataInOrder::empty());
}

#[test]
fn a_remote_region_names_the_bytes_and_the_remote_key() {
    let (_, pd, _) = ladder();
    let shared = pd
        .reg_shared(vec![0_u8; 100], AccessFlags::REMOTE_READ)
        .unwrap();
    let remote = shared.remote();
    assert_eq!((remote.addr(), remote.len()), (shared.as_ptr() as u64, 100));
    assert_eq!(remote.rkey(), shared.rkey());
    assert_ne!(shared.rkey(), shared.lkey());
}
