//! The memory of this process: why the device cannot have a part of it, in the kernel's list of mappings.

use std::fs;

/// Why memory at this address cannot be registered, by `/proc/self/maps`; `None` if the list has no reason.
pub(super) fn obstacle(start: u64, len: u64, writes: bool) -> Option<String> {
    if cfg!(miri) {
        // The list is not that of its memory.
        return None;
    }
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    obstacle_in(&maps, start, len, writes)
}

fn obstacle_in(maps: &str, start: u64, len: u64, writes: bool) -> Option<String> {
    let end = start.checked_add(len)?;
    let (mut at, mut is_known) = (start, false);
    for mapping in maps.lines().filter_map(Mapping::parse) {
        is_known = true;
        if mapping.end <= at {
            continue;
        }
        if mapping.start > at {
            break;
        }
        if let Some(why) = mapping.obstacle(writes) {
            return Some(why);
        }
        at = mapping.end;
        if at >= end {
            return None;
        }
    }
    let left = end - at;
    is_known.then(|| format!("{left} bytes from {at:#x} on are not mapped"))
}

/// A line of the list: `start-end perms offset device inode path`.
struct Mapping<'m> {
    start: u64,
    end: u64,
    perms: &'m str,
    path: &'m str,
}

impl<'m> Mapping<'m> {
    fn parse(line: &'m str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let number = |hex| u64::from_str_radix(hex, 16).ok();
        Some(Self {
            start: number(start)?,
            end: number(end)?,
            perms: fields.next()?,
            path: fields.nth(3).unwrap_or_default().trim(),
        })
    }

    fn obstacle(&self, writes: bool) -> Option<String> {
        let Self { perms, path, .. } = *self;
        let is_memory = [
            "/dev/shm/",
            "/dev/zero",
            "/dev/hugepages",
            "/memfd:",
            "/SYSV",
            "/anon_hugepage",
        ];
        let is_memory = is_memory.iter().any(|memory| path.starts_with(memory));
        let start = self.start;
        if path.starts_with("/dev/") && !is_memory {
            return Some(format!(
                "the memory is that of the device {path}, which cannot be pinned: export it as a dmabuf, and \
                 register that with `reg_dmabuf_mr`"
            ));
        }
        if !perms.starts_with('r') {
            return Some(format!("the mapping at {start:#x} is not readable"));
        }
        if writes && !perms.starts_with("rw") {
            return Some(format!(
                "the mapping at {start:#x} is read-only: register it without LOCAL_WRITE, or make it writable"
            ));
        }
        (writes && perms.ends_with('s') && path.starts_with('/') && !is_memory).then(|| {
            format!(
                "the memory is a shared mapping of the file {path}, which Linux since 6.5 does not let a device \
                 write to: map it with MAP_PRIVATE, use a file in /dev/shm or of `memfd_create`, or register it \
                 without LOCAL_WRITE"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        1000-2000 r--p 00000000 08:01 99 /usr/lib/libc.so.6\n\
        2000-4000 rw-p 00000000 00:00 0 \n\
        4000-5000 rw-s 00000000 08:01 77 /var/db/table with spaces\n\
        6000-7000 rw-s 00000000 00:01 33 /dev/shm/table\n\
        7000-8000 rw-s 00000000 00:01 33 /memfd:table (deleted)\n\
        8000-9000 rw-s fb000000 00:05 44 /dev/nvidia0\n\
        9000-a000 ---p 00000000 00:00 0 \n\
        ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";

    fn why(start: u64, len: u64) -> String {
        obstacle_in(MAPS, start, len, true).unwrap_or_default()
    }

    #[test]
    fn each_kind_of_mapping_that_cannot_be_pinned_is_named() {
        assert!(why(0x1800, 0x10).contains("is read-only"));
        assert!(why(0x2000, 0x2001).contains("the file /var/db/table with spaces,"));
        assert!(why(0x8000, 8).contains("the device /dev/nvidia0,"));
        assert!(why(0x9800, 8).contains("is not readable"));
        // A part is mapped, and nothing is.
        assert_eq!(why(0x4f00, 0x200), why(0x4000, 1));
        assert_eq!(
            obstacle_in(MAPS, 0x4f00, 0x200, false).unwrap(),
            "256 bytes from 0x5000 on are not mapped"
        );
        assert_eq!(why(0xb000, 16), "16 bytes from 0xb000 on are not mapped");
    }

    #[test]
    fn memory_that_can_be_pinned_has_no_obstacle() {
        for start in [0x2000, 0x3fff, 0x6000, 0x7000] {
            assert_eq!(obstacle_in(MAPS, start, 1, true), None, "{start:#x}");
        }
        // To read from, a file is as good as other memory.
        for start in [0x1000, 0x4000] {
            assert_eq!(obstacle_in(MAPS, start, 1, false), None, "{start:#x}");
        }
        assert_eq!(obstacle_in("", 0x2000, 1, true), None);
        assert_eq!(obstacle_in(MAPS, u64::MAX, 2, true), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has mappings of its own")]
    fn own_memory_has_no_obstacle() {
        let bytes = vec![0_u8; 1 << 20];
        let len = bytes.len() as u64;
        assert_eq!(obstacle(bytes.as_ptr().addr() as u64, len, true), None);
        assert!(obstacle(16, 16, true).unwrap().contains("not mapped"));
    }
}
