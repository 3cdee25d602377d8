//! Registered memory of each kind, moved by the device.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::ptr::{self, NonNull};

use verbs_core::memory::{Buffer, HugePages};
use verbs_core::{AccessFlags, Error, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};
use verbs_harness::child::{Child, LimitedGroup, join_group, role};
use verbs_harness::iwarp::is_iwarp;
use verbs_harness::pair::{Pair, pattern};
use verbs_harness::{assert_says, begin, is_root};

/// Sends what is in `from` into a buffer of this kind.
fn arrives<B: Buffer>(pair: &Pair, from: &[u8], into: B) {
    let source = pair.a.pd().reg_mr(from.to_vec()).unwrap();
    let mut region = pair
        .b
        .pd()
        .reg_mr(into)
        .unwrap_or_else(|refused| panic!("{refused}"));
    let mut list = [region.scatter_element(..).unwrap()];
    pair.b.receive(ReceiveWorkRequest::new(&mut list));
    pair.a.post_one(SendWorkRequest::new(&mut [source
        .gather_element(..)
        .unwrap()]));
    pair.a.sent();
    pair.b.received();
    assert!(region.as_bytes() == from);
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_kind_of_buffer_is_filled() {
    let _test = begin!();
    let pair = Pair::new();
    let from = pattern(1, 64);
    arrives(&pair, &from, vec![0_u8; 64]);
    arrives(&pair, &from, vec![0_u64; 8]);
    arrives(&pair, &from, vec![0_u32; 16].into_boxed_slice());
    arrives(&pair, &from, Box::new([0_u16; 32]));
    arrives(&pair, &from, vec![0.0_f32; 16]);
    arrives(&pair, &from, &mut [0.0_f64; 8]);
    arrives(&pair, &from, vec![[0_i32; 4]; 4].into_boxed_slice());
    let mut array = [0_u8; 64];
    arrives(&pair, &from, &mut array);
    assert_eq!(array[..], from);
    let mut vec = vec![0_u64; 100];
    arrives(&pair, &from, &mut vec[10..18]);
    assert!(vec[..10] == [0; 10] && vec[18..] == [0; 82]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn foreign_memory_is_written_and_read_by_address_or_iova() {
    let test = begin!();
    let pair = Pair::new();
    let mut file = tempfile();
    file.set_len(8192).unwrap();
    let (nowhere, shared, fd) = (ptr::null_mut(), libc::MAP_SHARED, file.as_raw_fd());
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file that is this test's own.
    let map = unsafe { libc::mmap(nowhere, 8192, access, shared, fd, 0) };
    assert_ne!(map, libc::MAP_FAILED);
    let start = NonNull::new(map.cast::<u8>()).unwrap();
    for (seed, iova) in [(3, None), (5, Some(0x10_0000))] {
        if iova.is_some() && is_iwarp() {
            return test.skip("soft-iWARP lacks regions with an iova");
        }
        let flags = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let register = |iova| {
            // SAFETY: the memory stays mapped until the region is gone, and no reference to it exists.
            unsafe { (pair.b.pd()).register_raw_iova(start, 8192, iova, flags, ()) }
        };
        let address = start.as_ptr().addr() as u64;
        let region = register(iova.unwrap_or(address)).unwrap();
        if let Some(iova) = iova {
            let refused = register(iova + 0x100).unwrap_err();
            let not_alike_within_a_page = Some(libc::EINVAL);
            assert_eq!(refused.errno(), not_alike_within_a_page);
            assert_eq!(region.remote().addr(), iova);
        }
        let source = pair.a.pd().reg_mr(pattern(seed, 100)).unwrap();
        let place = region.remote().slice(4090..).unwrap();
        let mut list = [source.gather_element(..).unwrap()];
        pair.a
            .post_one(WriteWorkRequest::new(&mut list, &place).unwrap());
        pair.a.written(&place);
        // Local requests can read it, too.
        let mut back = pair.a.pd().reg_mr(vec![0_u8; 10]).unwrap();
        let mut list = [back.scatter_element(..).unwrap()];
        pair.a.receive(ReceiveWorkRequest::new(&mut list));
        pair.b
            .post_one(SendWorkRequest::new(&mut [region.sge(4090..4100).unwrap()]));
        pair.b.sent();
        pair.a.received();
        assert_eq!(back[..], source[..10]);
        region.dereg().unwrap();
        let mut found = vec![0; 100];
        file.seek(SeekFrom::Start(4090)).unwrap();
        file.read_exact(&mut found).unwrap();
        assert_eq!(found, source[..]);
    }
    // SAFETY: no region is left.
    unsafe { libc::munmap(map, 8192) };
}

/// Where the number of huge pages of 2 MiB is set.
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// The number of huge pages, set back when dropped: those that are mapped stay.
struct Reserved(String);

impl Reserved {
    fn new(pages: u32) -> Self {
        let before = fs::read_to_string(HUGE_PAGES).unwrap();
        fs::write(HUGE_PAGES, pages.to_string()).unwrap();
        Self(before)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        fs::write(HUGE_PAGES, &self.0).unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn huge_pages_are_filled() {
    let _test = begin!();
    let pair = Pair::new();
    let from = pattern(6, 4 << 20);
    let pages = match HugePages::new(from.len()) {
        Ok(pages) => pages,
        // Two of two MiB, of which there may be none: reserve them for the time of the test.
        Err(error) => {
            assert_says(&error, HUGE_PAGES);
            let _reserved = Reserved::new(4);
            HugePages::new(from.len()).unwrap()
        }
    };
    assert_eq!((pages.len(), pages[0]), (from.len(), 0));
    arrives(&pair, &from, pages);
}

/// In a group with 2 MiB, 4 MiB of huge pages that are free are an error that names both, and no signal.
#[test]
#[ignore = "needs an RDMA device"]
fn huge_pages_beyond_the_limit_of_a_control_group_are_an_error() {
    if let Some((group, mut line)) = role() {
        join_group(&group);
        let within = HugePages::with_page_size(2 << 20, 2 << 20).map(|pages| pages[0]);
        line.write(&format!("{within:?}"));
        let beyond = HugePages::with_page_size(4 << 20, 2 << 20);
        let beyond = beyond.map(|mut pages| pages.fill(1));
        return line.write(&beyond.unwrap_err().to_string());
    }
    let test = begin!(alone);
    for file in ["hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"] {
        let group = match LimitedGroup::of_huge_pages(&test, file, 2 << 20) {
            Ok(group) => group,
            Err(reason) => return test.skip(reason),
        };
        let _reserved = Reserved::new(4);
        let mut child = Child::start(&test, group.path());
        assert_eq!(child.line.read(), "Ok(0)", "the limit is enough for a page");
        let words = child.line.read();
        let limit = format!("2097152 bytes of them: raise {}/{file}", group.path());
        assert!(words.contains(&limit), "{words}");
        assert!(child.ended().success());
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn too_few_reserved_huge_pages_are_named() {
    let test = begin!(alone);
    if !is_root() {
        return test.skip("only root can change the number of huge pages");
    }
    let _reserved = Reserved::new(1);
    let error = HugePages::with_page_size(4 << 20, 2 << 20).unwrap_err();
    let named = format!(
        "there are not 2 free huge pages of 2048 KiB for 4194304 bytes: reserve more in {HUGE_PAGES}"
    );
    assert_says(&error, &named);
    assert!(matches!(error, Error::HugePages { .. }), "{error:?}");
}

/// A file without a name.
fn tempfile() -> File {
    let mut options = File::options();
    let options = options.read(true).write(true);
    let flags = std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_TMPFILE);
    flags.open("/dev/shm").unwrap()
}
