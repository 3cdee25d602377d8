//! Why libibverbs cannot use a device that the kernel has: read from sysfs and the installed providers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The largest ABI of the kernel that libibverbs knows, in all of its versions (`IB_USER_VERBS_MAX_ABI_VERSION`).
const MAX_ABI: u32 = 6;

/// The devices that the kernel has, each with the reason if it is known: `mlx5_0 (its node … cannot be opened)`.
pub(crate) fn kernel_devices() -> Vec<String> {
    Machine(PathBuf::from("/")).kernel_devices()
}

/// Where the root of the file system is.
struct Machine(PathBuf);

impl Machine {
    fn kernel_devices(&self) -> Vec<String> {
        let names = names_in(&self.0.join("sys/class/infiniband"));
        let explained = names.into_iter().map(|name| match self.obstacle(&name) {
            Some(why) => format!("{name} ({why})"),
            None => name,
        });
        explained.collect()
    }

    fn obstacle(&self, name: &str) -> Option<String> {
        let class = self.0.join("sys/class/infiniband_verbs");
        let abi = fs::read_to_string(class.join("abi_version"));
        if let Some(abi) = abi.ok().and_then(|abi| abi.trim().parse::<u32>().ok())
            && abi > MAX_ABI
        {
            return Some(format!(
                "the kernel's ABI is {abi}, and libibverbs knows those up to {MAX_ABI}: install a newer rdma-core"
            ));
        }
        let is_of = |uverbs: &String| {
            let device = fs::read_to_string(class.join(uverbs).join("ibdev"));
            device.is_ok_and(|device| device.trim() == name)
        };
        let Some(uverbs) = names_in(&class).into_iter().find(is_of) else {
            return Some("it has no node: load the kernel module ib_uverbs".into());
        };
        let node = self.0.join("dev/infiniband").join(&uverbs);
        if let Err(error) = File::options().read(true).write(true).open(&node) {
            let node = node.display();
            return Some(format!(
                "its node {node} cannot be opened: {error}; check the udev rule, the group, or `--device` of the \
                 container"
            ));
        }
        let providers = self.providers();
        if providers.is_empty() {
            return Some(
                "no provider is installed: install ibverbs-providers (Debian, Ubuntu) or rdma-core (Fedora, RHEL)"
                    .into(),
            );
        }
        let lost = providers
            .iter()
            .filter(|provider| !self.has_library(provider))
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        // It may be that of another device.
        let lost = match &lost[..] {
            "" => String::new(),
            lost => format!(
                "; no library was found of the provider {lost}: install ibverbs-providers or rdma-core again"
            ),
        };
        let abi = fs::read_to_string(class.join(uverbs).join("abi_version")).ok()?;
        let abi = abi.trim();
        Some(format!(
            "no provider that is installed and can be loaded is for it, with its ABI {abi}: install a newer rdma-core \
             or the vendor's; libibverbs prints on stderr which library it could not load{lost}"
        ))
    }

    /// The providers that the configuration of libibverbs names.
    fn providers(&self) -> Vec<String> {
        let config = self.0.join("etc/libibverbs.d");
        let files = names_in(&config).into_iter().map(|file| config.join(file));
        let lines = files.flat_map(|file| {
            fs::read_to_string(file)
                .unwrap_or_default()
                .lines()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        });
        let names = lines.filter_map(|line| Some(line.strip_prefix("driver ")?.trim().to_owned()));
        names.collect()
    }

    /// Whether the library of a provider is where distributions have it.
    fn has_library(&self, provider: &str) -> bool {
        if provider.contains('/') {
            // A path, which has the version of the library at its end.
            return true;
        }
        let starts = format!("lib{provider}-rdmav");
        let lib = self.0.join("usr/lib");
        let below = names_in(&lib)
            .into_iter()
            .map(|arch| lib.join(arch).join("libibverbs"));
        let others = ["usr/lib/libibverbs", "usr/lib64/libibverbs"].map(|path| self.0.join(path));
        let mut folders = below
            .chain(others)
            .filter(|folder| folder.is_dir())
            .peekable();
        // With libibverbs elsewhere, nothing is known.
        folders.peek().is_none()
            || folders.any(|folder| {
                names_in(&folder)
                    .iter()
                    .any(|file| file.starts_with(&starts))
            })
    }
}

/// The names in a directory, sorted; none if it cannot be read.
fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no files of its own")]
    fn each_obstacle_has_a_text_of_its_own() {
        let root =
            std::env::temp_dir().join(format!("verbs-core-providers-{}", std::process::id()));
        drop(fs::remove_dir_all(&root));
        let machine = Machine(root.clone());
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let why = |words: &str| {
            let found = machine.kernel_devices();
            assert!(
                matches!(&found[..], [one] if one.starts_with("mlx5_0 (") && one.contains(words)),
                "{found:?}"
            );
        };
        assert_eq!(machine.kernel_devices(), [""; 0]);
        write("sys/class/infiniband/mlx5_0/node_guid", "");
        why("ib_uverbs");
        write("sys/class/infiniband_verbs/abi_version", "6\n");
        write("sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_0\n");
        write("sys/class/infiniband_verbs/uverbs3/abi_version", "9\n");
        why("dev/infiniband/uverbs3 cannot be opened: No such file");
        write("dev/infiniband/uverbs3", "");
        why("no provider is installed");
        write("etc/libibverbs.d/mlx5.driver", "driver mlx5\n");
        write("usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "");
        why("no library was found of the provider mlx5");
        write("usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so", "");
        why("with its ABI 9");
        write("sys/class/infiniband_verbs/abi_version", "7\n");
        why("the kernel's ABI is 7");
        fs::remove_dir_all(&root).unwrap();
    }
}
