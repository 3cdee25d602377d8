//! Kernel modules: which files a guest needs, and in which order they load.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Context as _, Error};

use super::unpack;
use crate::driver::Driver;
use crate::elf::Elf;

/// Modules that the guest loads, without their dependencies and its driver.
///
/// A kernel may have any of them built in. Those that are marked as optional may also not exist.
const WANTED: [(&str, bool); 12] = [
    ("virtio_mmio", true),
    ("virtio_pci", true),
    ("virtio_console", true),
    ("9pnet_virtio", true),
    ("9p", true),
    ("overlay", true),
    ("veth", true),
    ("virtio_net", true),
    ("ib_uverbs", true),
    ("rdma_ucm", false),
    ("sch_netem", false),
    ("sch_tbf", false),
];

/// [`WANTED`] and the driver.
fn wanted(driver: Driver) -> Vec<(&'static str, bool)> {
    // The checksum that the driver asks for by algorithm; no module in newer kernels.
    let checksum = match driver {
        Driver::Rxe => "crc32_generic",
        Driver::Siw => "crc32c_generic",
    };
    [&WANTED[..], &[(checksum, false), (driver.module(), true)]].concat()
}

/// The modules of one kernel, `/lib/modules/RELEASE`.
#[derive(Debug)]
pub(super) struct Tree {
    dir: PathBuf,
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

impl Tree {
    /// Looks for all modules below `dir`.
    pub(super) fn read(dir: &Path) -> Result<Self, Error> {
        let mut files = BTreeMap::new();
        let mut dirs = vec![dir.to_owned()];
        while let Some(dir) = dirs.pop() {
            let what = || format!("cannot read the folder {}", dir.display());
            for entry in fs::read_dir(&dir).context(what)? {
                let entry = entry.context(what)?;
                let kind = entry.file_type().context(what)?;
                let path = entry.path();
                if kind.is_dir() {
                    dirs.push(path);
                } else if let Some(name) = module_name(&path) {
                    files.insert(name, path);
                }
            }
        }
        let listed = fs::read_to_string(dir.join("modules.builtin")).unwrap_or_default();
        let built_in = listed.lines().map(Path::new);
        let built_in = built_in.filter_map(module_name).collect();
        let dir = dir.to_owned();
        Ok(Self {
            dir,
            files,
            built_in,
        })
    }

    /// Modules that a guest with this driver requires, and this kernel lacks.
    pub(super) fn missing(&self, driver: Driver) -> Vec<&'static str> {
        let needed = wanted(driver).into_iter().filter(|(_, needed)| *needed);
        let names = needed.map(|(name, _)| name);
        names.filter(|&name| !self.has(name)).collect()
    }

    /// Adds a module from elsewhere.
    pub(super) fn add(&mut self, name: &str, file: PathBuf) {
        self.files.insert(name.to_owned(), file);
    }

    fn has(&self, name: &str) -> bool {
        self.files.contains_key(name) || self.built_in.contains(name)
    }

    /// All modules that a guest with this driver loads, unpacked, in an order that works.
    pub(super) fn load_order(&self, driver: Driver) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let missing = self.missing(driver);
        if !missing.is_empty() {
            return Err(Error::new(format!(
                "the kernel {} has no module {}: it cannot be a soft-RoCE guest (cloud kernels \
                 cannot); choose another with --kernel",
                self.dir.file_name().unwrap_or_default().display(),
                missing.join(", ")
            )));
        }
        let mut unpacked: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let wanted: Vec<&str> = wanted(driver).into_iter().map(|(name, _)| name).collect();
        let order = order(&wanted, |name| {
            let Some(file) = self.files.get(name) else {
                return Ok(None);
            };
            let bytes = unpack::file(file)?;
            let what = || Error::new(format!("{} is no kernel module", file.display()));
            let depends = Elf::parse(&bytes)
                .map(|elf| depends(&elf))
                .ok_or_else(what)?;
            unpacked.insert(name.to_owned(), bytes);
            Ok(Some(depends))
        })?;
        let with_bytes = order.into_iter().filter_map(|name| {
            let bytes = unpacked.remove(&name)?;
            Some((name, bytes))
        });
        Ok(with_bytes.collect())
    }
}

/// The name that the kernel has for a module's file: `sch-x.ko.xz` is `sch_x`.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let (stem, packed) = name.split_once(".ko")?;
    matches!(packed, "" | ".xz" | ".zst" | ".gz").then(|| stem.replace('-', "_"))
}

fn depends(elf: &Elf<'_>) -> Vec<String> {
    let names = elf.modinfo("depends").unwrap_or_default().split(',');
    names
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

/// `wanted` and all that they depend on, each after what it depends on.
///
/// `depends` returns the dependencies of a module, or `None` if there is no such file to load.
fn order(
    wanted: &[&str],
    mut depends: impl FnMut(&str) -> Result<Option<Vec<String>>, Error>,
) -> Result<Vec<String>, Error> {
    enum Step {
        Enter(String),
        Leave(String),
    }
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    let enter = |name: &&str| Step::Enter((*name).to_owned());
    let mut steps: Vec<Step> = wanted.iter().rev().map(enter).collect();
    while let Some(step) = steps.pop() {
        match step {
            Step::Enter(name) => {
                if !seen.insert(name.clone()) {
                    continue;
                }
                if let Some(first) = depends(&name)? {
                    steps.push(Step::Leave(name));
                    steps.extend(first.into_iter().rev().map(Step::Enter));
                }
            }
            Step::Leave(name) => order.push(name),
        }
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::{Driver, Tree, module_name, order, wanted};
    use std::fs;
    use std::path::Path;

    fn depends(name: &str) -> Option<Vec<String>> {
        let names: &[&str] = match name {
            "rdma_rxe" => &["ib_uverbs", "udp_tunnel", "ib_core"],
            "ib_uverbs" => &["ib_core"],
            "udp_tunnel" | "ib_core" => &[],
            _ => return None,
        };
        Some(names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn a_module_comes_after_what_it_depends_on() {
        let wanted = ["built_in", "rdma_rxe", "ib_uverbs"];
        let order = order(&wanted, |name| Ok(depends(name))).unwrap();
        assert_eq!(order, ["ib_core", "ib_uverbs", "udp_tunnel", "rdma_rxe"]);
    }

    #[test]
    fn a_circle_of_dependencies_ends() {
        let circle = |name: &str| Ok(Some(vec![if name == "a" { "b" } else { "a" }.to_owned()]));
        assert_eq!(order(&["a"], circle).unwrap(), ["b", "a"]);
    }

    #[test]
    fn names_are_the_kernels() {
        let name = |path| module_name(Path::new(path));
        assert_eq!(
            name("kernel/a/virtio-rng.ko.xz").as_deref(),
            Some("virtio_rng")
        );
        assert_eq!(name("9p.ko").as_deref(), Some("9p"));
        assert_eq!(name("modules.order"), None);
        assert_eq!(name("x.kox"), None);
    }

    #[test]
    fn checksum_is_loaded_before_the_driver_that_asks_for_it() {
        for driver in Driver::ALL {
            let wanted = wanted(driver);
            let place = |name: &str| wanted.iter().position(|(known, _)| known.starts_with(name));
            assert!(place("crc32").unwrap() < place(driver.module()).unwrap());
        }
    }

    #[test]
    fn modules_that_a_kernel_lacks_are_named() {
        let dir = std::env::temp_dir().join(format!("soft-roce-modules-{}", std::process::id()));
        fs::create_dir_all(dir.join("kernel")).unwrap();
        fs::write(dir.join("kernel/rdma_rxe.ko"), "").unwrap();
        fs::write(
            dir.join("modules.builtin"),
            "kernel/fs/overlayfs/overlay.ko\n",
        )
        .unwrap();
        let mut tree = Tree::read(&dir).unwrap();
        let missing = tree.missing(Driver::Rxe);
        let without = tree.missing(Driver::Siw);
        tree.add("siw", dir.join("siw.ko"));
        let with = tree.missing(Driver::Siw);
        fs::remove_dir_all(&dir).unwrap();
        assert!(without.contains(&"siw") && !with.contains(&"siw"));
        assert!(missing.contains(&"9p"));
        assert!(!missing.contains(&"overlay"));
        assert!(!missing.contains(&"rdma_rxe"));
        assert!(!missing.contains(&"crc32_generic"));
    }
}
