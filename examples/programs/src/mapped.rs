//! Memory of the heap, of huge pages or of a dmabuf, which any number of devices can access.
#![expect(unsafe_code, reason = "registers mapped memory, and accesses it")]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use clap::ValueEnum;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use verbs_channel::SharedMemory;
use verbs_core::{AccessFlags, ProtectionDomain};

use crate::{Context as _, Failure};

/// All memory is a multiple of such a page.
const HUGE: usize = 1 << HUGE_BITS;
const HUGE_BITS: u8 = 21;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(clippy::exhaustive_enums, reason = "the values of an option")]
pub enum MemoryKind {
    /// Ordinary memory
    Heap,
    /// Huge pages of 2 MiB, which `vm.nr_hugepages` reserves
    Huge,
    /// A dmabuf of this host's memory, which the driver `udmabuf` makes
    Dmabuf,
}

/// Zeroed memory, which each of several devices can have registered. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Mapped {
    mapping: Arc<Mapping>,
}

#[derive(Debug)]
struct Mapping {
    memory: MmapRaw,
    dmabuf: Option<OwnedFd>,
}

impl Mapped {
    /// Maps at least `len` bytes.
    ///
    /// # Errors
    ///
    /// There is not enough memory of this kind.
    pub fn new(kind: MemoryKind, len: usize) -> Result<Self, Failure> {
        let len = len.checked_next_multiple_of(HUGE).unwrap_or(len);
        let (memory, dmabuf) = map(kind, len).context(|| match kind {
            MemoryKind::Heap => format!("no {} MiB of memory", len >> 20),
            MemoryKind::Huge => format!(
                "no {} huge pages: vm.nr_hugepages reserves them",
                len / HUGE
            ),
            MemoryKind::Dmabuf => "no /dev/udmabuf: use another --memory".to_owned(),
        })?;
        let mapping = Arc::new(Mapping { memory, dmabuf });
        Ok(Self { mapping })
    }

    /// Registers it in each of these protection domains. The registration keeps it mapped.
    ///
    /// # Errors
    ///
    /// It cannot be registered: few devices take a dmabuf.
    pub fn register<'d>(
        &self,
        domains: impl IntoIterator<Item = &'d ProtectionDomain>,
        access: AccessFlags,
    ) -> Result<SharedMemory, Failure> {
        let (start, len) = (self.start(), self.mapping.memory.len());
        let Some(dmabuf) = &self.mapping.dmabuf else {
            // SAFETY: the mapping keeps it mapped for reads and writes. It is accessed as atomics only, of
            // which all bytes are valid.
            let memory = unsafe {
                SharedMemory::register_raw(domains, start, len, access, Arc::clone(&self.mapping))
            };
            return Ok(memory?);
        };
        let (fd, iova) = (dmabuf.as_fd(), start.as_ptr().addr() as u64);
        let regions = domains.into_iter().map(|pd| {
            let owner = Arc::clone(&self.mapping);
            // SAFETY: `owner` keeps the memory mapped, which is accessed as atomics only.
            let region = unsafe { pd.reg_dmabuf_mr(fd, 0, len, iova, access, owner) };
            let device = pd.context().device().name();
            region.context(|| format!("{device} takes no dmabuf, use another --memory"))
        });
        Ok(SharedMemory::new(regions.collect::<Result<Vec<_>, _>>()?))
    }

    /// Its words.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        let len = self.mapping.memory.len() / size_of::<AtomicU64>();
        let words = NonNull::slice_from_raw_parts(self.start().cast(), len);
        // SAFETY: the memory is mapped as long as `self` lives, and accessed as atomics of this
        // size. Devices have no part in Rust's memory model.
        unsafe { words.as_ref() }
    }

    fn start(&self) -> NonNull<u8> {
        let start = NonNull::new(self.mapping.memory.as_mut_ptr());
        start.expect("nothing is mapped at address 0")
    }
}

fn map(kind: MemoryKind, len: usize) -> io::Result<(MmapRaw, Option<OwnedFd>)> {
    let mut options = MmapOptions::new();
    options.len(len);
    if kind == MemoryKind::Dmabuf {
        let (file, dmabuf) = dmabuf(len)?;
        return Ok((options.map_raw(&file)?, Some(dmabuf)));
    }
    if kind == MemoryKind::Huge {
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
    let file = memfd_create("dmabuf", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
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
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok((file, unsafe { OwnedFd::from_raw_fd(fd) }))
}
