//! The receiver's file, under a temporary name until it is whole and verified.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use programs::{Context as _, Failure};

use crate::digest::Digest;

/// After this many bytes the file is flushed to the disk, so that little is left for the end.
const SYNC: u64 = 1 << 30;

/// An incomplete file.
#[derive(Debug)]
pub(crate) struct Partial {
    // Neither, if nothing is to be kept.
    place: Option<(File, Paths)>,
    digest: Digest,
}

#[derive(Debug)]
struct Paths {
    temporary: PathBuf,
    target: PathBuf,
}

impl Partial {
    /// A file that is not written: its bytes are counted and checked only.
    pub(crate) fn nowhere() -> Self {
        Self {
            place: None,
            digest: Digest::default(),
        }
    }

    /// Opens `.NAME.part` in `dir`, as an earlier copy left it. At most `limit` of its bytes are read
    /// and used.
    pub(crate) fn open(
        dir: &Path,
        name: &str,
        limit: u64,
        replace: bool,
        keep_alive: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let target = dir.join(name);
        if !replace && target.symlink_metadata().is_ok() {
            let target = target.display();
            return Err(Failure::new(format!(
                "{target} exists already (--force replaces it)"
            )));
        }
        let temporary = dir.join(format!(".{name}.part"));
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&temporary);
        let mut file = opened.context(|| format!("cannot open {}", temporary.display()))?;
        let there = file.metadata()?.len().min(limit);
        let digest = Digest::of_start(&mut file, there, keep_alive)?;
        Ok(Self {
            place: Some((file, Paths { temporary, target })),
            digest,
        })
    }

    /// Whether an incomplete file stays, so that a copy can be resumed.
    pub(crate) const fn stays(&self) -> bool {
        self.place.is_some() && self.digest.bytes() > 0
    }

    /// The digest of the existing part.
    pub(crate) const fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Continues at `from`: after the existing part, or at the beginning.
    pub(crate) fn begin_at(&mut self, from: u64) -> Result<(), Failure> {
        if from == 0 {
            self.digest = Digest::default();
        }
        if from != self.digest.bytes() {
            let there = self.digest.bytes();
            return Err(Failure::new(format!(
                "the sender begins at byte {from}, and {there} are there"
            )));
        }
        if let Some((file, _)) = &mut self.place {
            file.set_len(from)?;
            file.seek(SeekFrom::Start(from))?;
        }
        Ok(())
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let before = self.digest.bytes();
        let after = before + bytes.len() as u64;
        if let Some((file, paths)) = &mut self.place {
            let doing = || format!("cannot write to {}", paths.temporary.display());
            file.write_all(bytes).context(doing)?;
            if after / SYNC != before / SYNC {
                file.sync_data().context(doing)?;
            }
        }
        self.digest.add(bytes);
        Ok(())
    }

    /// Gives the file its name if it is what the sender read, and removes it if it is not.
    pub(crate) fn finish(self, should_be: &str) -> Result<(), Failure> {
        let is = self.digest.hex();
        if is != should_be {
            if let Some((_, paths)) = &self.place {
                fs::remove_file(&paths.temporary)?;
            }
            return Err(Failure::new(format!(
                "what arrived is not what was sent: SHA-256 {is}, not {should_be}"
            )));
        }
        let Some((file, Paths { temporary, target })) = self.place else {
            return Ok(());
        };
        let doing = || format!("cannot store {}", target.display());
        file.sync_all().context(doing)?;
        fs::rename(&temporary, &target).context(doing)?;
        let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = File::open(dir.unwrap_or_else(|| Path::new(".")));
        match dir.and_then(|dir| dir.sync_all()) {
            // Some file systems do not support it.
            Err(error) if error.kind() != ErrorKind::InvalidInput => Err(error).context(doing),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty directory, which is removed when dropped.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = format!("file_copy-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(dir);
            fs::create_dir(&dir).unwrap();
            Self(dir)
        }

        fn open(&self, limit: u64) -> Result<Partial, Failure> {
            Partial::open(&self.0, "x", limit, false, || Ok(()))
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
            entries.map(|e| name(e).into_string().unwrap()).collect()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn hex(bytes: &[u8]) -> String {
        let mut digest = Digest::default();
        digest.add(bytes);
        digest.hex()
    }

    #[test]
    fn a_file_gets_its_name_when_it_is_whole() {
        let dir = Dir::new("whole");
        let mut partial = dir.open(3).unwrap();
        partial.begin_at(0).unwrap();
        partial.append(b"ab").unwrap();
        partial.append(b"c").unwrap();
        assert_eq!(dir.names(), [".x.part"]);
        partial.finish(&hex(b"abc")).unwrap();
        assert_eq!(dir.names(), ["x"]);
        assert_eq!(fs::read(dir.0.join("x")).unwrap(), b"abc");
        let error = dir.open(3).unwrap_err().to_string();
        assert!(error.contains("exists already"), "{error}");
    }

    #[test]
    fn existing_part_is_counted_and_appended_to() {
        let dir = Dir::new("there");
        fs::write(dir.0.join(".x.part"), b"abcd").unwrap();
        let mut partial = dir.open(3).unwrap();
        assert_eq!(partial.digest().bytes(), 3);
        assert_eq!(partial.digest().hex(), hex(b"abc"));
        assert!(partial.begin_at(2).is_err());
        partial.begin_at(3).unwrap();
        partial.append(b"!").unwrap();
        partial.finish(&hex(b"abc!")).unwrap();
        assert_eq!(fs::read(dir.0.join("x")).unwrap(), b"abc!");
    }

    #[test]
    fn new_copy_discards_the_existing_part() {
        let dir = Dir::new("anew");
        fs::write(dir.0.join(".x.part"), b"abcd").unwrap();
        let mut partial = dir.open(9).unwrap();
        partial.begin_at(0).unwrap();
        partial.append(b"z").unwrap();
        partial.finish(&hex(b"z")).unwrap();
        assert_eq!(fs::read(dir.0.join("x")).unwrap(), b"z");
    }

    #[test]
    fn file_with_a_wrong_digest_is_removed() {
        let dir = Dir::new("wrong");
        let mut partial = dir.open(1).unwrap();
        partial.append(b"a").unwrap();
        let error = partial.finish(&hex(b"b")).unwrap_err().to_string();
        assert!(error.contains("not what was sent"), "{error}");
        assert!(dir.names().is_empty());
    }
}
