//! The memory provider: pages with canaries between them, of the heap, of huge pages, or of a dmabuf.
//!
//! The only file of the program with `unsafe` code: it registers the memory, and accesses it.
#![expect(unsafe_code, reason = "registers mapped memory")]

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use examples::{Context as _, Failure, Pattern};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use verbs_channel::SharedMemory;
use verbs_core::{AccessFlags, ProtectionDomain};

use crate::Options;

const WORD: usize = size_of::<u64>();
/// Bytes after each page that nothing writes to.
const CANARY: usize = 64;
const CANARY_WORD: u64 = 0xc5c5_c5c5_c5c5_c5c5;
/// All memory is a multiple of such a page.
const HUGE: usize = 1 << HUGE_BITS;
const HUGE_BITS: u8 = 21;

/// Where the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Ordinary memory
    Heap,
    /// Huge pages of 2 MiB, as many as `vm.nr_hugepages` reserves
    Huge,
    /// A dmabuf of this host's memory, which the driver `udmabuf` makes
    Dmabuf,
}

/// Mapped pages of the same length, with a canary after each.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: MmapRaw,
    page_len: usize,
    dmabuf: Option<OwnedFd>,
}

impl Pool {
    /// Maps the pages, and fills them.
    pub(crate) fn new(options: &Options) -> Result<Arc<Self>, Failure> {
        let (kind, pages, page_len) = (options.memory, options.all_pages(), options.page_len());
        let len = (pages * (page_len + CANARY)).next_multiple_of(HUGE);
        let (memory, dmabuf) = map(kind, len).context(|| match kind {
            Kind::Heap => format!("no {} MiB of memory", len >> 20),
            Kind::Huge => format!(
                "no {} huge pages: vm.nr_hugepages reserves them",
                len / HUGE
            ),
            Kind::Dmabuf => "no /dev/udmabuf: use another --memory".to_owned(),
        })?;
        let pool = Self {
            memory,
            page_len,
            dmabuf,
        };
        for page in 0..pages {
            let (seed, (words, canary)) = (seed(page), pool.words(page));
            for (word, at) in words.iter().zip(0..) {
                word.store(right(seed, 0, at), Ordering::Relaxed);
            }
            for word in canary {
                word.store(CANARY_WORD, Ordering::Relaxed);
            }
        }
        Ok(Arc::new(pool))
    }

    /// Registers the memory for one rail, with room for so many slices at once.
    pub(crate) fn register(
        self: &Arc<Self>,
        pd: &ProtectionDomain,
        access: AccessFlags,
        slices: usize,
    ) -> Result<SharedMemory, Failure> {
        let (start, len, owner) = (self.start(), self.memory.len(), Arc::clone(self));
        let Some(dmabuf) = &self.dmabuf else {
            // SAFETY: `owner` keeps it mapped for reads and writes. It is accessed as atomics only, of
            // which all bytes are valid.
            let region = unsafe { pd.register_raw(start, len, access, owner) }?;
            return Ok(SharedMemory::new(Arc::new(region), slices));
        };
        let (fd, iova) = (dmabuf.as_fd(), start.as_ptr().addr() as u64);
        // SAFETY: as above; `owner` keeps the memory in its use.
        let region = unsafe { pd.reg_dmabuf_mr(fd, 0, len, iova, access, owner) };
        let device = pd.context().device().name();
        let region =
            region.context(|| format!("{device} takes no dmabuf, use another --memory"))?;
        Ok(SharedMemory::new(Arc::new(region), slices))
    }

    /// Where a page begins and ends, in bytes.
    pub(crate) const fn bounds(&self, page: usize) -> Range<usize> {
        let start = page * (self.page_len + CANARY);
        start..start + self.page_len
    }

    /// Makes a page of this generation: only its first word differs from other generations.
    pub(crate) fn stamp(&self, page: usize, generation: u64) {
        if let Some(word) = self.words(page).0.first() {
            word.store(right(seed(page), generation, 0), Ordering::Relaxed);
        }
    }

    /// How many bytes at this place differ from those of `page`.
    pub(crate) fn wrong(&self, place: usize, page: usize, generation: u64) -> u32 {
        let (words, _canary) = self.words(place);
        let (seed, words) = (seed(page), words.iter().zip(0..));
        let differ = words.map(|(word, at)| differing(word, right(seed, generation, at)));
        differ.sum()
    }

    /// How many bytes of the canary after this place are damaged.
    pub(crate) fn damaged(&self, place: usize) -> u32 {
        let (_page, canary) = self.words(place);
        let differ = canary.iter().map(|word| differing(word, CANARY_WORD));
        differ.sum()
    }

    fn start(&self) -> NonNull<u8> {
        NonNull::new(self.memory.as_mut_ptr()).expect("nothing is mapped at address 0")
    }

    /// The words of a page, and those of its canary.
    fn words(&self, page: usize) -> (&[AtomicU64], &[AtomicU64]) {
        let all = NonNull::slice_from_raw_parts(self.start().cast(), self.memory.len() / WORD);
        // SAFETY: it is mapped as long as `self` lives, and accessed as atomics of this size. Devices
        // have no part in Rust's memory model.
        let all: &[AtomicU64] = unsafe { all.as_ref() };
        let Range { start, end } = self.bounds(page);
        let words = all.get(start / WORD..(end + CANARY) / WORD);
        let words = words.expect("the caller counts the pages");
        words.split_at(self.page_len / WORD)
    }
}

/// The right word of a page with this seed.
const fn right(seed: u64, generation: u64, at: u64) -> u64 {
    let word = seed.wrapping_add(at);
    (if at == 0 { word ^ generation } else { word }).to_le()
}

/// How many bytes of a word are not right.
fn differing(word: &AtomicU64, right: u64) -> u32 {
    match word.load(Ordering::Relaxed) ^ right {
        // Nearly always: builds without optimisation are slow enough.
        0 => 0,
        bits => bits
            .to_ne_bytes()
            .map(|byte| u32::from(byte != 0))
            .iter()
            .sum(),
    }
}

/// A number of which the words of a page are made.
const fn seed(page: usize) -> u64 {
    Pattern::new(0).word(page as u64)
}

fn map(kind: Kind, len: usize) -> io::Result<(MmapRaw, Option<OwnedFd>)> {
    let mut options = MmapOptions::new();
    options.len(len);
    if kind == Kind::Dmabuf {
        let (file, dmabuf) = dmabuf(len)?;
        return Ok((options.map_raw(&file)?, Some(dmabuf)));
    }
    if kind == Kind::Huge {
        options.huge(Some(HUGE_BITS));
    }
    Ok((options.map_anon()?.into(), None))
}

/// A file in memory that cannot shrink, and a dmabuf over it.
#[expect(clippy::disallowed_methods, reason = "an ioctl of another driver")]
fn dmabuf(len: usize) -> io::Result<(OwnedFd, OwnedFd)> {
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
    let file = memfd_create(
        "kv_transfer",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
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
    Ok((file, unsafe { OwnedFd::from_raw_fd(fd) }))
}
