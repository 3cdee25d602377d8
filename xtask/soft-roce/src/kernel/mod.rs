//! The guest's kernel: taken from the distribution, unpacked once into the user's cache, and
//! checked at each use.

use std::env;
use std::fs::{self, File};
use std::mem;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::driver::Driver;
use crate::error::{Context as _, Error};
use crate::packages::{self, KMOD, Policy, XZ, ZSTD};
use crate::process::{self, succeeds};
use crate::say;

use fetch::{Source, Unpacked};
use modules::Tree;
pub(crate) use siw::with_siw;
use unpack::Format;

mod apt;
mod fetch;
mod modules;
mod siw;
mod unpack;

/// Part of the cache's path: another layout is another number.
const LAYOUT: &str = "2";

/// The sums of all files of a kernel; written last.
const MANIFEST: &str = "MANIFEST";

/// How long another run may take to fetch and unpack a kernel before this one fails.
const OTHER_RUN: Duration = Duration::from_secs(15 * 60);

/// How long each step of making a kernel may take.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// How long checking the cache may take.
const CHECK: Duration = Duration::from_secs(120);

/// A kernel in the cache.
#[derive(Debug)]
pub(crate) struct Kernel {
    dir: PathBuf,
    /// The output of `uname -r` in the guest.
    pub(crate) release: String,
    /// All its modules.
    pub(crate) modules: PathBuf,
    /// The folder of those that a guest loads.
    load: PathBuf,
    /// Compares every file with what it was; under way while the guest starts.
    check: Child,
    /// Held while the kernel is used, so that no other run removes the cache.
    _in_use: File,
}

impl Kernel {
    /// The image that QEMU starts.
    pub(crate) fn image(&self) -> PathBuf {
        self.dir.join("image")
    }

    /// The modules that a guest loads, in their order.
    pub(crate) fn load(&self) -> Result<Vec<PathBuf>, Error> {
        let dir = &self.load;
        let what = || format!("cannot read the folder {}", dir.display());
        let entries = fs::read_dir(dir).context(what)?;
        let files: Result<Vec<PathBuf>, std::io::Error> =
            entries.map(|entry| Ok(entry?.path())).collect();
        let mut files = files.context(what)?;
        files.sort();
        Ok(files)
    }

    /// Whether everything is as it was when it was made; to be asked before a job starts.
    pub(crate) fn is_intact(&mut self) -> bool {
        let ended = process::wait(&mut self.check, CHECK);
        matches!(ended, Ok(Some(status)) if status.success())
    }

    fn open(dir: &Path) -> Result<Self, Error> {
        // The name it was asked for by may come to mean another one at any moment.
        let dir = dir.canonicalize();
        let dir = dir.context(|| "cannot find the guest's kernel in the cache")?;
        let read = |name: &str| {
            let file = dir.join(name);
            fs::read_to_string(&file).context(|| format!("cannot read {}", file.display()))
        };
        let release = read("release")?;
        let own = dir.join("root/lib/modules").join(&release);
        let modules = match own.is_dir() {
            true => own,
            false => Path::new("/lib/modules").join(&release),
        };
        let in_use = lock("use", FlockOperation::LockShared)?;
        let check = check(&dir).spawn();
        let check = check.context(|| "cannot start sha256sum")?;
        Ok(Self {
            check,
            load: dir.join("load"),
            dir,
            release,
            modules,
            _in_use: in_use,
        })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // A check may still run if no guest has used the kernel. Killing one that has ended does
        // nothing.
        drop(self.check.kill());
        drop(self.check.wait());
    }
}

/// The state of the kernel in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Use it.
    Cached,
    /// Use it if it is whole and the newest.
    Newest,
}

/// The kernel that `wanted` names, else the default one: from the cache, or fetched into it.
pub(crate) fn get(
    wanted: Option<&str>,
    freshness: Freshness,
    policy: Policy,
) -> Result<Kernel, Error> {
    let request = wanted.unwrap_or("default");
    let link = cache()?.join(file_name(request));
    let is_there = || freshness == Freshness::Cached && link.join(MANIFEST).is_file();
    if is_there() {
        return Kernel::open(&link);
    }
    let _alone = lock("build", FlockOperation::LockExclusive)?;
    // Another run may have been faster.
    if is_there() {
        return Kernel::open(&link);
    }
    remove_leftovers()?;
    let source = fetch::find(wanted)?;
    let mut name = file_name(&source.version());
    if !succeeds(&mut check(&cache()?.join(&name))) {
        let built = build(&source, policy);
        if built.is_err() {
            remove_leftovers()?;
        }
        name = built?;
    }
    let fresh = cache()?.join(format!("tmp-link-{}", std::process::id()));
    let point = || format!("cannot make {}", link.display());
    symlink(&name, &fresh).context(point)?;
    fs::rename(&fresh, &link).context(point)?;
    Kernel::open(&link)
}

/// The kernels in the cache: by what name they were asked for, and what they are.
pub(crate) fn cached() -> Vec<(String, String)> {
    let entries = cache().ok().and_then(|dir| fs::read_dir(dir).ok());
    let links = entries.into_iter().flatten().filter_map(|entry| {
        let path = entry.ok()?.path();
        let target = fs::read_link(&path).ok()?;
        let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
        Some((name(&path)?, name(&target)?))
    });
    links.collect()
}

/// Removes the whole cache, unless a guest is using it.
pub(crate) fn remove_cache() -> Result<PathBuf, Error> {
    let dir = cache()?;
    let _not_building = try_lock("build", FlockOperation::NonBlockingLockExclusive)?
        .ok_or_else(|| Error::new("a run is fetching a kernel: try again when it has ended"))?;
    let _alone = try_lock("use", FlockOperation::NonBlockingLockExclusive)?
        .ok_or_else(|| Error::new("a guest is using the cache: try again when it has ended"))?;
    fs::remove_dir_all(&dir).context(|| format!("cannot remove {}", dir.display()))?;
    Ok(dir)
}

/// The folder of the cache; it exists.
pub(crate) fn cache() -> Result<PathBuf, Error> {
    let absolute = |name: &str| {
        let path = env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let base = base.ok_or_else(|| {
        Error::new("there is no place to keep the guest's kernel: set HOME or XDG_CACHE_HOME")
    })?;
    let dir = base.join("cargo-soft-roce").join(LAYOUT);
    fs::create_dir_all(&dir).context(|| format!("cannot make the folder {}", dir.display()))?;
    Ok(dir)
}

fn file_name(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+~".contains(c);
    text.chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect()
}

/// Compares the files of a kernel with the sums that were taken when it was made.
fn check(dir: &Path) -> Command {
    let mut check = Command::new("sha256sum");
    check
        .args(["--check", "--strict", "--status", MANIFEST])
        .current_dir(dir);
    check
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    check
}

/// Fetches and unpacks a kernel, and puts it in its place when it is whole; the name of that.
fn build(source: &Source, policy: Policy) -> Result<String, Error> {
    let temporary = cache()?.join(format!("tmp-{}", std::process::id()));
    let make = |dir: &Path| {
        let made = fs::create_dir_all(dir);
        made.context(|| format!("cannot make the folder {}", dir.display()))
    };
    make(&temporary)?;
    packages::ensure(&[KMOD], policy)?;
    let unpacked = source.fetch(&temporary.join("fetched"))?;
    let kernel = temporary.join("kernel");
    make(&kernel.join("load"))?;
    assemble(&unpacked, &kernel, policy)?;
    let name = file_name(&unpacked.version);
    let dir = cache()?.join(&name);
    let what = || format!("cannot put the kernel at {}", dir.display());
    if dir.exists() {
        fs::remove_dir_all(&dir).context(what)?;
    }
    fs::rename(&kernel, &dir).context(what)?;
    fs::remove_dir_all(&temporary).context(|| "cannot remove temporary files")?;
    Ok(name)
}

fn assemble(unpacked: &Unpacked, dir: &Path, policy: Policy) -> Result<(), Error> {
    let write = |name: &str, bytes: &[u8]| {
        let file = dir.join(name);
        fs::write(&file, bytes).context(|| format!("cannot write {}", file.display()))
    };
    let image = fs::read(&unpacked.image);
    let image = image.context(|| format!("cannot read {}", unpacked.image.display()))?;
    match unpack::payload(&image) {
        Some((format, range)) => {
            ensure_format(format, policy)?;
            write("image", &format.unpack(&image[range])?)?;
        }
        // Not a bzImage: QEMU takes it as it is.
        None => write("image", &image)?,
    }
    for (index, (name, bytes)) in Tree::read(&unpacked.modules)?
        .load_order(Driver::Rxe)?
        .into_iter()
        .enumerate()
    {
        write(&format!("load/{index:02}-{name}.ko"), &bytes)?;
    }
    write("release", unpacked.release.as_bytes())?;
    if unpacked.is_copy {
        keep_modules(unpacked, dir)?;
    }
    seal(dir)
}

/// Writes the sums of all files in `dir`, as the last one.
fn seal(dir: &Path) -> Result<(), Error> {
    let sums = format!("find . -type f ! -name {MANIFEST} -print0 | xargs -0 sha256sum");
    let mut list = Command::new("sh");
    list.args(["-c", &sums]);
    let manifest = process::output(list.current_dir(dir))?;
    let file = dir.join(MANIFEST);
    fs::write(&file, manifest).context(|| format!("cannot write {}", file.display()))
}

/// Moves the modules to where the guest's `modprobe` will find them, with their index.
fn keep_modules(unpacked: &Unpacked, dir: &Path) -> Result<(), Error> {
    let what = || "cannot keep the kernel's modules";
    let root = dir.join("root");
    let modules = root.join("lib/modules");
    fs::create_dir_all(&modules).context(what)?;
    fs::create_dir(root.join("usr")).context(what)?;
    // Some systems' depmod looks below /usr/lib.
    symlink("../lib", root.join("usr/lib")).context(what)?;
    fs::rename(&unpacked.modules, modules.join(&unpacked.release)).context(what)?;
    let program = process::which("depmod").unwrap_or_else(|| "depmod".into());
    let mut depmod = Command::new(program);
    depmod.arg("-b").arg(&root).arg(&unpacked.release);
    process::run_quietly(&mut depmod, "indexing the kernel's modules", LIMIT).map(drop)
}

fn ensure_format(format: Format, policy: Policy) -> Result<(), Error> {
    match format {
        Format::Xz | Format::Lzma => packages::ensure(&[XZ], policy),
        Format::Zstd => packages::ensure(&[ZSTD], policy),
        _ => Ok(()),
    }
}

/// Removes files of a killed run; the lock ensures that no other run is building.
fn remove_leftovers() -> Result<(), Error> {
    let what = || "cannot clean the cache";
    for entry in fs::read_dir(cache()?).context(what)? {
        let path = entry.context(what)?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.starts_with("tmp-link-") {
            fs::remove_file(&path).context(what)?;
        } else if name.starts_with("tmp-") {
            fs::remove_dir_all(&path).context(what)?;
        }
    }
    Ok(())
}

/// Waits for a lock of the cache, with a bound.
fn lock(name: &str, operation: FlockOperation) -> Result<File, Error> {
    let operation = match operation {
        FlockOperation::LockShared => FlockOperation::NonBlockingLockShared,
        _ => FlockOperation::NonBlockingLockExclusive,
    };
    let deadline = Instant::now() + OTHER_RUN;
    let mut waits = false;
    while Instant::now() < deadline {
        if let Some(file) = try_lock(name, operation)? {
            return Ok(file);
        }
        if !mem::replace(&mut waits, true) {
            let minutes = OTHER_RUN.as_secs() / 60;
            say(&format!(
                "another run is at work in the kernel's cache: waiting for it, {minutes} minutes at most"
            ));
        }
        thread::sleep(Duration::from_millis(100));
    }
    let dir = cache()?;
    Err(Error::new(format!(
        "another run has held {}/{name}.lock for {} minutes: end that run, then try again",
        dir.display(),
        OTHER_RUN.as_secs() / 60
    )))
}

fn try_lock(name: &str, operation: FlockOperation) -> Result<Option<File>, Error> {
    let path = cache()?.join(format!("{name}.lock"));
    let what = || format!("cannot lock {}", path.display());
    let mut options = File::options();
    options.create(true).append(true);
    let file = options.open(&path).context(what)?;
    match flock(&file, operation) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno).context(what),
    }
}

#[cfg(test)]
mod tests {
    use super::{MANIFEST, check, file_name, succeeds};
    use std::fs;

    #[test]
    fn a_name_is_one_file() {
        assert_eq!(
            file_name("linux-image-6.1_6.1.192-2"),
            "linux-image-6.1_6.1.192-2"
        );
        assert_eq!(file_name("../a:b c"), ".._a_b_c");
    }

    #[test]
    fn a_changed_file_is_seen() {
        let dir = std::env::temp_dir().join(format!("soft-roce-intact-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let intact = || succeeds(&mut check(&dir));
        assert!(!intact());
        fs::write(dir.join("image"), "").unwrap();
        fs::write(dir.join("release"), "").unwrap();
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        fs::write(
            dir.join(MANIFEST),
            format!("{empty}  ./image\n{empty}  ./release\n"),
        )
        .unwrap();
        let before = intact();
        fs::write(dir.join("image"), "x").unwrap();
        let changed = intact();
        fs::remove_file(dir.join("image")).unwrap();
        let removed = intact();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!((before, changed, removed), (true, false, false));
    }
}
