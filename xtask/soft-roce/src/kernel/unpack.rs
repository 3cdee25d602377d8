//! Unpacking kernels and modules, with the system's own programs.

use std::fs;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::error::{Context as _, Error};

/// A way to compress, known by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Xz,
    Zstd,
    Gzip,
    Lz4,
    Lzma,
    Bzip2,
}

impl Format {
    const ALL: [(Self, &'static [u8]); 6] = [
        (Self::Xz, b"\xfd7zXZ\0"),
        (Self::Zstd, b"\x28\xb5\x2f\xfd"),
        (Self::Gzip, b"\x1f\x8b"),
        (Self::Lz4, b"\x02\x21\x4c\x18"),
        (Self::Lzma, b"\x5d\0\0"),
        (Self::Bzip2, b"BZh"),
    ];

    /// The format of `bytes`, if it is one of these.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let known = Self::ALL.iter().find(|(_, magic)| bytes.starts_with(magic));
        known.map(|&(format, _)| format)
    }

    /// The program that unpacks it from standard input to standard output.
    pub(super) fn program(self) -> [&'static str; 2] {
        match self {
            Self::Xz => ["xz", "-dc"],
            Self::Zstd => ["zstd", "-dc"],
            Self::Gzip => ["gzip", "-dc"],
            Self::Lz4 => ["lz4", "-dc"],
            Self::Lzma => ["xz", "-dc"],
            Self::Bzip2 => ["bzip2", "-dc"],
        }
    }

    /// The bytes that `packed` holds.
    pub(super) fn unpack(self, packed: &[u8]) -> Result<Vec<u8>, Error> {
        let [program, option] = self.program();
        let what = || format!("cannot unpack with `{program} {option}`");
        let mut child = Command::new(program)
            .arg(option)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context(what)?;
        let stdin = child.stdin.take();
        let output = thread::scope(|scope| {
            // Fed from the side: it writes while it still reads.
            scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(packed)));
            child.wait_with_output()
        });
        let output = output.context(what)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::new(format!("{}: {why} ({})", what(), output.status)))
    }
}

/// A file's content, unpacked if it is packed.
pub(super) fn file(path: &Path) -> Result<Vec<u8>, Error> {
    let bytes = fs::read(path).context(|| format!("cannot read {}", path.display()))?;
    match Format::of(&bytes) {
        Some(format) => format.unpack(&bytes),
        None => Ok(bytes),
    }
}

/// Where the packed kernel is in an x86 `bzImage`.
pub(super) fn payload(image: &[u8]) -> Option<(Format, Range<usize>)> {
    // Documentation/arch/x86/boot.rst: setup_sects, the magic, payload_offset, payload_length.
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let word = |at: usize| {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let setup_sects = match image[0x1f1] {
        0 => 4,
        count => usize::from(count),
    };
    let start = (setup_sects + 1) * 512 + word(0x248)?;
    let end = start.checked_add(word(0x24c)?)?;
    let format = Format::of(image.get(start..end)?)?;
    // The size of the unpacked kernel stands behind it, but is gzip's own last word.
    let end = if format == Format::Gzip {
        end
    } else {
        end.checked_sub(4)?
    };
    Some((format, start..end))
}

#[cfg(test)]
mod tests {
    use super::{Format, payload};

    fn image(packed: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024 + 0x248];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&0x248_u32.to_le_bytes());
        let len = u32::try_from(packed.len()).unwrap();
        image[0x24c..0x250].copy_from_slice(&len.to_le_bytes());
        image.extend(packed);
        image
    }

    #[test]
    fn the_payload_of_a_kernel_is_found() {
        let zstd = b"\x28\xb5\x2f\xfdxxxxSIZE";
        let found = payload(&image(zstd)).unwrap();
        assert_eq!(found, (Format::Zstd, 1608..1616));
        let gzip = b"\x1f\x8bxxxxSIZE";
        assert_eq!(payload(&image(gzip)).unwrap(), (Format::Gzip, 1608..1618));
    }

    #[test]
    fn file_that_is_no_packed_kernel_has_no_payload() {
        let whole = image(b"\xfd7zXZ\0 and so on");
        assert!(payload(&whole).is_some());
        assert!(payload(&image(b"something else")).is_none());
        assert!(payload(b"\x7fELF").is_none());
        for len in 0..whole.len() {
            assert!(payload(&whole[..len]).is_none(), "cut at {len}");
        }
    }

    #[test]
    fn gzip_payload_is_unpacked() {
        let text = "some text\n".repeat(100_000);
        let packed = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0";
        assert_eq!(Format::Gzip.unpack(packed).unwrap(), b"");
        assert!(Format::Gzip.unpack(text.as_bytes()).is_err());
    }
}
