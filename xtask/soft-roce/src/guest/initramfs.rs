//! The guest's first file system: this very program as its init, the libraries that it is linked
//! to, and the kernel modules.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::error::{Context as _, Error};
use crate::{helper, process};

use crate::elf::Elf;

/// An archive in the one format that the kernel unpacks, "newc" cpio.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    dirs: Vec<PathBuf>,
    count: usize,
}

const FILE: u32 = 0o100_755;
const DIR: u32 = 0o040_755;
const CHAR_DEVICE: u32 = 0o020_600;

impl Archive {
    /// An archive with what every guest needs: init with its libraries, and a console.
    pub(super) fn with_init() -> Result<Self, Error> {
        let mut archive = Self::default();
        archive.device(Path::new("/dev/console"), (5, 1));
        let program = helper::own_exe()?;
        let bytes = read(&program)?;
        let elf = Elf::parse(&bytes);
        let elf = elf.ok_or_else(|| Error::new(format!("{} is no ELF file", program.display())))?;
        archive.file(Path::new("/init"), &elf.loaded());
        let Some(interpreter) = elf.interpreter() else {
            return Ok(archive);
        };
        let mut list = Command::new(interpreter);
        let listed = process::output(list.arg("--list").arg(&program))?;
        let libraries = libraries(&listed);
        let loader = PathBuf::from(interpreter);
        for path in libraries.iter().chain([&loader]) {
            let bytes = read(path)?;
            let loaded = Elf::parse(&bytes).map_or_else(|| bytes.clone(), |elf| elf.loaded());
            archive.file(path, &loaded);
        }
        Ok(archive)
    }

    /// Adds a file, and the folders above it.
    pub(super) fn file(&mut self, path: &Path, content: &[u8]) {
        self.parents(path);
        self.entry(path, FILE, (0, 0), content);
    }

    /// The finished archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry(Path::new("/TRAILER!!!"), 0, (0, 0), &[]);
        self.bytes
    }

    fn device(&mut self, path: &Path, number: (u32, u32)) {
        self.parents(path);
        self.entry(path, CHAR_DEVICE, number, &[]);
    }

    fn parents(&mut self, path: &Path) {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        for dir in above {
            if dir.parent().is_some() && !self.dirs.iter().any(|known| known == dir) {
                self.dirs.push(dir.to_owned());
                self.entry(dir, DIR, (0, 0), &[]);
            }
        }
    }

    fn entry(&mut self, path: &Path, mode: u32, device: (u32, u32), content: &[u8]) {
        let names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy()),
            _ => None,
        });
        let name = names.collect::<Vec<_>>().join("/");
        self.count += 1;
        let header = format!(
            "070701{:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}",
            self.count,
            0, // uid
            0, // gid
            1, // links
            0, // time
            content.len(),
            0, // device, major and minor
            0,
            device.0,
            device.1,
            name.len() + 1,
            0, // checksum, unused in this format
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    /// Names and contents start at multiples of four.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).context(|| format!("cannot read {}", path.display()))
}

/// The files in what `ld.so --list` prints: `libc.so.6 => /lib/libc.so.6 (0x…)`.
fn libraries(listed: &str) -> Vec<PathBuf> {
    let lines = listed.lines();
    let found = lines.filter_map(|line| {
        let (_, found) = line.split_once(" => ")?;
        let (path, _) = found.rsplit_once(" (")?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::{Archive, libraries};
    use std::path::{Path, PathBuf};

    fn names(mut archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut all = Vec::new();
        loop {
            assert_eq!(&archive[..6], b"070701");
            let field = |at: usize| {
                let digits = str::from_utf8(&archive[6 + 8 * at..14 + 8 * at]).unwrap();
                u32::from_str_radix(digits, 16).unwrap()
            };
            let (mode, len, name_len) = (field(1), field(6), field(11));
            let (len, name_len) = (len.try_into().unwrap(), name_len.try_into().unwrap());
            let name_len: usize = name_len;
            let len: usize = len;
            let name = String::from_utf8(archive[110..110 + name_len - 1].to_vec()).unwrap();
            let start = (110 + name_len).next_multiple_of(4);
            let content = archive[start..start + len].to_vec();
            archive = &archive[(start + len).next_multiple_of(4)..];
            if name == "TRAILER!!!" {
                assert!(archive.is_empty());
                return all;
            }
            all.push((name, mode, content));
        }
    }

    #[test]
    fn folders_come_before_their_files_and_only_once() {
        let mut archive = Archive::default();
        archive.file(Path::new("/a/b/one"), b"1");
        archive.file(Path::new("/a/b/two"), b"22222");
        archive.device(Path::new("/dev/console"), (5, 1));
        let all = names(&archive.finish());
        let order: Vec<&str> = all.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(
            order,
            ["a", "a/b", "a/b/one", "a/b/two", "dev", "dev/console"]
        );
        assert_eq!(all[3].2, b"22222");
        assert_eq!((all[0].1, all[2].1, all[5].1), (0o40755, 0o100755, 0o20600));
    }

    #[test]
    fn init_comes_with_its_libraries() {
        let archive = Archive::with_init().unwrap();
        let all = names(&archive.finish());
        assert!(all.iter().any(|(name, ..)| name == "init"));
        let libc = all.iter().any(|(name, ..)| name.contains("libc.so"));
        let loader = all.iter().any(|(name, ..)| name.contains("ld-"));
        assert_eq!(libc, loader);
    }

    #[test]
    fn libraries_listed_by_the_loader_are_found() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd5f9f2000)\n\
             \tlinux-gate.so.1 =>  (0x00007ffd5f9f2000)\n\
             \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f86)\n\
             \tlibc.so.6 => /opt/my libs/libc.so.6 (0x00007f86)\n\
             \tlibgone.so => not found\n\
             \t/lib64/ld-linux-x86-64.so.2 (0x00007f86)\n";
        let expected = [
            "/lib/x86_64-linux-gnu/libgcc_s.so.1",
            "/opt/my libs/libc.so.6",
        ];
        assert_eq!(libraries(listed), expected.map(PathBuf::from));
    }
}
