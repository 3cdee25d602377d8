//! Where a guest's kernel comes from: this machine's own, if it can serve, else a package of the
//! distribution, fetched without being installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::driver::Driver;
use crate::error::{Context as _, Error};
use crate::process::{self, run_quietly};

use super::LIMIT;
use super::apt::{Apt, Query};
use super::modules::Tree;

/// The parts of a kernel package that a guest, or a test in it, may use.
const PARTS: [&str; 21] = [
    "*/vmlinuz*",
    "*/modules.builtin*",
    "*/modules.order",
    "*/kernel/drivers/virtio/*",
    "*/kernel/drivers/char/virtio_console.ko*",
    "*/kernel/drivers/infiniband/*",
    "*/kernel/drivers/nvme/*",
    "*/kernel/drivers/block/null_blk*",
    "*/kernel/block/*",
    "*/kernel/drivers/net/veth.ko*",
    "*/kernel/drivers/net/dummy.ko*",
    "*/kernel/drivers/net/virtio_net.ko*",
    "*/kernel/drivers/net/net_failover.ko*",
    "*/kernel/net/core/*",
    "*/kernel/net/9p/*",
    "*/kernel/net/sched/*",
    "*/kernel/net/ipv[46]/*",
    "*/kernel/fs/*",
    "*/kernel/crypto/*",
    "*/kernel/lib/*",
    "*/kernel/arch/*/crypto/*",
];

/// The label of a running download.
const LABEL: &str = "fetching a kernel for the guest";

/// A kernel that could be fetched.
#[derive(Debug)]
pub(super) enum Source {
    /// The one that this machine runs.
    Own(Unpacked),
    /// Debian's and Ubuntu's packages.
    Apt(Apt),
    /// Fedora's packages.
    Dnf(Vec<String>),
    /// Arch's package.
    Pacman(String),
}

/// A kernel as files.
#[derive(Clone, Debug)]
pub(super) struct Unpacked {
    pub(super) image: PathBuf,
    pub(super) modules: PathBuf,
    pub(super) release: String,
    /// The version fetched, which may be newer than the one found first.
    pub(super) version: String,
    /// Whether these files are ours to keep.
    pub(super) is_copy: bool,
}

/// The kernel that `wanted` names, else the best one.
pub(super) fn find(wanted: Option<&str>) -> Result<Source, Error> {
    if wanted.is_none()
        && let Some(own) = own_kernel()
    {
        return Ok(Source::Own(own));
    }
    let has = |name| process::which(name).is_some();
    if has("apt-get") && has("dpkg-deb") {
        Ok(Source::Apt(Apt::find(Query::Kernel(
            wanted.map(str::to_owned),
        ))?))
    } else if has("dnf") {
        let version = wanted
            .map(|version| format!("-{version}"))
            .unwrap_or_default();
        let parts = ["core", "modules-core", "modules", "modules-extra"];
        let names = parts.map(|part| format!("kernel-{part}{version}"));
        Ok(Source::Dnf(names.to_vec()))
    } else if has("pacman") {
        Ok(Source::Pacman(wanted.unwrap_or("linux").to_owned()))
    } else {
        Err(Error::new(
            "no kernel for the guest: this machine's own cannot serve (its image cannot be read, \
             or it lacks a module), and there is neither apt, dnf nor pacman to fetch one",
        ))
    }
}

impl Source {
    /// The exact version.
    pub(super) fn version(&self) -> String {
        match self {
            Self::Own(own) => own.version.clone(),
            Self::Apt(apt) => apt.version(),
            Self::Dnf(names) => names.first().cloned().unwrap_or_default(),
            Self::Pacman(name) => format!("arch-{name}"),
        }
    }

    /// Downloads and unpacks it below `dir`.
    pub(super) fn fetch(&self, dir: &Path) -> Result<Unpacked, Error> {
        if let Self::Own(own) = self {
            return Ok(own.clone());
        }
        let (packages, tree) = (dir.join("packages"), dir.join("tree"));
        for dir in [&packages, &tree] {
            let made = fs::create_dir_all(dir);
            made.context(|| format!("cannot make the folder {}", dir.display()))?;
        }
        let mut version = self.version();
        match self {
            Self::Own(_) => {}
            Self::Apt(apt) => version = apt.download(LABEL, &packages)?,
            Self::Dnf(names) => {
                let mut dnf = Command::new("dnf");
                dnf.args(["download", "--assumeyes", "--destdir"])
                    .arg(&packages);
                let arch = std::env::consts::ARCH;
                run_quietly(dnf.arg("--arch").arg(arch).args(names), LABEL, LIMIT)?;
            }
            Self::Pacman(name) => {
                let mut pacman = Command::new("pacman");
                pacman
                    .args(["-Sw", "--noconfirm", "--cachedir"])
                    .arg(&packages);
                run_quietly(pacman.arg(name), LABEL, LIMIT)?;
            }
        }
        let what = || format!("cannot read the folder {}", packages.display());
        for entry in fs::read_dir(&packages).context(what)? {
            unpack(&entry.context(what)?.path(), &tree)?;
        }
        unpacked(&tree, version)
    }
}

/// Unpacks what is needed of one package.
fn unpack(package: &Path, tree: &Path) -> Result<(), Error> {
    const TAR: &str =
        "tar --extract --wildcards --no-anchored --exclude='*.sig' --directory \"$TREE\"";
    let name = package.file_name().unwrap_or_default().to_string_lossy();
    let script = if name.ends_with(".deb") {
        format!("dpkg-deb --fsys-tarfile \"$PACKAGE\" | {TAR} \"$@\"")
    } else if name.ends_with(".rpm") {
        "cd \"$TREE\" && rpm2cpio \"$PACKAGE\" | cpio --extract --make-directories --quiet \"$@\""
            .into()
    } else if name.contains(".pkg.tar") && !name.ends_with(".sig") {
        format!("{TAR} --file=\"$PACKAGE\" \"$@\"")
    } else {
        return Ok(());
    };
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh"]).args(PARTS);
    shell
        .env("PACKAGE", package)
        .env("TREE", tree)
        .env("LC_ALL", "C");
    let quiet = process::quietly(&mut shell, "unpacking", LIMIT)?;
    match quiet.success() || only_unmatched(&quiet.output) {
        true => Ok(()),
        false => Err(quiet.error(&shell)),
    }
}

/// Whether tar complains only of patterns that match nothing. That is no failure: a kernel may be
/// in several packages, and what is missing in the end is found out by looking for it.
fn only_unmatched(complaints: &str) -> bool {
    let mut lines = complaints.lines();
    let harmless = |line: &str| line.contains(": Not found in ") || line.contains("Exiting with ");
    !complaints.is_empty() && lines.all(harmless)
}

/// Finds the kernel in an unpacked tree.
fn unpacked(tree: &Path, version: String) -> Result<Unpacked, Error> {
    let nothing = |what: &str| Error::new(format!("there is no {what} in the kernel's package"));
    let trees = ["lib/modules", "usr/lib/modules"].map(|dir| tree.join(dir));
    let releases = trees.iter().flat_map(|dir| entries(dir));
    let modules = releases.into_iter().find(|dir| dir.join("kernel").is_dir());
    let modules = modules.ok_or_else(|| nothing("folder of modules"))?;
    let release = modules.file_name().unwrap_or_default();
    let release = release.to_string_lossy().into_owned();
    // Newer packages of Debian have the image in one package and the modules in another.
    let beside = trees.iter().map(|dir| dir.join(&release).join("vmlinuz"));
    let boot = tree.join("boot").join(format!("vmlinuz-{release}"));
    let image = beside.chain([boot]).find(|file| file.is_file());
    Ok(Unpacked {
        image: image.ok_or_else(|| nothing("image"))?,
        modules,
        release,
        version,
        is_copy: true,
    })
}

/// This machine's own kernel, if its files can be read and have all that a guest needs.
fn own_kernel() -> Option<Unpacked> {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().ok()?.to_owned();
    let modules = Path::new("/lib/modules").join(&release);
    let images = [
        modules.join("vmlinuz"),
        PathBuf::from(format!("/boot/vmlinuz-{release}")),
    ];
    let image = images
        .into_iter()
        .find(|file| fs::File::open(file).is_ok())?;
    let complete = Tree::read(&modules).is_ok_and(|tree| tree.missing(Driver::Rxe).is_empty());
    complete.then_some(Unpacked {
        image,
        modules,
        version: format!("own-{release}"),
        release,
        is_copy: false,
    })
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(dir).into_iter().flatten();
    listed
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}
