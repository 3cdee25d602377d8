//! The little that must be known of ELF files: a program's interpreter, what is loaded of it, and
//! the information in a kernel module.

use std::ops::Range;

/// Program headers of these types matter here.
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;

/// A 64-bit little-endian ELF file, which is what the guests run.
#[derive(Debug)]
pub(crate) struct Elf<'a> {
    bytes: &'a [u8],
}

impl<'a> Elf<'a> {
    /// `None` if `bytes` are no such file.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let is_elf = bytes.starts_with(b"\x7fELF\x02\x01") && bytes.len() >= 64;
        is_elf.then_some(Self { bytes })
    }

    /// The path of the dynamic loader; `None` in a static program.
    pub(crate) fn interpreter(&self) -> Option<&'a str> {
        let (_, range) = self.segments().find(|&(kind, _)| kind == PT_INTERP)?;
        let path = self.bytes.get(range)?.strip_suffix(&[0])?;
        str::from_utf8(path).ok()
    }

    /// The file without what the loader does not read: sections, symbols, debug information.
    pub(crate) fn loaded(&self) -> Vec<u8> {
        let ends = self.segments().filter(|&(kind, _)| kind == PT_LOAD);
        let end = ends.map(|(_, range)| range.end).max().unwrap_or(0);
        let mut bytes = self.bytes[..end.clamp(64, self.bytes.len())].to_vec();
        // The section headers are cut off: their offset, size, count and string index.
        bytes[0x28..0x30].fill(0);
        bytes[0x3a..0x40].fill(0);
        bytes
    }

    /// The first `KEY=value` of a kernel module's information with this key.
    pub(crate) fn modinfo(&self, key: &str) -> Option<&'a str> {
        let range = self.section(b".modinfo")?;
        let entries = self.bytes.get(range)?.split(|&byte| byte == 0);
        entries
            .filter_map(|entry| str::from_utf8(entry).ok())
            .find_map(|entry| {
                let (name, value) = entry.split_once('=')?;
                (name == key).then_some(value)
            })
    }

    fn segments(&self) -> impl Iterator<Item = (u32, Range<usize>)> {
        let table = self.offset(0x20).unwrap_or(0);
        let size = usize::from(self.half(0x36).unwrap_or(0));
        let count = usize::from(self.half(0x38).unwrap_or(0));
        (0..count).filter_map(move |index| {
            let header = table.checked_add(index * size)?;
            let start = self.offset(header.checked_add(0x08)?)?;
            let end = start.checked_add(self.offset(header.checked_add(0x20)?)?)?;
            Some((self.word(header)?, start..end))
        })
    }

    fn section(&self, name: &[u8]) -> Option<Range<usize>> {
        let table = self.offset(0x28)?;
        let size = usize::from(self.half(0x3a)?);
        let count = usize::from(self.half(0x3c)?);
        let names = usize::from(self.half(0x3e)?);
        let header = |index: usize| table.checked_add(index.checked_mul(size)?);
        let range = |header: usize| {
            let start = self.offset(header.checked_add(0x18)?)?;
            Some(start..start.checked_add(self.offset(header.checked_add(0x20)?)?)?)
        };
        let names = self.bytes.get(range(header(names)?)?)?;
        (0..count).filter_map(header).find_map(|header| {
            let at = usize::try_from(self.word(header)?).ok()?;
            let rest = names.get(at..)?.strip_prefix(name)?;
            (rest.first() == Some(&0)).then(|| range(header))?
        })
    }

    fn half(&self, at: usize) -> Option<u16> {
        let bytes = self.bytes.get(at..at.checked_add(2)?)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    fn offset(&self, at: usize) -> Option<usize> {
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::Elf;
    use std::fs;
    use std::io::ErrorKind;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    fn own() -> Vec<u8> {
        fs::read("/proc/self/exe").unwrap()
    }

    #[test]
    fn the_interpreter_is_a_file() {
        let bytes = own();
        let elf = Elf::parse(&bytes).unwrap();
        // A static test binary has none, and nothing to look at.
        if let Some(path) = elf.interpreter() {
            assert!(fs::metadata(path).unwrap().is_file(), "{path}");
        }
    }

    #[test]
    fn program_reduced_to_its_loaded_segments_still_runs() {
        let bytes = own();
        let loaded = Elf::parse(&bytes).unwrap().loaded();
        assert!(loaded.len() < bytes.len());
        let file = std::env::temp_dir().join(format!("soft-roce-elf-{}", std::process::id()));
        fs::write(&file, &loaded).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        // Another test may be starting a process: until that has executed its program, it has a copy
        // of the descriptor that the file was written by.
        let mut attempts = 0..1000;
        let output = loop {
            match Command::new(&file).arg("--list").output() {
                Err(error)
                    if error.kind() == ErrorKind::ExecutableFileBusy
                        && attempts.next().is_some() =>
                {
                    thread::sleep(Duration::from_millis(10));
                }
                other => break other,
            }
        };
        fs::remove_file(&file).unwrap();
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains("program_reduced_to_its_loaded_segments_still_runs"),
            "{text}"
        );
    }

    #[test]
    fn sections_are_found_by_their_whole_name() {
        let bytes = own();
        let elf = Elf::parse(&bytes).unwrap();
        let interp = elf.section(b".interp").map(|range| bytes[range].to_vec());
        let path = elf
            .interpreter()
            .map(|path| [path.as_bytes(), b"\0"].concat());
        assert_eq!(interp, path);
        assert_eq!(elf.section(b".inter"), None);
        assert_eq!(elf.modinfo("depends"), None);
    }

    #[test]
    fn no_cut_of_a_file_is_a_panic() {
        let bytes = own();
        for len in (0..4096).chain([bytes.len() / 2]) {
            if let Some(elf) = Elf::parse(&bytes[..len]) {
                let _ = (elf.interpreter(), elf.modinfo("depends"));
                assert!(elf.loaded().len() <= len);
            }
        }
    }
}
