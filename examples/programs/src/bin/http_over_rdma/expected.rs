//! The expected body: the bytes of a file.

use std::path::Path;

use programs::{Context as _, Failure, check};
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;

/// The rest of a file, which is compared with the body.
#[derive(Debug)]
pub(crate) struct Expected {
    file: File,
    name: String,
    offset: usize,
}

impl Expected {
    /// All of this file.
    pub(crate) async fn open(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = File::open(path).await.context(|| name.clone())?;
        let offset = 0;
        Ok(Self { file, name, offset })
    }

    /// Compares the next bytes of the body.
    pub(crate) async fn next(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let mut right = Vec::with_capacity(bytes.len());
        let limit = u64::try_from(bytes.len())?;
        let read = (&mut self.file).take(limit).read_to_end(&mut right).await;
        let _len = read.context(|| self.name.clone())?;
        check(self.offset, bytes, &right).context(|| format!("the body is not {}", self.name))?;
        self.offset += right.len();
        if right.len() < bytes.len() {
            return Err(Failure::new(format!(
                "the body is not {}: it goes on after the file's {} bytes",
                self.name, self.offset
            )));
        }
        Ok(())
    }

    /// Checks that nothing of the file is left at the end of the body.
    pub(crate) async fn end(mut self) -> Result<(), Failure> {
        let read = self.file.read(&mut [0; 1]).await;
        if read.context(|| self.name.clone())? == 0 {
            return Ok(());
        }
        Err(Failure::new(format!(
            "the body is not {}: it ends after {} bytes",
            self.name, self.offset
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a body in these chunks, if a file of `0123456789` is expected.
    async fn of(chunks: &[&str]) -> Result<(), Failure> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("http_over_rdma-{}-{number}-due", std::process::id());
        let path = std::env::temp_dir().join(name);
        tokio::fs::write(&path, "0123456789").await?;
        let expected = Expected::open(&path).await;
        tokio::fs::remove_file(&path).await?;
        let mut expected = expected?;
        for chunk in chunks {
            expected.next(chunk.as_bytes()).await?;
        }
        expected.end().await
    }

    #[tokio::test]
    async fn only_identical_bytes_are_accepted() {
        for right in [&["0123456789"][..], &["01", "", "23456", "789", ""]] {
            of(right).await.unwrap();
        }
        for (wrong, why) in [
            (&[][..], "ends after 0 bytes"),
            (&["01234", "5678"], "ends after 9 bytes"),
            (&["01234", "56789", "0"], "after the file's 10 bytes"),
            (&["01234", "567890"], "after the file's 10 bytes"),
            (&["01234", "56x89"], "byte 7 is 0x78, not 0x37"),
        ] {
            let error = of(wrong).await.unwrap_err().to_string();
            assert!(error.contains(why), "{wrong:?}: {error}");
        }
    }
}
