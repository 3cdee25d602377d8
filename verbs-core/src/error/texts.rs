//! Texts of errors that depend on what they carry.

use std::{fmt, io};

use super::errno::{found, number};
use super::gid_path::GidPath;
use crate::codes::QpAttrMask;

pub(super) struct NoDevice<'a>(pub(super) &'a [String]);

impl fmt::Display for NoDevice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            f.write_str(
                "no RDMA device found: load your device's driver, or make a software one (soft-RoCE): \
                 `modprobe rdma_rxe && rdma link add soft0 type rxe netdev <interface>`",
            )
        } else if self.0.iter().any(|device| device.ends_with(')')) {
            write!(f, "libibverbs cannot use {}", self.0.join(", "))
        } else {
            write!(
                f,
                "libibverbs cannot use {}, which the kernel has: install the provider \
                 (ibverbs-providers, rdma-core) and check /dev/infiniband",
                self.0.join(", ")
            )
        }
    }
}

/// The valid values.
pub(super) struct Range {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max } = self;
        match *max {
            u64::MAX => write!(f, "at least {min} is needed"),
            max if max == *min => write!(f, "only {min} is possible"),
            _ => write!(f, "{min} to {max} are possible"),
        }
    }
}

/// The cause that was found for an errno, after the text of the error.
pub(super) struct Found<'e>(pub(super) &'e io::Error);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        found(self.0).map_or(Ok(()), |cause| write!(f, ": {cause}"))
    }
}

/// Which pages are missing, and where they are reserved.
pub(super) struct HugePages<'e> {
    pub(super) len: u64,
    pub(super) page_size: Option<u64>,
    pub(super) source: &'e io::Error,
}

impl fmt::Display for HugePages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            len,
            page_size,
            source,
        } = *self;
        if let Some(cause) = found(source) {
            return write!(f, "{len} bytes of huge pages are not available: {cause}");
        }
        let Some(page_size) = page_size.filter(|size| *size > 0) else {
            return write!(f, "this kernel has no huge pages of the requested size");
        };
        let (pages, kib) = (len.div_ceil(page_size), page_size / 1024);
        write!(
            f,
            "there are not {pages} free huge pages of {kib} KiB for {len} bytes: reserve more in \
             /proc/sys/vm/nr_hugepages (other sizes: \
             /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages)"
        )
    }
}

pub(super) struct Limit(pub(super) Option<u64>);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(max) => write!(f, "this device's {max}"),
            None => f.write_str("what this device can do (it does not report the limit)"),
        }
    }
}

/// Why a state change was refused.
pub(super) struct Why<'a> {
    pub(super) missing: QpAttrMask,
    pub(super) extra: QpAttrMask,
    pub(super) path: &'a Option<GidPath>,
    pub(super) source: &'a io::Error,
}

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.extra.contains(QpAttrMask::STATE) {
            return f.write_str("there is no such change of state");
        }
        match (self.missing.is_empty(), self.extra.is_empty()) {
            (false, true) => return write!(f, "missing {}", self.missing),
            (true, false) => return write!(f, "not allowed {}", self.extra),
            (false, false) => {
                return write!(f, "missing {}, not allowed {}", self.missing, self.extra);
            }
            (true, true) => {}
        }
        if let Some(cause) = found(self.source) {
            return f.write_str(cause);
        }
        match (self.path, number(self.source)) {
            (None, _) => {
                f.write_str("the attribute set is valid, so one of the values was rejected")
            }
            (Some(path), Some(libc::EINVAL)) => write!(
                f,
                "the attribute set is valid, so one of the values was rejected: check that there is a path from {path}"
            ),
            (Some(path), _) => write!(f, "there is no path from {path}"),
        }
    }
}
