//! The module `siw` (soft-iWARP): the kernel's own, or built for it once, from the distribution's
//! kernel source against the kernel's headers, and kept beside the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::fs::FlockOperation;

use crate::driver::Driver;
use crate::elf::Elf;
use crate::error::{Context as _, Error};
use crate::packages::{self, MODULE_TOOLS, Policy, XZ, entries};
use crate::process::{run_quietly, succeeds, which};

use super::apt::{Apt, Query};
use super::modules::Tree;
use super::{Kernel, cache, check, lock, remove_leftovers, seal};

/// Prefix of the folders' names, before the name of their kernel.
const PREFIX: &str = "siw-";

/// How long unpacking may take, and building: 10 s each on two idle processors.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// Where the kernel's source has the driver.
const SOURCE: &str = "drivers/infiniband/sw/siw";

impl Kernel {
    /// Makes this the kernel of a guest with `siw`: it loads that in place of `rdma_rxe`.
    ///
    /// Returns false if the module would have to be built, and this kernel's headers are gone from
    /// the mirrors.
    pub(crate) fn add_siw(&mut self, policy: Policy) -> Result<bool, Error> {
        let name = self.dir.file_name().unwrap_or_default().to_string_lossy();
        let folder = cache()?.join(format!("{PREFIX}{name}"));
        if !succeeds(&mut check(&folder)) {
            let _alone = lock("build", FlockOperation::LockExclusive)?;
            // Another run may have been faster.
            if !succeeds(&mut check(&folder)) {
                remove_leftovers()?;
                let made = self.make(&folder, policy);
                remove_leftovers()?;
                if !made? {
                    return Ok(false);
                }
            }
        }
        self.load = folder.join("load");
        Ok(true)
    }

    /// Puts all that such a guest loads into `folder`, when it is whole.
    fn make(&self, folder: &Path, policy: Policy) -> Result<bool, Error> {
        let temporary = cache()?.join(format!("tmp-{}", std::process::id()));
        let fresh = temporary.join("siw");
        let load = fresh.join("load");
        let what = || format!("cannot make {}", load.display());
        fs::create_dir_all(&load).context(what)?;
        let mut tree = Tree::read(&self.modules)?;
        let name = Driver::Siw.module();
        if tree.missing(Driver::Siw).contains(&name) {
            let Some(packages) = find(&self.release)? else {
                return Ok(false);
            };
            let built = build(&packages, &self.release, &temporary, policy)?;
            tree.add(name, built);
        }
        let modules = tree.load_order(Driver::Siw)?;
        for (index, (name, bytes)) in modules.into_iter().enumerate() {
            fs::write(load.join(format!("{index:02}-{name}.ko")), bytes).context(what)?;
        }
        seal(&fresh)?;
        let what = || format!("cannot put the module siw at {}", folder.display());
        if folder.exists() {
            fs::remove_dir_all(folder).context(what)?;
        }
        fs::rename(&fresh, folder).context(what)?;
        Ok(true)
    }
}

/// The kernels in the cache that a guest with `siw` can start.
pub(crate) fn with_siw() -> Vec<String> {
    let names = cache().into_iter().flat_map(|dir| entries(&dir));
    let names = names.filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        Some(name.strip_prefix(PREFIX)?.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The packages to build modules of a kernel; `None` if there are none any more.
fn find(release: &str) -> Result<Option<Apt>, Error> {
    if which("apt-get").is_none() || which("dpkg-deb").is_none() {
        return Err(Error::new(format!(
            "the kernel {release} has no module siw, and it can be built with the packages of \
             Debian only (apt-get, dpkg-deb): choose a kernel that has it, with --kernel"
        )));
    }
    let release = release.to_owned();
    Ok(Apt::find(Query::Module { release }).ok())
}

/// Builds the module below `dir`; its file.
fn build(packages: &Apt, release: &str, dir: &Path, policy: Policy) -> Result<PathBuf, Error> {
    packages::permit(
        &format!("the module siw for the kernel {release}"),
        &format!(
            "built once, from the kernel's headers and source ({} MB to fetch), in about a minute; \
             5 MB are kept in {}",
            packages.megabytes(),
            cache()?.display()
        ),
        policy,
    )?;
    packages::ensure(&[&MODULE_TOOLS[..], &[XZ]].concat(), policy)?;
    let (fetched, tree) = (dir.join("packages"), dir.join("tree"));
    for dir in [&fetched, &tree] {
        let made = fs::create_dir_all(dir);
        made.context(|| format!("cannot make the folder {}", dir.display()))?;
    }
    packages.download("fetching the kernel's headers and source", &fetched)?;
    for package in entries(&fetched) {
        let mut unpack = Command::new("dpkg-deb");
        bounded(unpack.arg("-x").arg(package).arg(&tree), "unpacking")?;
    }
    let headers = tree
        .join("usr/src")
        .join(format!("linux-headers-{release}"));
    redirect(&headers.join("Makefile"), &tree)?;
    let source = unpack_source(&tree)?;
    compile(&headers, &source)?;
    let module = source.join("siw.ko");
    // Fifteen sixteenths of it are for a debugger.
    bounded(
        Command::new("strip").arg("--strip-debug").arg(&module),
        "stripping",
    )?;
    let bytes = fs::read(&module).context(|| format!("cannot read {}", module.display()))?;
    let elf = Elf::parse(&bytes);
    let made_for = elf
        .and_then(|elf| elf.modinfo("vermagic"))
        .unwrap_or("nothing");
    if !is_for(made_for, release) {
        let why = format!("the module siw was built for {made_for}, not for {release}");
        return Err(Error::new(why));
    }
    Ok(module)
}

/// The headers' own makefile names the other half of them where they would be installed.
fn redirect(makefile: &Path, tree: &Path) -> Result<(), Error> {
    let what = || format!("cannot prepare {}", makefile.display());
    let text = fs::read_to_string(makefile).context(what)?;
    let there = format!("include {}/usr/src/", tree.display());
    fs::write(makefile, text.replace("include /usr/src/", &there)).context(what)
}

/// Unpacks the driver's part of the archive that the source package is; its folder.
fn unpack_source(tree: &Path) -> Result<PathBuf, Error> {
    let is_archive = |path: &PathBuf| path.to_string_lossy().contains(".tar.");
    let archive = entries(&tree.join("usr/src")).find(is_archive);
    let nothing = || Error::new("there is no driver siw in the kernel's source package");
    let to = tree.join("source");
    fs::create_dir_all(&to).context(|| format!("cannot make the folder {}", to.display()))?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--directory").arg(&to);
    tar.arg("--file").arg(archive.ok_or_else(nothing)?);
    tar.args(["--wildcards", &format!("*/{SOURCE}/*")]);
    bounded(&mut tar, "unpacking the kernel's source")?;
    let folder = entries(&to)
        .map(|top| top.join(SOURCE))
        .find(|dir| dir.is_dir());
    folder.ok_or_else(nothing)
}

fn compile(headers: &Path, source: &Path) -> Result<(), Error> {
    let mut make = Command::new("make");
    // These would change the build, or name another build's jobs.
    for name in [
        "ARCH",
        "CROSS_COMPILE",
        "KCFLAGS",
        "MAKEFLAGS",
        "MFLAGS",
        "MAKELEVEL",
    ] {
        make.env_remove(name);
    }
    make.env("LC_ALL", "C").arg("-C").arg(headers);
    make.arg(format!("M={}", source.display()));
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    make.arg(format!("-j{jobs}"));
    // Type information needs `pahole` and the kernel with its symbols; only tracers read it.
    make.args([
        "CONFIG_RDMA_SIW=m",
        "CONFIG_DEBUG_INFO_BTF=",
        "CONFIG_DEBUG_INFO_BTF_MODULES=",
    ]);
    let variables = fs::read_to_string(headers.join(".kernelvariables")).unwrap_or_default();
    if compiler(&variables).is_none_or(|name| which(name).is_none()) {
        make.arg("CC=gcc");
    }
    bounded(make.arg("modules"), "building the kernel module siw")
}

/// The compiler that the headers ask for, such as `gcc-12`.
fn compiler(variables: &str) -> Option<&str> {
    let line = variables.lines().find(|line| line.starts_with("CC ="))?;
    let at = line.rfind("gcc-")?;
    let name = &line[at..];
    name["gcc-".len()..]
        .parse::<u32>()
        .ok()
        .map(|_version| name)
}

/// Whether a module with this `vermagic` loads into the kernel `release`.
fn is_for(vermagic: &str, release: &str) -> bool {
    vermagic.split(' ').next() == Some(release)
}

fn bounded(command: &mut Command, label: &str) -> Result<(), Error> {
    run_quietly(command, label, LIMIT).map(drop)
}

#[cfg(test)]
mod tests {
    use super::{compiler, is_for, redirect};
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_compiler_of_the_kernel_is_found() {
        let variables = "override ARCH = x86\nCCACHE = ccache\n\
             CC = $(if $(DEBIAN_KERNEL_USE_CCACHE),$(CCACHE)) $(CROSS_COMPILE)gcc-12\n";
        assert_eq!(compiler(variables), Some("gcc-12"));
        assert_eq!(compiler("CC = gcc-x; rm\n"), None);
        assert_eq!(compiler(""), None);
    }

    #[test]
    fn a_module_of_another_kernel_is_not_taken() {
        let vermagic = "6.1.0-56-amd64 SMP preempt mod_unload modversions ";
        assert!(is_for(vermagic, "6.1.0-56-amd64"));
        assert!(!is_for(vermagic, "6.1.0-5"));
        assert!(!is_for("nothing", "6.1.0-56-amd64"));
    }

    #[test]
    fn headers_are_used_where_they_were_unpacked() {
        let dir = std::env::temp_dir().join(format!("soft-roce-siw-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("Makefile");
        fs::write(
            &file,
            "include /usr/src/linux-headers-6.1.0-56-common/Makefile\n",
        )
        .unwrap();
        redirect(&file, Path::new("/t")).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(
            text,
            "include /t/usr/src/linux-headers-6.1.0-56-common/Makefile\n"
        );
    }
}
