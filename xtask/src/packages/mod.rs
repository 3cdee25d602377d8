//! What this project needs from the system: is it there, and how does this distribution call it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::process::{succeeds, which};

mod install;

/// What to do about a missing package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Ask on a terminal; without one, install when no password is needed.
    Ask,
    /// Install.
    Yes,
    /// Print the command and fail.
    No,
}

/// Something that the system has to offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A C compiler and linker, `cc`.
    CCompiler,
    /// `pkg-config`.
    PkgConfig,
    /// The headers and the link name of libibverbs, rdma-core 36 or later.
    Libibverbs,
    /// libclang with its own headers, for bindgen.
    Libclang,
    /// The user space driver of `rdma_rxe`.
    RdmaProviders,
    /// `ibv_devinfo`, `ibv_rc_pingpong` and their siblings.
    RdmaTools,
    /// `ip` and `rdma`.
    Iproute2,
    /// `tc`.
    TrafficControl,
    /// `strace`.
    Strace,
    /// `modprobe` and `depmod`.
    Kmod,
    /// The emulator for this machine's own architecture.
    Qemu,
    /// `xz`.
    Xz,
    /// `zstd`.
    Zstd,
    /// `valgrind`.
    Valgrind,
}

/// A need's text and its package names.
#[derive(Debug)]
struct Package {
    what: &'static str,
    why: &'static str,
    apt: &'static str,
    dnf: &'static str,
    pacman: &'static str,
}

impl Need {
    /// Whether the system has it now: found by trying, not by asking the package manager.
    pub(crate) fn is_met(self) -> bool {
        let on_path = |names: &[&str]| names.iter().all(|name| which(name).is_some());
        match self {
            Self::CCompiler => on_path(&["cc"]),
            Self::PkgConfig => on_path(&["pkg-config"]),
            Self::Libibverbs => {
                succeeds(Command::new("pkg-config").args(["--exists", "libibverbs >= 1.14.36"]))
            }
            Self::Libclang => has_libclang(),
            Self::RdmaProviders => has_rxe_provider(),
            Self::RdmaTools => on_path(&["ibv_devinfo", "ibv_rc_pingpong"]),
            Self::Iproute2 => on_path(&["ip", "rdma"]),
            Self::TrafficControl => on_path(&["tc"]),
            Self::Strace => on_path(&["strace"]),
            Self::Kmod => on_path(&["modprobe", "depmod"]),
            Self::Qemu => on_path(&[qemu()]),
            Self::Xz => on_path(&["xz"]),
            Self::Zstd => on_path(&["zstd"]),
            Self::Valgrind => on_path(&["valgrind"]),
        }
    }

    fn package(self) -> Package {
        let package = |what, why, apt, dnf, pacman| Package {
            what,
            why,
            apt,
            dnf,
            pacman,
        };
        let arm = cfg!(target_arch = "aarch64");
        match self {
            Self::CCompiler => package(
                "a C compiler (cc)",
                "to link programs",
                "gcc libc6-dev",
                "gcc",
                "gcc",
            ),
            Self::PkgConfig => package(
                "pkg-config",
                "to find libibverbs",
                "pkg-config",
                "pkgconf-pkg-config",
                "pkgconf",
            ),
            Self::Libibverbs => package(
                "the headers of libibverbs (rdma-core 36 or later)",
                "to build verbs-sys",
                "libibverbs-dev",
                "rdma-core-devel",
                "rdma-core",
            ),
            Self::Libclang => package(
                "libclang with its headers",
                "for bindgen, which reads the headers of libibverbs",
                "libclang-dev",
                "clang-devel",
                "clang",
            ),
            Self::RdmaProviders => package(
                "the user space driver of soft-RoCE (librxe)",
                "to open a soft-RoCE device",
                "ibverbs-providers",
                "libibverbs",
                "rdma-core",
            ),
            Self::RdmaTools => package(
                "ibv_devinfo and ibv_rc_pingpong",
                "to test against the C programs",
                "ibverbs-utils",
                "libibverbs-utils",
                "rdma-core",
            ),
            Self::Iproute2 => package(
                "ip and rdma",
                "to make network links and RDMA devices",
                "iproute2",
                "iproute",
                "iproute2",
            ),
            Self::TrafficControl => package(
                "tc",
                "to lose and delay packets in tests",
                "iproute2",
                "iproute-tc",
                "iproute2",
            ),
            Self::Strace => package(
                "strace",
                "to count system calls in tests",
                "strace",
                "strace",
                "strace",
            ),
            Self::Kmod => package(
                "modprobe and depmod",
                "to load rdma_rxe",
                "kmod",
                "kmod",
                "kmod",
            ),
            Self::Qemu => package(
                "QEMU",
                "to run soft-RoCE in a virtual machine",
                if arm {
                    "qemu-system-arm"
                } else {
                    "qemu-system-x86"
                },
                if arm {
                    "qemu-system-aarch64-core"
                } else {
                    "qemu-system-x86-core"
                },
                if arm {
                    "qemu-system-aarch64"
                } else {
                    "qemu-system-x86"
                },
            ),
            Self::Xz => package(
                "xz",
                "to unpack the virtual machine's kernel",
                "xz-utils",
                "xz",
                "xz",
            ),
            Self::Zstd => package(
                "zstd",
                "to unpack the virtual machine's kernel",
                "zstd",
                "zstd",
                "zstd",
            ),
            Self::Valgrind => package(
                "valgrind",
                "to count instructions",
                "valgrind",
                "valgrind",
                "valgrind",
            ),
        }
    }
}

/// Makes sure that every one of `needs` is met, by installing what is missing as `policy` allows.
///
/// Says what is missing and why before it asks or installs, and looks again afterwards.
pub(crate) fn ensure(needs: &[Need], policy: Policy) -> Result<(), Error> {
    let mut missing = Vec::new();
    for need in needs {
        if !missing.contains(need) && !need.is_met() {
            missing.push(*need);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    install::install(&missing, policy)
}

/// The name of the emulator for this machine's architecture.
pub(crate) fn qemu() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "qemu-system-aarch64"
    } else {
        "qemu-system-x86_64"
    }
}

/// Looks for libclang where bindgen does, and for its headers: the library alone has no
/// `stddef.h`.
fn has_libclang() -> bool {
    let named = env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    let named = named.map(|path| match path.is_file() {
        true => path.parent().map_or_else(PathBuf::new, Path::to_path_buf),
        false => path,
    });
    let dirs = named.into_iter().chain(library_dirs());
    dirs.filter(|dir| entries(dir).any(|file| is_libclang(&file)))
        .any(|dir| has_clang_headers(&dir))
}

fn is_libclang(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let library = name.starts_with("libclang.so") || name.starts_with("libclang-");
    library && name.contains(".so") && !name.starts_with("libclang-cpp")
}

fn has_clang_headers(libclang_dir: &Path) -> bool {
    // Found from where libclang really is: /usr/lib/x86_64-linux-gnu/libclang-14.so.1 points to
    // /usr/lib/llvm-14/lib, and its headers are below that.
    let real = entries(libclang_dir)
        .filter(|file| is_libclang(file))
        .filter_map(|file| fs::canonicalize(file).ok())
        .filter_map(|file| file.parent().map(Path::to_path_buf));
    let usual = ["/usr/lib", "/usr/lib64"].map(PathBuf::from);
    real.chain(llvm_dirs())
        .chain(usual)
        .flat_map(|dir| entries(&dir.join("clang")))
        .any(|version| version.join("include/stddef.h").is_file())
}

fn has_rxe_provider() -> bool {
    let is_rxe = |file: PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("librxe-rdmav")
    };
    library_dirs().any(|dir| entries(&dir.join("libibverbs")).any(is_rxe))
}

/// Where shared libraries are on Debian, Fedora, Arch and by hand.
fn library_dirs() -> impl Iterator<Item = PathBuf> {
    let multiarch = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    let fixed = [
        multiarch.as_str(),
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
        "/usr/local/lib64",
    ]
    .map(PathBuf::from);
    llvm_dirs().chain(fixed)
}

/// `/usr/lib/llvm-14/lib` on Debian, `/usr/lib64/llvm18/lib` on Fedora.
fn llvm_dirs() -> impl Iterator<Item = PathBuf> {
    ["/usr/lib", "/usr/lib64"]
        .into_iter()
        .flat_map(|dir| entries(Path::new(dir)))
        .filter(|dir| {
            let name = dir.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with("llvm")
        })
        .flat_map(|dir| [dir.join("lib"), dir.join("lib64")])
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let listed = fs::read_dir(dir).into_iter().flatten();
    listed.filter_map(|entry| Some(entry.ok()?.path()))
}

#[cfg(test)]
mod tests {
    use super::{is_libclang, qemu};
    use std::path::Path;

    #[test]
    fn libclang_is_told_from_its_neighbours() {
        for name in [
            "libclang.so",
            "libclang.so.18.1",
            "libclang-14.so.1",
            "libclang-14.so",
        ] {
            assert!(is_libclang(Path::new(name)), "{name}");
        }
        for name in [
            "libclang-cpp.so.14",
            "libclangAST.a",
            "libclang-14.a",
            "libc.so.6",
        ] {
            assert!(!is_libclang(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn the_emulator_is_the_one_for_this_machine() {
        assert!(qemu().ends_with(std::env::consts::ARCH));
    }
}
