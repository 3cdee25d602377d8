//! The list of what cargo would run: a file of jobs, in the frames that a guest takes.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::cargo;
use crate::error::{Context as _, Error};
use crate::guest::frame::{Decoder, Job, Kind, encode};

/// The file; it goes when this does.
#[derive(Debug)]
pub(super) struct List {
    file: PathBuf,
}

impl List {
    pub(super) fn new() -> Result<Self, Error> {
        let dir = cargo::dir()?;
        let what = || format!("cannot make the folder {}", dir.display());
        fs::create_dir_all(&dir).context(what)?;
        let dir = dir.canonicalize().context(what)?;
        let file = dir.join(super::unique("tests"));
        write(&file, b"", false)?;
        Ok(Self { file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.file
    }

    /// Takes out of the environments what this process has too, PATH, which is another one inside, and the
    /// runner that noted them. Returns how many programs there are.
    pub(super) fn finish(&self) -> Result<usize, Error> {
        let mut jobs = read(&self.file)?;
        let mut frames = Vec::new();
        for job in &mut jobs {
            job.env.retain(|(name, value)| {
                let is_ours = name == "PATH" || super::is_runner(&name.to_string_lossy());
                !is_ours && env::var_os(name).as_ref() != Some(value)
            });
            frames.extend(encode(Kind::Job, &job.encode()));
        }
        write(&self.file, &frames, false)?;
        Ok(jobs.len())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // In a target folder it does no harm.
        drop(fs::remove_file(&self.file));
    }
}

/// Cargo's runner: notes what cargo would run.
pub(crate) fn note(args: &[OsString]) -> Result<(), Error> {
    let (file, argv) = args
        .split_first()
        .ok_or_else(|| Error::usage("there is no list to write to"))?;
    let job = Job {
        argv: argv.to_vec(),
        dir: env::current_dir().context(|| "cannot find the current folder")?,
        env: env::vars_os().collect(),
        stdin: true,
        merged: false,
        terminal: None,
    };
    write(Path::new(file), &encode(Kind::Job, &job.encode()), true)
}

/// The jobs in a list.
pub(super) fn read(file: &Path) -> Result<Vec<Job>, Error> {
    let what = || format!("cannot read the list of tests {}", file.display());
    let mut decoder = Decoder::default();
    decoder.push(&fs::read(file).context(what)?);
    let mut jobs = Vec::new();
    while let Some(frame) = decoder.next().context(what)? {
        let job = Job::decode(&frame.bytes);
        jobs.push(job.ok_or_else(|| Error::new(format!("{}: not a test", what())))?);
    }
    Ok(jobs)
}

fn write(file: &Path, bytes: &[u8], appends: bool) -> Result<(), Error> {
    let what = || format!("cannot write the list of tests {}", file.display());
    let mut options = File::options();
    options
        .create(true)
        .write(true)
        .append(appends)
        .truncate(!appends);
    let mut open = options.open(file).context(what)?;
    open.write_all(bytes).context(what)
}

#[cfg(test)]
mod tests {
    use super::{List, note, read};
    use std::env;

    #[test]
    fn recorded_programs_are_listed_without_the_common_environment() {
        let list = List::new().unwrap();
        for name in ["one", "two"] {
            let words = [
                list.path().as_os_str(),
                "/bin/program".as_ref(),
                name.as_ref(),
            ];
            note(&words.map(Into::into)).unwrap();
        }
        assert_eq!(list.finish().unwrap(), 2);
        let jobs = read(list.path()).unwrap();
        assert_eq!(jobs[1].argv, ["/bin/program", "two"]);
        assert_eq!(jobs[0].dir, env::current_dir().unwrap());
        assert_eq!(jobs[0].env, []);
        let file = list.path().to_owned();
        drop(list);
        assert!(!file.exists());
    }
}
