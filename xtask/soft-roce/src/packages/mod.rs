//! Packages of the system: whether they are installed, and their names in this distribution.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::driver::Driver;
use crate::error::Error;
use crate::process::which;

mod install;

/// The policy on a missing package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// Ask on a terminal; without one, install when no password is needed.
    Ask,
    /// Install.
    Yes,
    /// Print the command and fail.
    No,
}

/// The names in `/etc/os-release` of the system and of those that it is like.
pub(crate) fn system_names(os_release: &str) -> impl Iterator<Item = &str> {
    let names = os_release.lines().filter_map(|line| {
        let names = line.strip_prefix("ID=");
        names.or_else(|| line.strip_prefix("ID_LIKE="))
    });
    names.flat_map(|names| names.trim_matches(['"', '\'']).split_whitespace())
}

/// Something that the system has to offer.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub(crate) what: &'static str,
    why: &'static str,
    packages: [&'static str; 3],
    is_met: fn() -> bool,
}

impl Need {
    /// Something called `what`, needed for the reason `why`; the names of its packages with apt, dnf
    /// and pacman; and how to see whether the system has it, by trying rather than by asking the
    /// package manager.
    #[must_use]
    pub const fn new(
        what: &'static str,
        why: &'static str,
        packages: [&'static str; 3],
        is_met: fn() -> bool,
    ) -> Self {
        Self {
            what,
            why,
            packages,
            is_met,
        }
    }

    /// Whether the system has it now.
    #[must_use]
    pub fn is_met(self) -> bool {
        (self.is_met)()
    }
}

/// The user space driver of `rdma_rxe`.
pub const RDMA_PROVIDERS: Need = Need::new(
    "the user space driver of soft-RoCE (librxe)",
    "to open a soft-RoCE device",
    ["ibverbs-providers", "libibverbs", "rdma-core"],
    || has_provider(Driver::Rxe),
);

/// The user space driver of `siw`.
pub const SIW_PROVIDER: Need = Need::new(
    "the user space driver of soft-iWARP (libsiw)",
    "to open a soft-iWARP device",
    ["ibverbs-providers", "libibverbs", "rdma-core"],
    || has_provider(Driver::Siw),
);

/// `modprobe` and `depmod`.
pub const KMOD: Need = Need::new(
    "modprobe and depmod",
    "to load kernel modules",
    ["kmod", "kmod", "kmod"],
    || which("modprobe").is_some() && which("depmod").is_some(),
);

/// The emulator for this machine's own architecture.
pub const QEMU: Need = Need::new(
    "QEMU",
    "to run soft-RoCE in a virtual machine",
    if cfg!(target_arch = "aarch64") {
        [
            "qemu-system-arm",
            "qemu-system-aarch64-core",
            "qemu-system-aarch64",
        ]
    } else {
        ["qemu-system-x86", "qemu-system-x86-core", "qemu-system-x86"]
    },
    || which(qemu()).is_some(),
);

/// `xz`.
pub const XZ: Need = Need::new(
    "xz",
    "to unpack the virtual machine's kernel",
    ["xz-utils", "xz", "xz"],
    || which("xz").is_some(),
);

/// `zstd`.
pub const ZSTD: Need = Need::new(
    "zstd",
    "to unpack the virtual machine's kernel",
    ["zstd", "zstd", "zstd"],
    || which("zstd").is_some(),
);

/// Tools for building a kernel module, beside packages that are not installed.
pub(crate) const MODULE_TOOLS: [Need; 3] = [
    Need::new(
        "gcc",
        "to build the kernel module siw",
        ["gcc libc6-dev", "gcc", "gcc"],
        || which("gcc").is_some(),
    ),
    Need::new(
        "make",
        "to build the kernel module siw",
        ["make", "make", "make"],
        || which("make").is_some(),
    ),
    Need::new(
        "libelf",
        "for the kernel's own tools, which build the module siw",
        ["libelf1", "elfutils-libelf", "libelf"],
        || library_dirs().any(|dir| dir.join("libelf.so.1").exists()),
    ),
];

/// The user space driver of `driver`.
pub(crate) fn provider(driver: Driver) -> Need {
    match driver {
        Driver::Rxe => RDMA_PROVIDERS,
        Driver::Siw => SIW_PROVIDER,
    }
}

/// Makes sure that every one of `needs` is met, by installing what is missing as `policy` allows.
///
/// Says what is missing and why before it asks or installs, and looks again afterwards.
///
/// # Errors
///
/// If something is missing and may not or cannot be installed; the message says how to.
pub fn ensure(needs: &[Need], policy: Policy) -> Result<(), Error> {
    let mut missing: Vec<Need> = Vec::new();
    for need in needs {
        if missing.iter().all(|known| known.what != need.what) && !need.is_met() {
            missing.push(*need);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    install::install(&missing, policy)
}

/// Whether `what`, which is no package of the system, may be made in the way `how`: asks as
/// [`ensure`] does.
///
/// # Errors
///
/// If it may not.
pub(crate) fn permit(what: &str, how: &str, policy: Policy) -> Result<(), Error> {
    install::permit(what, how, policy)
}

/// The name of the emulator for this machine's architecture.
pub(crate) const fn qemu() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "qemu-system-aarch64"
    } else {
        "qemu-system-x86_64"
    }
}

fn has_provider(driver: Driver) -> bool {
    let start = format!("lib{}-rdmav", driver.name());
    let is_it = |file: PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&start)
    };
    library_dirs().any(|dir| entries(&dir.join("libibverbs")).any(&is_it))
}

/// Where shared libraries are on Debian, Fedora, Arch and by hand.
pub fn library_dirs() -> impl Iterator<Item = PathBuf> {
    let multiarch = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    let fixed = [
        multiarch.as_str(),
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
        "/usr/local/lib64",
    ];
    fixed.map(PathBuf::from).into_iter()
}

/// The entries of a folder; none if it cannot be read.
pub fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let listed = fs::read_dir(dir).into_iter().flatten();
    listed.filter_map(|entry| Some(entry.ok()?.path()))
}

#[cfg(test)]
mod tests {
    use super::qemu;

    #[test]
    fn the_emulator_is_the_one_for_this_machine() {
        assert!(qemu().ends_with(std::env::consts::ARCH));
    }
}
