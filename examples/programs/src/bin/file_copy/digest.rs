//! SHA-256 of a file as it grows.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::time::{Duration, Instant};

use programs::{Context as _, Failure};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of what has been read or written so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digest {
    hasher: Sha256,
    bytes: u64,
}

/// How often `keep_alive` is called while a long read goes on.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(1);

impl Digest {
    /// Reads the first `bytes` of a file. Now and then it calls `keep_alive`, so that the peer does
    /// not take this side for dead.
    pub(crate) fn of_start(
        file: &mut File,
        bytes: u64,
        mut keep_alive: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let mut this = Self::default();
        let mut buffer = vec![0; 1 << 20];
        let mut last_sent = Instant::now();
        while this.bytes < bytes {
            let left = usize::try_from(bytes - this.bytes).unwrap_or(usize::MAX);
            let room = buffer.len().min(left);
            let part = buffer.get_mut(..room).unwrap_or_default();
            file.read_exact(part)
                .context(|| "the file became shorter")?;
            this.add(part);
            if last_sent.elapsed() >= KEEP_ALIVE_EVERY {
                last_sent = Instant::now();
                keep_alive()?;
            }
        }
        Ok(this)
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// How many bytes it is of.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// In hexadecimal, as `sha256sum` prints it.
    pub(crate) fn hex(&self) -> String {
        let mut hex = String::with_capacity(64);
        for byte in self.hasher.clone().finalize() {
            // A string takes whatever is written to it.
            let _always_ok = write!(hex, "{byte:02x}");
        }
        hex
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_sha256sum() {
        let mut digest = Digest::default();
        let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest.hex(), nothing);
        digest.add(b"a");
        digest.add(b"bc");
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((digest.hex().as_str(), digest.bytes()), (abc, 3));
    }
}
