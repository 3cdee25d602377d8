//! The control groups of this process, and their limits on huge pages.

use std::fs;
use std::path::{Path, PathBuf};

/// The lowest limit on huge pages of this size, in bytes, of this process's control group and those above it, and
/// the file that has it; `None` if there is none. `counted` is what is limited: `""` for pages in use, `"rsvd."` for
/// reserved ones.
pub(super) fn limit_of_huge_pages(page_size: u64, counted: &str) -> Option<(PathBuf, u64)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_below(Path::new("/sys/fs/cgroup"), &groups, page_size, counted)
}

fn limit_below(
    mount: &Path,
    groups: &str,
    page_size: u64,
    counted: &str,
) -> Option<(PathBuf, u64)> {
    let size = match page_size {
        gib if gib >= 1 << 30 => format!("{}GB", gib >> 30),
        mib if mib >= 1 << 20 => format!("{}MB", mib >> 20),
        kib => format!("{}KB", kib >> 10),
    };
    let limits = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        // Version 2 has one tree of groups, whose line has no controllers; version 1 one for each.
        let (mount, limit) = if controllers.is_empty() {
            (mount.to_owned(), "max")
        } else {
            let of_pages = controllers.split(',').any(|name| name == "hugetlb");
            of_pages.then(|| (mount.join("hugetlb"), "limit_in_bytes"))?
        };
        let file = format!("hugetlb.{size}.{counted}{limit}");
        let group = mount.join(group.trim_start_matches('/'));
        let above = group
            .ancestors()
            .take_while(|group| group.starts_with(&mount));
        let limits = above.filter_map(|group| {
            let path = group.join(&file);
            let limit: u64 = fs::read_to_string(&path).ok()?.trim().parse().ok()?;
            // Version 1 has a number that is close to the largest for no limit.
            (limit < 1 << 62).then_some((path, limit))
        });
        limits.min_by_key(|(_, limit)| *limit)
    });
    limits.min_by_key(|(_, limit)| *limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no files of its own")]
    fn lowest_limit_of_all_groups_above_is_found() {
        let mount = std::env::temp_dir().join(format!("verbs-core-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = mount.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("pods/hugetlb.2MB.max", "4194304\n");
        write("pods/one/hugetlb.2MB.max", "max\n");
        write("pods/one/hugetlb.1GB.max", "0\n");
        write("hugetlb/old/hugetlb.2MB.limit_in_bytes", "2097152\n");
        write(
            "hugetlb/hugetlb.2MB.limit_in_bytes",
            "9223372036854771712\n",
        );
        let limit = |groups, page_size| {
            let (path, limit) = limit_below(&mount, groups, page_size, "")?;
            let path = path.strip_prefix(&mount).unwrap();
            Some((path.to_str().unwrap().to_owned(), limit))
        };
        let of_pods = Some(("pods/hugetlb.2MB.max".to_owned(), 4 << 20));
        assert_eq!(limit("0::/pods/one\n", 2 << 20), of_pods);
        let of_one = Some(("pods/one/hugetlb.1GB.max".to_owned(), 0));
        assert_eq!(limit("0::/pods/one\n", 1 << 30), of_one);
        let old = Some(("hugetlb/old/hugetlb.2MB.limit_in_bytes".to_owned(), 2 << 20));
        assert_eq!(
            limit("4:cpu:/old\n3:hugetlb,rdma:/old\n0::/\n", 2 << 20),
            old
        );
        for none in ["", "0::/\n", "0::/pods/two/..\n", "4:cpu:/pods\n", "x"] {
            let found = limit(none, 64 << 10);
            assert_eq!(found, None, "{none}");
        }
        fs::remove_dir_all(&mount).unwrap();
    }
}
