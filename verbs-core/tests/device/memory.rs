//! Registered memory of each kind, moved by the device.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;
use std::ptr::{self, NonNull};

use verbs_core::codes::OdpCaps;
use verbs_core::error::ErrorKind;
use verbs_core::memory::{Buffer, HugePages, MrAdvice};
use verbs_core::{AccessFlags, Error, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};
use verbs_harness::child::{Child, LimitedGroup, join_group, role};
use verbs_harness::pair::{Pair, Side, pattern};
use verbs_harness::{Test, begin, is_root, is_soft};

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
fn a_region_moves_with_its_buffer_in_place() {
    let _test = begin!();
    let pair = Pair::new();
    let region = pair.b.pd().reg_mr(vec![0_u8; 100]).unwrap();
    let address = region[..].as_ptr();
    let mut moved = Box::new(region);
    assert_eq!(moved[..].as_ptr(), address);
    let source = pair.a.pd().reg_mr(pattern(2, 100)).unwrap();
    let mut list = [moved.scatter_element(..).unwrap()];
    pair.b.receive(ReceiveWorkRequest::new(&mut list));
    pair.a.post_one(SendWorkRequest::new(&mut [source
        .gather_element(..)
        .unwrap()]));
    pair.b.received();
    let buffer = moved.dereg().unwrap();
    assert_eq!((buffer.as_ptr(), &buffer[..]), (address, &source[..]));
    pair.a.sent();
}

#[test]
#[ignore = "needs an RDMA device"]
fn foreign_memory_is_written_and_read_by_address() {
    let _test = begin!();
    let pair = Pair::new();
    let mut file = tempfile();
    file.set_len(8192).unwrap();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a file that is this test's own.
    let map = unsafe {
        libc::mmap(
            ptr::null_mut(),
            8192,
            access,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(map, libc::MAP_FAILED);
    let start = NonNull::new(map.cast::<u8>()).unwrap();
    let flags = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    // SAFETY: the memory stays mapped until the region is gone, and no reference to it exists.
    let raw = unsafe { pair.b.pd().register_raw(start, 8192, flags, ()) }.unwrap();
    let source = pair.a.pd().reg_mr(pattern(3, 100)).unwrap();
    let place = raw.remote().slice(4090..).unwrap();
    let mut list = [source.gather_element(..).unwrap()];
    pair.a
        .post_one(WriteWorkRequest::new(&mut list, &place).unwrap());
    pair.a.written(&place);
    // Local requests can read it, too.
    let mut back = pair.a.pd().reg_mr(vec![0_u8; 10]).unwrap();
    let mut list = [back.scatter_element(..).unwrap()];
    pair.a.receive(ReceiveWorkRequest::new(&mut list));
    pair.b
        .post_one(SendWorkRequest::new(&mut [raw.sge(4090..4100).unwrap()]));
    pair.b.sent();
    pair.a.received();
    assert_eq!(back[..], source[..10]);
    let refused = raw.sge(..8193).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    raw.dereg().unwrap();
    // SAFETY: the region is gone.
    unsafe { libc::munmap(map, 8192) };
    let mut found = vec![0; 100];
    file.seek(SeekFrom::Start(4090)).unwrap();
    file.read_exact(&mut found).unwrap();
    assert_eq!(found, source[..]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_names_a_region_by_its_iova() {
    let _test = begin!(iwarp lacks "regions with an iova (in soft-iWARP)");
    let pair = Pair::new();
    // From the beginning of a page on.
    let mut memory = vec![0_u8; 12288];
    let skip = memory.as_ptr().align_offset(4096);
    let start = NonNull::from(&mut memory[skip]);
    let flags = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    // SAFETY: the memory lives longer than the region, and no reference to it is used meanwhile.
    let region = unsafe {
        let register = |iova| pair.b.pd().register_raw_iova(start, 8192, iova, flags, ());
        let refused = register(0x10_0100).unwrap_err();
        assert_eq!(
            refused.errno(),
            Some(libc::EINVAL),
            "not the same within a page"
        );
        register(0x10_0000).unwrap()
    };
    assert_eq!(region.remote().addr(), 0x10_0000);
    let source = pair.a.pd().reg_mr(pattern(5, 100)).unwrap();
    let place = region.remote().slice(4090..).unwrap();
    let mut list = [source.gather_element(..).unwrap()];
    pair.a
        .post_one(WriteWorkRequest::new(&mut list, &place).unwrap());
    pair.a.sent();
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
    assert_eq!(memory[skip + 4090..skip + 4190], source[..]);
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
            assert!(error.to_string().contains(HUGE_PAGES), "{error}");
            let _reserved = Reserved::new(4);
            HugePages::new(from.len()).unwrap()
        }
    };
    assert_eq!((pages.len(), pages[0]), (from.len(), 0));
    arrives(&pair, &from, pages);
}

/// In a group with 2 MiB in this file, 4 MiB of huge pages that are free are an error that names both.
fn limit_is_named(test: &Test, file: &str) {
    if let Some((group, mut line)) = role() {
        join_group(&group);
        let within = HugePages::with_page_size(2 << 20, 2 << 20).map(|pages| pages[0]);
        line.write(&format!("{within:?}"));
        let beyond = HugePages::with_page_size(4 << 20, 2 << 20);
        return line.write(
            &beyond
                .map(|mut pages| pages.fill(1))
                .unwrap_err()
                .to_string(),
        );
    }
    let group = match LimitedGroup::of_huge_pages(test, file, 2 << 20) {
        Ok(group) => group,
        Err(reason) => return test.skip(reason),
    };
    let _reserved = Reserved::new(4);
    let mut child = Child::start(test, group.path());
    assert_eq!(child.line.read(), "Ok(0)", "the limit is enough for a page");
    let words = child.line.read();
    let named = format!(
        "may have 2097152 bytes of them: raise {}/{file}",
        group.path()
    );
    assert!(words.contains(&named), "{words}");
    assert!(child.ended().success());
}

#[test]
#[ignore = "needs an RDMA device"]
fn huge_pages_beyond_the_limit_of_a_control_group_are_an_error_and_no_signal() {
    limit_is_named(&begin!(alone), "hugetlb.2MB.max");
}

#[test]
#[ignore = "needs an RDMA device"]
fn huge_pages_beyond_what_a_control_group_may_reserve_are_an_error() {
    limit_is_named(&begin!(alone), "hugetlb.2MB.rsvd.max");
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
    assert!(error.to_string().contains(&named), "{error}");
    assert!(matches!(error, Error::HugePages { .. }), "{error:?}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_shared_mapping_of_a_file_is_registered_or_named() {
    let _test = begin!();
    let side = Side::here();
    // On a disk or another machine, as `/dev/shm` is memory.
    let dir = std::env::var_os("SOFT_ROCE_RESULTS").map(PathBuf::from);
    let dir = dir.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let path = dir.join(format!("verbs-core-shared-{}", std::process::id()));
    let mut options = File::options();
    let options = options.read(true).write(true).create_new(true);
    let file = options.open(&path).unwrap();
    file.set_len(4096).unwrap();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (nowhere, shared, fd) = (ptr::null_mut(), libc::MAP_SHARED, file.as_raw_fd());
    // SAFETY: a new mapping of a file that is this test's own.
    let map = unsafe { libc::mmap(nowhere, 4096, access, shared, fd, 0) };
    assert_ne!(map, libc::MAP_FAILED);
    let start = NonNull::new(map.cast::<u8>()).unwrap();
    let register = |access| {
        // SAFETY: the memory stays mapped until the region is gone, and no reference to it exists.
        unsafe { side.pd.register_raw(start, 4096, access, ()) }
    };
    // The kernel decides, by its version and the file system.
    match register(AccessFlags::LOCAL_WRITE) {
        Ok(region) => region.dereg().unwrap(),
        Err(error) => {
            assert_eq!(error.errno(), Some(libc::EFAULT), "{error}");
            let named = format!("a shared mapping of the file {}", path.display());
            let words = error.to_string();
            assert!(
                words.contains(&named) && words.contains("MAP_PRIVATE"),
                "{words}"
            );
        }
    }
    // SAFETY: no region is left, and no reference to the memory exists.
    unsafe { libc::munmap(map, 4096) };
    fs::remove_file(&path).unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn advice_is_followed_or_reported_as_unsupported() {
    let _test = begin!();
    let side = Side::here();
    let odp = side.context.query_device_ex().unwrap().odp_caps();
    let mut region = match side.pd.reg_mr_with(
        vec![0_u8; 1 << 16],
        AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND,
    ) {
        Ok(region) => region,
        Err(refused) => {
            assert!(!odp.contains(OdpCaps::SUPPORT), "{refused}");
            side.pd.reg_mr(vec![0_u8; 1 << 16]).unwrap()
        }
    };
    let all = region.scatter_element(..).unwrap();
    let advised = side.pd.advise_mr(MrAdvice::PREFETCH_WRITE, true, &[all]);
    match advised {
        Ok(()) => assert!(odp.contains(OdpCaps::SUPPORT)),
        Err(error) => assert!(!odp.contains(OdpCaps::SUPPORT), "{error}"),
    }
}

/// A file without a name.
fn tempfile() -> File {
    let mut options = File::options();
    let options = options.read(true).write(true);
    let flags = std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_TMPFILE);
    flags.open("/dev/shm").unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn dmabuf_is_registered_or_reported_as_unsupported() {
    let test = begin!();
    let side = Side::here();
    // No device here makes a dmabuf: something else must not be taken for one.
    let file = tempfile();
    file.set_len(4096).unwrap();
    let access = AccessFlags::LOCAL_WRITE;
    // SAFETY: nothing relies on what the file holds.
    let refused = unsafe { side.pd.reg_dmabuf_mr(file.as_fd(), 0, 4096, 0, access, ()) };
    let error = refused.unwrap_err();
    if is_soft() {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    } else {
        assert!(error.errno().is_some(), "{error}");
    }
    // SAFETY: nothing relies on what the file holds.
    let empty = unsafe { side.pd.reg_dmabuf_mr(file.as_fd(), 0, 0, 0, access, ()) };
    assert_eq!(empty.unwrap_err().kind(), ErrorKind::InvalidInput);
    test.skip("no device here exports a dmabuf: only the refusals were tried");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_reaches_only_shared_regions() {
    let _test = begin!();
    let side = Side::here();
    let refused = side
        .pd
        .reg_mr_with(vec![0_u8; 8], AccessFlags::REMOTE_READ)
        .unwrap_err();
    assert!(refused.to_string().contains("reg_shared"), "{refused}");
    assert_eq!(refused.into_given(), [0; 8]);
}
