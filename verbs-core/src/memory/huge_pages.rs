//! Buffers in huge pages.
#![expect(unsafe_code, reason = "owns a mapping")]
#![expect(clippy::disallowed_methods, reason = "where a mapping becomes a slice")]

use std::ffi::c_int;
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd as _;
use std::ptr::{self, NonNull};
use std::{fmt, fs, io};

use super::Buffer;
use crate::error::errno::{io_error, last_errno};
use crate::error::{Error, Result, causes};
use crate::ffi::log;

/// A zeroed buffer in huge pages.
///
/// For huge pages the device and the processor need fewer entries in their translation tables.
///
/// The pages must have been reserved by the machine's administrator, in
/// `/proc/sys/vm/nr_hugepages`. If there are too few, or the control group of this process may not
/// have enough of them, making the buffer is an error: it does not fall back to pages of the usual
/// size.
///
/// All pages are there when the buffer has been made, on the NUMA node of the thread that made it if it has any.
///
/// Register it as any other buffer:
///
/// ```no_run
/// # fn main() -> verbs_core::Result<()> {
/// use verbs_core::Context;
/// use verbs_core::memory::HugePages;
///
/// let pd = Context::first_active()?.alloc_pd()?;
/// let region = pd.reg_mr(HugePages::new(64 << 20)?)?;
/// assert_eq!(region.len(), 64 << 20);
/// # Ok(())
/// # }
/// ```
///
/// See [`mmap(2)`](https://man7.org/linux/man-pages/man2/mmap.2.html), `MAP_HUGETLB`.
#[doc(alias = "MAP_HUGETLB")]
pub struct HugePages {
    start: NonNull<u8>,
    len: usize,
    page_size: usize,
}

impl HugePages {
    /// A buffer of at least `len` bytes, in huge pages of the kernel's default size.
    ///
    /// That is 2 MiB on most machines. `len` is rounded up to whole pages.
    ///
    /// # Errors
    ///
    /// [`Error::HugePages`] if there are not enough free huge pages, the control group limits them, or the kernel
    /// has none at all.
    /// [`Error::OutOfRange`] if `len` is 0.
    pub fn new(len: usize) -> Result<Self> {
        let default = default_page_size().ok_or_else(|| Error::HugePages {
            len: len as u64,
            page_size: None,
            source: io_error(libc::EOPNOTSUPP),
        })?;
        Self::map(len, default, 0)
    }

    /// A buffer of at least `len` bytes, in huge pages of `page_size` bytes.
    ///
    /// Most machines with several sizes have `2 << 20` and `1 << 30`. `len` is rounded up to whole pages.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new). [`Error::HugePages`] also if the machine has no pages of this size.
    #[doc(alias = "MAP_HUGE_SHIFT")]
    pub fn with_page_size(len: usize, page_size: usize) -> Result<Self> {
        // The kernel takes a size of one byte for its default.
        if page_size < 2 || !page_size.is_power_of_two() {
            return Err(Error::HugePages {
                len: len as u64,
                page_size: Some(page_size as u64),
                source: io_error(libc::EINVAL),
            });
        }
        // At most 63, which the field of six bits holds.
        let log2 = page_size.trailing_zeros().cast_signed();
        Self::map(len, page_size, log2 << libc::MAP_HUGE_SHIFT)
    }

    fn map(asked: usize, page_size: usize, size_flag: c_int) -> Result<Self> {
        if asked == 0 {
            return Err(super::region::EMPTY);
        }
        let failed = |errno| Error::HugePages {
            len: asked as u64,
            page_size: Some(page_size as u64),
            source: io_error(errno),
        };
        let len = asked.checked_next_multiple_of(page_size);
        let len = len.filter(|len| isize::try_from(*len).is_ok());
        let len = len.ok_or_else(|| failed(libc::ENOMEM))?;
        // The pages are reserved here: without that, an access would be a SIGBUS if there are none.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size_flag;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            let source = io_error(last_errno());
            return Err(Error::HugePages {
                len: asked as u64,
                page_size: Some(page_size as u64),
                source: causes::huge_pages_reserved(source, len as u64, page_size as u64),
            });
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| failed(libc::ENOMEM))?;
        let pages = Self {
            start,
            len,
            page_size,
        };
        // A control group counts a page when it is first accessed: with too low a limit, that is a SIGBUS.
        populate(start, len, page_size).map_err(|errno| Error::HugePages {
            len: asked as u64,
            page_size: Some(page_size as u64),
            source: causes::huge_pages(io_error(errno), page_size as u64),
        })?;
        Ok(pages)
    }

    /// The size of its pages, in bytes.
    #[must_use]
    pub const fn page_size(&self) -> usize {
        self.page_size
    }
}

/// Makes the kernel provide the pages of a mapping, which is writable and all zeros.
fn populate(start: NonNull<u8>, len: usize, page_size: usize) -> Result<(), c_int> {
    // SAFETY: the mapping is the caller's own, and its contents are kept.
    let ret = unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) };
    match (ret, last_errno()) {
        (0, _) => Ok(()),
        (_, errno @ (libc::EFAULT | libc::ENOMEM | libc::EHWPOISON)) => Err(errno),
        // Linux before 5.14 has no such advice.
        _ => populate_by_reads(start, len, page_size),
    }
}

/// The same on kernels of any age: a `read(2)` into memory that cannot be provided fails, where an access of the
/// program would be a signal.
fn populate_by_reads(start: NonNull<u8>, len: usize, page_size: usize) -> Result<(), c_int> {
    let number = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    let zeros = File::open("/dev/zero").map_err(number)?;
    for offset in (0..len).step_by(page_size) {
        // SAFETY: the offset is within the mapping.
        let page = unsafe { start.add(offset) };
        // SAFETY: the byte is in the caller's own mapping. It is zero, and stays zero.
        let read = unsafe { libc::read(zeros.as_raw_fd(), page.as_ptr().cast(), 1) };
        if read != 1 {
            return Err(last_errno());
        }
    }
    Ok(())
}

/// `Hugepagesize` of `/proc/meminfo`, in bytes.
fn default_page_size() -> Option<usize> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    parse_page_size(&meminfo)
}

fn parse_page_size(meminfo: &str) -> Option<usize> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024).filter(|size| size.is_power_of_two())
}

// SAFETY: the mapping stays at its address until the drop, and only this value has it.
unsafe impl Buffer for HugePages {
    type Item = u8;

    fn items(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.len)
    }
}

impl Deref for HugePages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is this value's, zeroed at first, and borrowed with it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for HugePages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is this value's, zeroed at first, and borrowed mutably with it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this length, and is not used after this.
        let ret = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        if ret != 0 {
            let error = io_error(last_errno());
            log::error(format_args!("cannot unmap {self:?}: {error}"));
        }
    }
}

impl fmt::Debug for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HugePages")
            .field("len", &self.len)
            .field("page_size", &self.page_size)
            .finish()
    }
}

// SAFETY: `HugePages` owns its mapping, as a box owns its bytes.
unsafe impl Send for HugePages {}
// SAFETY: the mapping has no owner but this value; by reference there are only `&[u8]`.
unsafe impl Sync for HugePages {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_size_is_the_kernels() {
        let meminfo = "HugePages_Free:        0\nHugepagesize:       2048 kB\nHugetlb: 0 kB\n";
        assert_eq!(parse_page_size(meminfo), Some(2 << 20));
        for odd in [
            "",
            "Hugepagesize: 2 MB",
            "Hugepagesize: 3 kB",
            "Hugepagesize: kB",
        ] {
            assert_eq!(parse_page_size(odd), None, "{odd}");
        }
    }

    /// A mapping of `len` bytes of a file of `file_len`.
    fn of_file(len: usize, file_len: u64) -> HugePages {
        let path = std::env::temp_dir().join(format!("verbs-core-pages-{}", std::process::id()));
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(&path).unwrap();
        file.set_len(file_len).unwrap();
        fs::remove_file(&path).unwrap();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (nowhere, shared, fd) = (ptr::null_mut(), libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { libc::mmap(nowhere, len, access, shared, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        HugePages {
            start: NonNull::new(start.cast()).unwrap(),
            len,
            page_size: 4096,
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn a_page_whose_access_would_be_a_signal_is_an_error() {
        for populate in [populate, populate_by_reads] {
            // An access after the end of a file is a SIGBUS, as that of a huge page beyond a limit is.
            let beyond = of_file(3 * 4096, 4096);
            assert_eq!(populate(beyond.start, beyond.len, 4096), Err(libc::EFAULT));
            let within = of_file(3 * 4096, 3 * 4096);
            assert_eq!(populate(within.start, within.len, 4096), Ok(()));
            assert!(within.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no huge pages")]
    fn no_free_pages_is_an_error_with_a_way_out() {
        // More than any machine has.
        let error = HugePages::new(1 << 46).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/proc/sys/vm/nr_hugepages"), "{text}");
        assert!(matches!(error, Error::HugePages { .. }), "{text}");
        let error = HugePages::with_page_size(1 << 46, 1 << 30).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("hugepages-1048576kB/nr_hugepages"), "{text}");
        for wrong in [
            HugePages::with_page_size(1, 3),
            HugePages::with_page_size(1, 0),
            HugePages::with_page_size(1, 1),
        ] {
            assert_eq!(wrong.unwrap_err().errno(), Some(libc::EINVAL));
        }
        assert!(matches!(HugePages::new(0), Err(Error::OutOfRange { .. })));
        assert!(HugePages::new(usize::MAX).is_err());
    }
}
