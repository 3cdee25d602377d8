//! The memory provider: pages with canaries between them, of the heap, of huge pages, or of a dmabuf.
//!
//! The only file of the program with `unsafe` code: it maps the memory, and registers it.
#![expect(unsafe_code, reason = "maps and registers memory")]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use examples::{Context as _, Failure, Pattern};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use verbs_channel::SharedMemory;
use verbs_core::{AccessFlags, ProtectionDomain, RemoteMemoryRegion};

const WORD: usize = size_of::<u64>();
/// Bytes after each page that nothing writes to.
const CANARY: usize = 64;
const CANARY_WORD: u64 = 0xc5c5_c5c5_c5c5_c5c5;

/// Where the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Ordinary memory
    Heap,
    /// Huge pages, as many as `vm.nr_hugepages` reserves
    Huge,
    /// A dmabuf of this host's memory, which the driver `udmabuf` makes
    Dmabuf,
}

/// Mapped pages, all of the same length, with a canary after each.
#[derive(Debug)]
pub(crate) struct Pool {
    words: NonNull<[AtomicU64]>,
    page_len: usize,
    dmabuf: Option<OwnedFd>,
}

// SAFETY: it owns the mapping, and accesses it as atomics only.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Maps so many pages of so many bytes, a multiple of 8, and writes the canaries.
    pub(crate) fn new(kind: Kind, pages: usize, page_len: usize) -> Result<Arc<Self>, Failure> {
        // A multiple of the length of a huge page, which is 2 MiB on most hosts.
        let len = pages.checked_mul(page_len + CANARY);
        let len = len.and_then(|len| len.checked_next_multiple_of(2 << 20));
        let len = len.ok_or_else(|| Failure::new("the cache exceeds the address space"))?;
        let cannot = || format!("no {} MiB of {kind:?} memory", len >> 20);
        let file = memory_file(kind, len).context(cannot)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, at an address that the kernel chooses.
        let start = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0) };
        let start = NonNull::new(start.context(cannot)?.cast());
        let start = start.ok_or_else(|| Failure::new("the kernel mapped address 0"))?;
        let mut pool = Self {
            words: NonNull::slice_from_raw_parts(start, len / WORD),
            page_len,
            dmabuf: None,
        };
        if kind == Kind::Dmabuf {
            pool.dmabuf = Some(dmabuf_of(&file, len).context(|| "cannot make a dmabuf")?);
        }
        for page in 0..pages {
            let canary = pool.page(page).iter().skip(page_len / WORD);
            canary.for_each(|word| word.store(CANARY_WORD, Ordering::Relaxed));
        }
        Ok(Arc::new(pool))
    }

    /// Registers it for one rail, with room for so many slices at once.
    pub(crate) fn register(
        self: &Arc<Self>,
        pd: &ProtectionDomain,
        access: AccessFlags,
        slices: usize,
    ) -> Result<(SharedMemory, RemoteMemoryRegion), Failure> {
        let (start, len) = (self.words.cast(), self.words.len() * WORD);
        let owner = Arc::clone(self);
        let Some(dmabuf) = &self.dmabuf else {
            // SAFETY: `owner` keeps it mapped for reads and writes. It is accessed as atomics only, of
            // which all bytes are valid.
            let region = unsafe { pd.register_raw(start, len, access, owner) }?;
            let remote = region.remote();
            return Ok((SharedMemory::new(Arc::new(region), slices), remote));
        };
        let (fd, iova) = (dmabuf.as_fd(), start.as_ptr().addr() as u64);
        // SAFETY: as above; `owner` keeps the memory in its use.
        let region = unsafe { pd.reg_dmabuf_mr(fd, 0, len, iova, access, owner) }?;
        let remote = region.remote();
        Ok((SharedMemory::new(Arc::new(region), slices), remote))
    }

    /// Where a page begins and ends, in bytes.
    pub(crate) const fn bounds(page: usize, page_len: usize) -> (usize, usize) {
        let start = page * (page_len + CANARY);
        (start, start + page_len)
    }

    /// Writes a page.
    pub(crate) fn fill(&self, page: usize, bytes: Pattern) {
        let words = self.page(page).iter().take(self.page_len / WORD);
        words.zip(0..).for_each(|(word, at)| {
            word.store(bytes.word(at).to_le(), Ordering::Relaxed);
        });
    }

    /// How many bytes of a page are wrong, and how many of the canary after it.
    pub(crate) fn check(&self, page: usize, bytes: Pattern) -> (u32, u32) {
        let (mut wrong, mut damaged) = (0, 0);
        for (word, at) in self.page(page).iter().zip(0..) {
            let is_canary = at >= (self.page_len / WORD) as u64;
            let (count, right) = match is_canary {
                true => (&mut damaged, CANARY_WORD),
                false => (&mut wrong, bytes.word(at).to_le()),
            };
            let differs = (word.load(Ordering::Relaxed) ^ right).to_ne_bytes();
            *count += differs.map(|byte| u32::from(byte != 0)).iter().sum::<u32>();
        }
        (wrong, damaged)
    }

    /// The words of a page and of its canary.
    fn page(&self, page: usize) -> &[AtomicU64] {
        let (start, end) = Self::bounds(page, self.page_len);
        // SAFETY: it is mapped as long as `self` lives, and accessed as atomics of this size. Devices
        // have no part in Rust's memory model.
        let words = unsafe { self.words.as_ref() };
        let page = words.get(start / WORD..(end + CANARY) / WORD);
        page.expect("the caller counts the pages")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no region is left: each keeps the pool.
        let _unmapped = unsafe { munmap(self.words.as_ptr().cast(), self.words.len() * WORD) };
    }
}

/// A file in memory that cannot shrink, as udmabuf requires.
fn memory_file(kind: Kind, len: usize) -> io::Result<OwnedFd> {
    let huge = MemfdFlags::from_bits_retain(match kind {
        Kind::Huge => MemfdFlags::HUGETLB.bits(),
        Kind::Heap | Kind::Dmabuf => 0,
    });
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
    let file = memfd_create("kv_transfer", flags)?;
    ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

/// A dmabuf over a memory file.
#[expect(clippy::disallowed_methods, reason = "an ioctl of another driver")]
fn dmabuf_of(file: &OwnedFd, len: usize) -> io::Result<OwnedFd> {
    /// `struct udmabuf_create` of linux/udmabuf.h.
    #[repr(C)]
    struct Create {
        memfd: i32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    /// `UDMABUF_CREATE`: `_IOW('u', 0x42, struct udmabuf_create)`.
    const CREATE: libc::Ioctl = 0x4018_7542;
    let driver = OpenOptions::new().write(true).open("/dev/udmabuf")?;
    let create = Create {
        memfd: file.as_raw_fd(),
        flags: 1, // UDMABUF_FLAGS_CLOEXEC
        offset: 0,
        size: len as u64,
    };
    // SAFETY: the request reads a `Create`.
    let fd = unsafe { libc::ioctl(driver.as_raw_fd(), CREATE, &raw const create) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
