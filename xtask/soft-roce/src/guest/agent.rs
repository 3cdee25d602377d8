//! The guest's init: brings up the file systems and the RDMA devices, and then runs the job.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::sync;
use rustix::mount::{MountFlags, mount, mount_bind, mount_move};
use rustix::process::{Resource, Rlimit, chdir, chroot, setrlimit};
use rustix::system::{RebootCommand, finit_module, reboot, sethostname};

use crate::error::{Context as _, Error};

use super::frame::Kind;
use super::job;
use super::job::Port;
use crate::driver::Driver;
use crate::{netlink, wire};

/// The file that says what init has to do. A program that finds it is an init.
pub(super) const CONFIG: &str = "/soft-roce";

/// Where the kernel modules are in the first file system, in the order of their loading.
pub(super) const MODULES: &str = "/modules";

/// The name of the port to the host, and the tags of the exported folders.
pub(super) const PORT: &str = "soft-roce";
pub(super) const ROOT_TAG: &str = "root";
pub(super) const RESULTS_TAG: &str = "results";

/// How long the port may take to appear.
const PORT_WAIT: Duration = Duration::from_secs(10);

/// Configuration of init.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Config {
    /// Which host this is, from 1, of how many.
    pub(super) host: u8,
    pub(super) hosts: u8,
    /// Which driver's devices it makes.
    pub(super) driver: Driver,
    /// The one folder of the host that can be written to.
    pub(super) results: PathBuf,
    /// All modules of this kernel, as a path on the host.
    pub(super) modules: PathBuf,
    /// The kernel's release, as `uname -r` prints it.
    pub(super) release: String,
}

impl Config {
    /// The configuration as lines, which [`Self::parse`] reads.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let words = [
            &self.host.to_string(),
            &self.hosts.to_string(),
            self.driver.name(),
            &self.release,
        ];
        let words = words.map(|word| format!("{word}\0")).concat();
        let results = self.results.as_os_str().as_bytes();
        let modules = self.modules.as_os_str().as_bytes();
        [words.as_bytes(), results, b"\0", modules].concat()
    }

    /// The configuration that `bytes` are, if they are one.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let parts: Vec<&[u8]> = bytes.split(|&byte| byte == 0).collect();
        let [host, hosts, driver, release, results, modules] = parts[..] else {
            return None;
        };
        let path = |bytes| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
        Some(Self {
            host: str::from_utf8(host).ok()?.parse().ok()?,
            hosts: str::from_utf8(hosts).ok()?.parse().ok()?,
            driver: Driver::ALL
                .into_iter()
                .find(|known| known.name().as_bytes() == driver)?,
            release: str::from_utf8(release).ok()?.to_owned(),
            results: path(results),
            modules: path(modules),
        })
    }
}

/// Whether this process is a guest's init.
pub(crate) fn is_init() -> bool {
    process::id() == 1 && Path::new(CONFIG).is_file()
}

/// Lives the guest's whole life.
#[expect(
    clippy::print_stderr,
    reason = "init's standard error is the guest's console"
)]
pub(crate) fn run() -> ! {
    if let Err(error) = serve() {
        eprintln!("soft-roce: {error}");
    }
    sync();
    if let Err(errno) = reboot(RebootCommand::PowerOff) {
        eprintln!("soft-roce: cannot power off: {errno}");
    }
    // An init that ends is a kernel panic, which ends the guest too.
    process::exit(1)
}

fn serve() -> Result<(), Error> {
    let config = fs::read(CONFIG).context(|| "cannot read the configuration")?;
    let config = Config::parse(&config).ok_or_else(|| Error::new("odd configuration"))?;
    mount_fs("devtmpfs", "/dev", "devtmpfs", MountFlags::empty(), "")?;
    mount_fs("proc", "/proc", "proc", MountFlags::empty(), "")?;
    mount_fs("sysfs", "/sys", "sysfs", MountFlags::empty(), "")?;
    load_modules()?;
    let port = Port::new(open_port()?);
    match prepare(&config) {
        Ok(()) => port.send(Kind::Ready, &[])?,
        Err(error) => return port.fail(125, &format!("the guest cannot serve: {error}")),
    }
    job::serve(&port)
}

/// Everything between the port and the job.
fn prepare(config: &Config) -> Result<(), Error> {
    mount_root(config)?;
    let infinite = Rlimit {
        current: None,
        maximum: None,
    };
    setrlimit(Resource::Memlock, infinite).context(|| "cannot lift the memlock limit")?;
    let hostname = format!("soft-roce-{}", config.host);
    sethostname(hostname.as_bytes()).context(|| "cannot set the host name")?;
    for (file, value) in [
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/all/accept_local", "1"),
        ("kernel/sysrq", "1"),
    ] {
        let file = Path::new("/proc/sys").join(file);
        fs::write(&file, value).context(|| format!("cannot set {}", file.display()))?;
    }
    let up = netlink::set_up("lo", None);
    up.context(|| "cannot set the link lo up")?;
    if config.hosts == 1 {
        wire::make_pair(config.driver, wire::GUEST_ADDRESSES)
    } else {
        let index = usize::from(config.host.saturating_sub(1));
        let address = wire::GUEST_ADDRESSES.get(index);
        let address = address.ok_or_else(|| Error::new("there is no such host"))?;
        wire::make_single(config.driver, *address)
    }
}

/// Makes the host's root file system this one's, with every change kept in memory.
fn mount_root(config: &Config) -> Result<(), Error> {
    let none = MountFlags::empty();
    for dir in ["/host", "/changes", "/root"] {
        make_dir(Path::new(dir))?;
    }
    let nine = "trans=virtio,version=9p2000.L,msize=131072";
    mount_fs(ROOT_TAG, "/host", "9p", MountFlags::RDONLY, nine)?;
    mount_fs("changes", "/changes", "tmpfs", none, "mode=755")?;
    make_dir(Path::new("/changes/upper"))?;
    make_dir(Path::new("/changes/work"))?;
    let layers = "lowerdir=/host,upperdir=/changes/upper,workdir=/changes/work";
    mount_fs("root", "/root", "overlay", none, layers)?;
    for dir in ["/dev", "/proc", "/sys"] {
        let target = format!("/root{dir}");
        make_dir(Path::new(&target))?;
        mount_move(dir, &*target).context(|| format!("cannot move {dir} to the new root"))?;
    }
    chdir("/root").context(|| "cannot enter the new root")?;
    mount_move(".", "/").context(|| "cannot move the new root")?;
    chroot(".").context(|| "cannot change the root")?;
    chdir("/").context(|| "cannot enter the new root")?;

    mount_fs("run", "/run", "tmpfs", none, "mode=755")?;
    mount_fs("shm", "/dev/shm", "tmpfs", none, "mode=1777")?;
    mount_fs(
        "devpts",
        "/dev/pts",
        "devpts",
        none,
        "mode=620,ptmxmode=666",
    )?;
    for (link, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ] {
        let link = Path::new("/dev").join(link);
        let made = std::os::unix::fs::symlink(target, &link);
        made.context(|| format!("cannot make {}", link.display()))?;
    }
    let results = config.results.to_string_lossy();
    // Memory mapped for writing, as profile counters are, needs cache=mmap.
    let shared = format!("{nine},cache=mmap");
    mount_fs(RESULTS_TAG, &results, "9p", none, &shared)?;
    let modules = Path::new("/lib/modules").join(&config.release);
    make_dir(&modules)?;
    // Below /run and /dev the host's files cannot be seen; then only what is loaded is there.
    if config.modules.is_dir() {
        mount_bind(&config.modules, &modules).context(|| "cannot show the kernel's modules")?;
    }
    Ok(())
}

fn mount_fs(
    source: &str,
    target: &str,
    kind: &str,
    flags: MountFlags,
    options: &str,
) -> Result<(), Error> {
    make_dir(Path::new(target))?;
    let options = std::ffi::CString::new(options).context(|| "odd mount options")?;
    mount(source, target, kind, flags, options.as_c_str())
        .context(|| format!("cannot mount {source} ({kind}) at {target}"))
}

fn make_dir(dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(dir).context(|| format!("cannot make the folder {}", dir.display()))
}

fn load_modules() -> Result<(), Error> {
    let what = || format!("cannot read {MODULES}");
    let entries = fs::read_dir(MODULES).context(what)?;
    let files: Result<Vec<PathBuf>, io::Error> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut files = files.context(what)?;
    files.sort();
    for file in files {
        let open = File::open(&file).context(|| format!("cannot open {}", file.display()))?;
        match finit_module(&open, c"", 0) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => {
                let name = file.display();
                return Err(Error::new(format!("the kernel refuses {name}: {errno}")));
            }
        }
    }
    Ok(())
}

/// The port to the host, as soon as its driver has found it.
fn open_port() -> Result<File, Error> {
    let deadline = Instant::now() + PORT_WAIT;
    let what = || "cannot open the port to the host";
    loop {
        if let Some(file) = find_port() {
            return File::options()
                .read(true)
                .write(true)
                .open(file)
                .context(what);
        }
        if Instant::now() > deadline {
            return Err(Error::new("the port to the host did not appear"));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn find_port() -> Option<PathBuf> {
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?;
    let mut ports = ports.filter_map(|entry| Some(entry.ok()?.path()));
    let found = ports
        .find(|port| fs::read_to_string(port.join("name")).is_ok_and(|name| name.trim() == PORT))?;
    let file = Path::new("/dev").join(found.file_name()?);
    file.exists().then_some(file)
}

#[cfg(test)]
mod tests {
    use super::{Config, Driver, is_init};

    #[test]
    fn the_configuration_comes_back() {
        let config = Config {
            host: 2,
            hosts: 2,
            driver: Driver::Siw,
            results: "/a b/results".into(),
            modules: "/cache/a b/x".into(),
            release: "6.1.0-56-amd64".to_owned(),
        };
        let bytes = config.to_bytes();
        assert_eq!(Config::parse(&bytes), Some(config));
        let other = String::from_utf8(bytes).unwrap().replace("siw", "odd");
        assert_eq!(Config::parse(other.as_bytes()), None);
        assert_eq!(Config::parse(b"1\0 2"), None);
    }

    #[test]
    fn a_process_on_the_host_is_no_init() {
        assert!(!is_init());
    }
}
