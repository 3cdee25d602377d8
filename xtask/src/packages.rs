//! Packages that this project needs, beside those of soft-RoCE.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) use soft_roce::packages::{Need, Policy, ensure};
use soft_roce::packages::{entries, library_dirs};

use crate::process::{succeeds, which};

/// Whether to install what is missing.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Install {
    /// Install missing packages without asking
    #[arg(long, conflicts_with = "no_install")]
    yes: bool,
    /// Fail if packages are missing, and say how to install them
    #[arg(long)]
    no_install: bool,
}

impl Install {
    pub(crate) const fn policy(self) -> Policy {
        match (self.yes, self.no_install) {
            (true, _) => Policy::Yes,
            (_, true) => Policy::No,
            _ => Policy::Ask,
        }
    }
}

/// Packages for building the workspace.
pub(crate) const BUILD: [Need; 5] = [
    Need::new(
        "a C compiler (cc)",
        "to link programs",
        ["gcc libc6-dev", "gcc", "gcc"],
        || which("cc").is_some(),
    ),
    Need::new(
        "pkg-config",
        "to find libibverbs",
        ["pkg-config", "pkgconf-pkg-config", "pkgconf"],
        || which("pkg-config").is_some(),
    ),
    Need::new(
        "the headers of libibverbs (rdma-core 36 or later)",
        "to build verbs-sys",
        ["libibverbs-dev", "rdma-core-devel", "rdma-core"],
        || succeeds(Command::new("pkg-config").args(["--exists", "libibverbs >= 1.14.36"])),
    ),
    Need::new(
        "the headers of librdmacm (rdma-core 36 or later)",
        "to build verbs-sys with the feature rdmacm",
        ["librdmacm-dev", "rdma-core-devel", "rdma-core"],
        || succeeds(Command::new("pkg-config").args(["--exists", "librdmacm >= 1.3.36"])),
    ),
    Need::new(
        "libclang with its headers",
        "for bindgen, which reads the headers of libibverbs",
        ["libclang-dev", "clang-devel", "clang"],
        has_libclang,
    ),
];

/// Packages for the device tests, beside soft-RoCE: C's programs, and tools to break links and
/// count calls.
pub(crate) const DEVICE_TESTS: [Need; 5] = [
    Need::new(
        "ibv_devinfo and ibv_rc_pingpong",
        "to test against the C programs",
        ["ibverbs-utils", "libibverbs-utils", "rdma-core"],
        || which("ibv_devinfo").is_some() && which("ibv_rc_pingpong").is_some(),
    ),
    Need::new(
        "rping, ucmatose, udaddy, rdma_client and rdma_server",
        "to test against the C programs of librdmacm",
        ["rdmacm-utils", "librdmacm-utils", "rdma-core"],
        || {
            let programs = ["rping", "ucmatose", "udaddy", "rdma_client", "rdma_server"];
            programs.iter().all(|program| which(program).is_some())
        },
    ),
    Need::new(
        "ip and rdma",
        "to make network links and RDMA devices",
        ["iproute2", "iproute", "iproute2"],
        || which("ip").is_some() && which("rdma").is_some(),
    ),
    Need::new(
        "tc",
        "to lose and delay packets in tests",
        ["iproute2", "iproute-tc", "iproute2"],
        || which("tc").is_some(),
    ),
    STRACE,
];

/// `strace`.
pub(crate) const STRACE: Need = Need::new(
    "strace",
    "to count system calls",
    ["strace", "strace", "strace"],
    || which("strace").is_some(),
);

/// C's perftest, and `awk` to read what it prints.
pub(crate) const PERFTEST: Need = Need::new(
    "perftest (ib_send_lat and others) and awk",
    "to compare latencies and bandwidths with C's",
    ["perftest mawk", "perftest gawk", "perftest gawk"],
    || {
        let kinds = [("lat", "atomic"), ("bw", "send")];
        let mut needed = kinds.iter().flat_map(|(kind, more)| {
            let ops = ["send", "write", "read", more];
            ops.map(|op| format!("ib_{op}_{kind}"))
        });
        needed.all(|program| which(&program).is_some()) && which("awk").is_some()
    },
);

/// `taskset`.
pub(crate) const TASKSET: Need = Need::new(
    "taskset",
    "to pin programs to processors",
    ["util-linux", "util-linux-core", "util-linux"],
    || which("taskset").is_some(),
);

/// `valgrind`.
pub(crate) const VALGRIND: Need = Need::new(
    "valgrind",
    "to count instructions, and to check waits",
    ["valgrind", "valgrind", "valgrind"],
    || which("valgrind").is_some(),
);

/// Looks for libclang where bindgen does, and for its headers: the library alone has no
/// `stddef.h`.
fn has_libclang() -> bool {
    let named = env::var_os("LIBCLANG_PATH").map(PathBuf::from);
    let named = named.map(|path| match path.is_file() {
        true => path.parent().map_or_else(PathBuf::new, Path::to_path_buf),
        false => path,
    });
    let dirs = named.into_iter().chain(llvm_dirs()).chain(library_dirs());
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

#[cfg(test)]
mod tests {
    use super::is_libclang;
    use std::path::Path;

    #[test]
    fn libclang_is_distinguished_from_similar_libraries() {
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
}
