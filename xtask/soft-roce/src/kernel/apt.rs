//! Kernels and what modules for them are built from, out of Debian's and Ubuntu's packages: fetched
//! by apt, which checks their signatures, without root and without a change of the system.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::{Context as _, Error};
use crate::packages::system_names;
use crate::process;

use super::{LIMIT, cache};

/// Packages that a kernel may be spread over; its other dependencies are for the boot of real
/// machines.
const PARTS: [&str; 4] = [
    "linux-image-",
    "linux-binary-",
    "linux-modules-",
    "linux-base-",
];

/// Packages that a kernel's headers are spread over; their other dependency is a compiler.
const HEADER_PARTS: [&str; 2] = ["linux-headers-", "linux-kbuild-"];

/// Flavours that lack modules, or are no kernels.
const UNFIT: [&str; 6] = ["cloud", "-rt-", "dbg", "unsigned", "virtual", "kvm"];

/// A query to apt.
#[derive(Clone, Debug)]
pub(super) enum Query {
    /// The newest kernel of this name: a package, or the start of a version; else the default one.
    Kernel(Option<String>),
    /// The headers of the kernel with this release, and the source of its series.
    Module { release: String },
}

impl Query {
    /// The packages that are asked for.
    fn names(&self, lists: Lists) -> Result<Vec<String>, Error> {
        Ok(match self {
            Self::Kernel(Some(name)) if name.starts_with("linux-") => vec![name.clone()],
            Self::Kernel(Some(version)) => vec![by_version(lists, version)?],
            Self::Kernel(None) => vec![default_name()?],
            Self::Module { release } => {
                vec![format!("linux-headers-{release}"), source_name(release)]
            }
        })
    }

    /// Whether a package on which one of these depends is a part of what is asked for.
    fn is_part(&self, name: &str) -> bool {
        let parts: &[&str] = match self {
            Self::Kernel(_) => &PARTS,
            Self::Module { .. } => &HEADER_PARTS,
        };
        parts.iter().any(|part| name.starts_with(part))
    }
}

/// Packages that apt knows of.
#[derive(Debug)]
pub(super) struct Apt {
    query: Query,
    lists: Lists,
    packages: Vec<Package>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Package {
    name: String,
    version: String,
    depends: Vec<String>,
    /// In bytes, to be downloaded.
    size: u64,
}

/// Whose package lists are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lists {
    /// The system's.
    System,
    /// Our own, in the cache: the system's may be missing, or name what is gone.
    Own,
}

impl Apt {
    /// The packages for what is asked.
    pub(super) fn find(query: Query) -> Result<Self, Error> {
        match Self::find_in(Lists::System, query.clone()) {
            Ok(found) => Ok(found),
            Err(_not_listed) => {
                update()?;
                Self::find_in(Lists::Own, query)
            }
        }
    }

    /// The kernel's own package and its version.
    pub(super) fn version(&self) -> String {
        let is_image = |package: &&Package| package.name.starts_with("linux-image-");
        // The first may be a package that only names the second.
        let image = self.packages.iter().rfind(is_image);
        image.map_or_else(String::new, |package| {
            format!("{}_{}", package.name, package.version)
        })
    }

    /// How much is to be downloaded, in MB.
    pub(super) fn megabytes(&self) -> u64 {
        let bytes: u64 = self.packages.iter().map(|package| package.size).sum();
        bytes.div_ceil(1_000_000)
    }

    /// Downloads its packages, and returns their version.
    pub(super) fn download(&self, label: &str, dir: &Path) -> Result<String, Error> {
        if self.download_by(label, dir).is_ok() {
            return Ok(self.version());
        }
        // A superseded package is gone from the mirrors: newer lists name the newer one.
        update()?;
        let newer = Self::find_in(Lists::Own, self.query.clone())?;
        newer.download_by(label, dir)?;
        Ok(newer.version())
    }

    fn download_by(&self, label: &str, dir: &Path) -> Result<(), Error> {
        let names = self.packages.iter().map(|package| package.name.as_str());
        let mut get = apt(self.lists, "apt-get")?;
        let get = get.arg("download").args(names).current_dir(dir);
        process::run_quietly(get, label, LIMIT).map(drop)
    }

    fn find_in(lists: Lists, query: Query) -> Result<Self, Error> {
        let mut packages = Vec::new();
        let mut queue = query.names(lists)?;
        let mut seen = BTreeSet::new();
        while let Some(name) = queue.pop() {
            if seen.insert(name.clone()) {
                let package = show(lists, &name)?;
                let parts = package.depends.iter().filter(|name| query.is_part(name));
                queue.extend(parts.cloned());
                packages.push(package);
            }
        }
        Ok(Self {
            query,
            lists,
            packages,
        })
    }
}

/// The package with the source of a kernel's series: `linux-source-6.1` of `6.1.0-56-amd64`.
fn source_name(release: &str) -> String {
    let numbers: Vec<&str> = release.splitn(3, '.').take(2).collect();
    format!("linux-source-{}", numbers.join("."))
}

fn default_name() -> Result<String, Error> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if is_ubuntu(&release) {
        return Ok("linux-image-generic".to_owned());
    }
    let mut dpkg = Command::new("dpkg");
    let architecture = process::output(dpkg.arg("--print-architecture"))?;
    Ok(format!("linux-image-{}", architecture.trim()))
}

/// Whether a system is Ubuntu, or made of its packages.
fn is_ubuntu(os_release: &str) -> bool {
    system_names(os_release).any(|name| name == "ubuntu")
}

fn by_version(lists: Lists, version: &str) -> Result<String, Error> {
    let mut list = apt(lists, "apt-cache")?;
    let names = process::output(list.args(["pkgnames", "linux-image-"]))?;
    let found = newest(names.lines(), version);
    found.map(str::to_owned).ok_or_else(|| {
        Error::new(format!(
            "apt knows of no kernel {version}: is the part of the distribution that has it \
             (such as backports) among apt's sources?"
        ))
    })
}

/// The kernel with the highest number among those whose version starts with `version`.
fn newest<'a>(names: impl Iterator<Item = &'a str>, version: &str) -> Option<&'a str> {
    let fits = |name: &&str| {
        let rest = name.strip_prefix("linux-image-");
        let rest = rest.and_then(|rest| rest.strip_prefix(version));
        let whole = rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
        whole && !UNFIT.iter().any(|flavour| name.contains(flavour))
    };
    names.filter(fits).max_by_key(|name| numbers(name))
}

fn numbers(name: &str) -> Vec<u64> {
    let digits = name.split(|c: char| !c.is_ascii_digit());
    digits.filter_map(|digits| digits.parse().ok()).collect()
}

fn show(lists: Lists, name: &str) -> Result<Package, Error> {
    let mut cache = apt(lists, "apt-cache")?;
    cache.args(["show", "--no-all-versions", name]);
    let quiet = process::quietly(&mut cache, "looking for a kernel", LIMIT)?;
    let package = quiet.success().then(|| parse(&quiet.output)).flatten();
    package.ok_or_else(|| {
        Error::new(format!(
            "apt knows of no package {name}: see --kernel, or run `apt-get update`"
        ))
    })
}

/// The package that a stanza of `apt-cache show` describes.
fn parse(stanza: &str) -> Option<Package> {
    let field = |name: &str| {
        let lines = stanza.lines();
        let mut values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        values.next()
    };
    let depends = field("Depends").unwrap_or_default().split(',');
    let depends = depends.filter_map(|alternatives| {
        // The first of `a (>= 1) | b` is enough: a kernel's own parts have no alternatives.
        let name = alternatives.split_whitespace().next()?;
        Some(name.split(':').next().unwrap_or(name).to_owned())
    });
    Some(Package {
        name: field("Package")?.to_owned(),
        version: field("Version")?.to_owned(),
        depends: depends.collect(),
        size: field("Size")
            .and_then(|size| size.parse().ok())
            .unwrap_or(0),
    })
}

/// Fetches package lists of our own, for the sources that the system has.
fn update() -> Result<(), Error> {
    let mut update = apt(Lists::Own, "apt-get")?;
    update.arg("update");
    // One source that cannot be reached fails the whole command; what is missing shows later.
    process::quietly(&mut update, "fetching package lists", LIMIT)?;
    Ok(())
}

/// An apt command that asks nothing and changes nothing of the system.
fn apt(lists: Lists, program: &str) -> Result<Command, Error> {
    let mut command = Command::new(program);
    command
        .env("LC_ALL", "C")
        .env("DEBIAN_FRONTEND", "noninteractive");
    // Without this, root's downloads are made by a user who cannot write to the cache.
    let mut options = vec![
        "APT::Sandbox::User=root".to_owned(),
        "Acquire::Retries=2".to_owned(),
        "Acquire::http::Timeout=30".to_owned(),
        "Acquire::https::Timeout=30".to_owned(),
    ];
    if lists == Lists::Own {
        let own = cache()?.join("apt");
        for dir in ["lists/partial", "cache/archives/partial"] {
            let dir = own.join(dir);
            let made = fs::create_dir_all(&dir);
            made.context(|| format!("cannot make the folder {}", dir.display()))?;
        }
        let own = own.display();
        options.extend([
            format!("Dir::State::lists={own}/lists"),
            format!("Dir::Cache={own}/cache"),
        ]);
    }
    for option in options {
        command.args(["-o", &option]);
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    #[test]
    fn systems_made_of_ubuntu_have_its_kernel() {
        use super::is_ubuntu;
        assert!(is_ubuntu("NAME=Ubuntu\nID=ubuntu\nID_LIKE=debian\n"));
        assert!(is_ubuntu("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_ubuntu("ID=debian\nHOME_URL=ubuntu\n"));
    }

    use super::{Query, newest, parse, source_name};

    #[test]
    fn a_stanza_is_read() {
        let package = parse(
            "Package: linux-image-6.1.0-56-amd64\nVersion: 6.1.192-2\n\
             Size: 70600000\nDepends: kmod, linux-base (>= 4.3~), initramfs-tools (>= 0.120) | dracut, \
             linux-modules-6.1.0-56-amd64:amd64 (= 6.1.192-2)\nDescription: Depends: x\n",
        );
        let package = package.unwrap();
        assert_eq!(package.version, "6.1.192-2");
        assert_eq!(package.size, 70_600_000);
        let names = [
            "kmod",
            "linux-base",
            "initramfs-tools",
            "linux-modules-6.1.0-56-amd64",
        ];
        assert_eq!(package.depends, names);
        assert_eq!(parse("N: nothing found"), None);
    }

    #[test]
    fn a_kernel_s_source_is_that_of_its_series() {
        assert_eq!(source_name("6.1.0-56-amd64"), "linux-source-6.1");
        assert_eq!(source_name("6.12.117+deb12-amd64"), "linux-source-6.12");
        assert_eq!(source_name("7"), "linux-source-7");
    }

    #[test]
    fn headers_are_fetched_without_a_compiler() {
        let release = "6.1.0-56-amd64".to_owned();
        let query = Query::Module { release };
        for name in ["linux-headers-6.1.0-56-common", "linux-kbuild-6.1"] {
            assert!(query.is_part(name), "{name}");
        }
        for name in [
            "linux-compiler-gcc-12-x86",
            "gcc-12",
            "linux-image-6.1.0-56-amd64",
            "pahole",
        ] {
            assert!(!query.is_part(name), "{name}");
        }
    }

    #[test]
    fn only_the_kernels_own_parts_are_fetched() {
        let query = Query::Kernel(None);
        for name in [
            "linux-image-6.1.0-56-amd64",
            "linux-modules-extra-6.8.0-50-generic",
        ] {
            assert!(query.is_part(name), "{name}");
        }
        for name in ["linux-base", "linux-firmware", "kmod"] {
            assert!(!query.is_part(name), "{name}");
        }
    }

    #[test]
    fn the_newest_fit_kernel_of_a_version_is_chosen() {
        let names = [
            "linux-image-6.1.0-9-amd64",
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-6.1.0-58-rt-amd64",
            "linux-image-6.1.0-59-amd64-dbg",
            "linux-image-6.12.95+deb12-amd64",
            "linux-image-amd64",
        ];
        let newest = |version| newest(names.into_iter(), version);
        assert_eq!(newest("6.1"), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(newest("6.12"), Some("linux-image-6.12.95+deb12-amd64"));
        assert_eq!(newest("7"), None);
    }
}
