//! Starting guests: the command, the first file system, and the wait for the first frame.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};

use crate::error::{Context as _, Error};
use crate::packages;

use super::agent::{self, Config};
use super::frame::{Decoder, Kind, PIECE};
use super::initramfs::Archive;
use super::qemu::{self, Accel};
use crate::kernel::Kernel;
use crate::progress::Progress;
use crate::say;
use crate::{Options, helper};

/// How long an idle machine may take to start a guest; it takes 2 to 4 s.
const BOOT: Duration = Duration::from_secs(20);

/// However busy the machine is.
const LONGEST_BOOT: Duration = Duration::from_secs(180);

/// A kernel under emulation does not come up now and then. Nothing has been run by then, so that
/// it can be started again.
const ATTEMPTS: u32 = 3;

/// How often the time since the start is shown.
const LOOK: Duration = Duration::from_millis(200);

/// How many lines of a console are shown.
const SHOWN: usize = 20;

/// A guest under way; it ends with this value.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) host: u8,
    pub(super) port: UnixStream,
    pub(super) decoder: Decoder,
    pub(super) emulated: bool,
    child: Child,
    console: File,
    /// QEMU reads it by way of this process.
    _initrd: File,
}

impl Guest {
    /// The end of the console, with the reason of a kernel panic, or what QEMU lacks.
    pub(super) fn console(&mut self) -> String {
        let mut bytes = Vec::new();
        let read = self.console.rewind();
        let read = read.and_then(|()| self.console.read_to_end(&mut bytes));
        let text = String::from_utf8_lossy(&bytes);
        match read {
            Ok(_) => last_words(&text),
            Err(error) => format!("(the console cannot be read: {error})"),
        }
    }

    /// Ends the guest at once.
    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Why a guest did not come up.
enum BootError {
    /// The kernel or the emulator failed: another attempt may succeed.
    Lost(String),
    /// The guest or QEMU reported an error.
    Refused(Error),
}

/// Starts the guests, and waits until their devices are up.
pub(super) fn boot(
    options: &Options,
    kernel: &mut Kernel,
    results: &Path,
) -> Result<Vec<Guest>, Error> {
    let mut last = String::new();
    for &accel in options.accel.candidates() {
        for attempt in 1..=ATTEMPTS {
            // Each attempt gets more time: the load that is measured lags behind.
            let limit = boot_limit(options.hosts).saturating_mul(attempt);
            match boot_once(options, kernel, results, accel, limit) {
                Ok(guests) => return Ok(guests),
                Err(BootError::Refused(error)) if accel == Accel::Tcg => return Err(error),
                Err(BootError::Refused(error)) => last = error.to_string(),
                Err(BootError::Lost(why)) => last = why,
            }
            // A boot that KVM fails at once fails again, and so does a damaged kernel.
            let again = accel == Accel::Tcg && attempt < ATTEMPTS && kernel.is_intact();
            let next = if again { ", trying again" } else { "" };
            say(&format!(
                "the guest did not start ({accel:?}){next}: {last}"
            ));
            if !again {
                break;
            }
        }
    }
    Err(Error::new(format!("the guest did not start: {last}")).with_code(125))
}

/// Two, so that both sides of a test can poll; one each where four would be too many.
fn cpus(hosts: u8) -> u32 {
    let here = thread::available_parallelism().map_or(1, usize::from);
    if hosts > 1 && here < 4 { 1 } else { 2 }
}

/// A busy machine needs longer.
fn boot_limit(hosts: u8) -> Duration {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpus = u32::try_from(cpus).unwrap_or(1);
    scaled(busy(&load).unwrap_or(0.0), cpus, hosts)
}

/// How many processes want to run: over the last minute, or now if that is more.
fn busy(loadavg: &str) -> Option<f64> {
    // "2.74 1.62 0.80 5/123 4567": five of 123 run.
    let mut fields = loadavg.split_whitespace();
    let minute: f64 = fields.next()?.parse().ok()?;
    let now: f64 = fields.nth(2)?.split('/').next()?.parse().ok()?;
    Some(minute.max(now))
}

fn scaled(load: f64, cpus: u32, hosts: u8) -> Duration {
    let factor = 1.0 + load.clamp(0.0, 1000.0) / f64::from(cpus.max(1));
    BOOT.mul_f64(factor * f64::from(hosts)).min(LONGEST_BOOT)
}

fn boot_once(
    options: &Options,
    kernel: &Kernel,
    results: &Path,
    accel: Accel,
    limit: Duration,
) -> Result<Vec<Guest>, BootError> {
    let guests = start_all(options, kernel, results, accel);
    let mut guests = guests.map_err(BootError::Refused)?;
    let deadline = Instant::now() + limit;
    let label = match guests.len() {
        1 => "starting the guest",
        _ => "starting the guests",
    };
    let _shown = Progress::on_terminal(label);
    for guest in &mut guests {
        wait_until_ready(guest, deadline)?;
    }
    Ok(guests)
}

fn start_all(
    options: &Options,
    kernel: &Kernel,
    results: &Path,
    accel: Accel,
) -> Result<Vec<Guest>, Error> {
    let wired = options.hosts == 2;
    let wire = wired.then(UnixStream::pair).transpose();
    let wire = wire.context(|| "cannot make the wire between the guests")?;
    let mut ends: Vec<Option<OwnedFd>> = match wire {
        Some((one, two)) => vec![Some(two.into()), Some(one.into())],
        None => vec![None],
    };
    let mut guests = Vec::new();
    for host in 1..=options.hosts {
        let config = Config {
            host,
            hosts: options.hosts,
            driver: options.driver,
            results: results.to_owned(),
            modules: kernel.modules.clone(),
            release: kernel.release.clone(),
        };
        let initrd = memory_file("initramfs", &initramfs(kernel, &config)?)?;
        let console = memory_file("console", &[])?;
        fcntl_setfl(&console, OFlags::APPEND | OFlags::RDWR)
            .context(|| "cannot prepare the console")?;
        let machine = qemu::Machine {
            host,
            wired,
            kernel: kernel.image(),
            initrd: path_of(&initrd),
            console: path_of(&console),
            results: results.to_owned(),
            memory_mib: options.memory_mib,
            cpus: options.cpus.unwrap_or_else(|| cpus(options.hosts)),
        };
        let wire = ends.pop().flatten();
        guests.push(start(&machine, accel, (console, initrd), wire)?);
    }
    Ok(guests)
}

fn start(
    machine: &qemu::Machine,
    accel: Accel,
    (console, initrd): (File, File),
    wire: Option<OwnedFd>,
) -> Result<Guest, Error> {
    let what = || "cannot start QEMU";
    let (port, theirs) = UnixStream::pair().context(what)?;
    let program = helper::own_exe()?;
    // This program starts QEMU in a session of its own: the terminal's Ctrl-C does not reach it,
    // and it dies with us.
    let mut command = process::Command::new(program);
    command.arg(helper::DETACHED).arg(process::id().to_string());
    command.arg(packages::qemu());
    command.args(machine.args(accel));
    command.stdin(OwnedFd::from(theirs));
    command.stdout(wire.map_or_else(Stdio::null, Stdio::from));
    command.stderr(console.try_clone().context(what)?);
    let child = command.spawn().context(what)?;
    Ok(Guest {
        host: machine.host,
        port,
        decoder: Decoder::default(),
        emulated: accel == Accel::Tcg,
        child,
        console,
        _initrd: initrd,
    })
}

/// The first frame is that the devices are up, or why not; before it, the guest may be lost.
fn wait_until_ready(guest: &mut Guest, deadline: Instant) -> Result<(), BootError> {
    let lost = |guest: &mut Guest, why: String| {
        let console = guest.console();
        BootError::Lost(format!("{why}; its console:\n{console}"))
    };
    let mut buffer = vec![0; PIECE];
    loop {
        match guest.decoder.next() {
            Ok(Some(frame)) if frame.kind == Kind::Ready => return Ok(()),
            Ok(Some(frame)) => {
                return Err(BootError::Refused(frame.failure()));
            }
            Ok(None) => {}
            Err(why) => return Err(lost(guest, format!("the guest sent {why}"))),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(lost(guest, "it did not come up in time".to_owned()));
        }
        let read = match wait_readable(&guest.port, left.min(LOOK)) {
            Ok(false) => continue,
            Ok(true) => guest.port.read(&mut buffer),
            Err(error) => Err(error),
        };
        match read {
            Ok(0) => {
                let status = guest.child.wait();
                // A guest that panics ends QEMU with 0.
                if status.as_ref().is_ok_and(process::ExitStatus::success) {
                    return Err(lost(guest, "it ended while it was starting".to_owned()));
                }
                let console = guest.console();
                let error = Error::new(format!("QEMU failed: {console}"));
                return Err(BootError::Refused(error.with_code(125)));
            }
            Ok(count) => guest.decoder.push(&buffer[..count]),
            Err(error) => return Err(lost(guest, format!("its port fails: {error}"))),
        }
    }
}

/// Waits until something can be read, or the peer has gone, or the time is over.
fn wait_readable(fd: &impl AsFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&limit))? > 0)
}

fn initramfs(kernel: &Kernel, config: &Config) -> Result<Vec<u8>, Error> {
    let mut archive = Archive::with_init()?;
    archive.file(agent::CONFIG.as_ref(), &config.to_bytes());
    for file in kernel.load()? {
        let bytes = fs::read(&file).context(|| format!("cannot read {}", file.display()))?;
        let name = file.file_name().unwrap_or_default();
        archive.file(&PathBuf::from(agent::MODULES).join(name), &bytes);
    }
    Ok(archive.finish())
}

/// A file without a name, which is gone with the last process that has it open.
fn memory_file(name: &str, content: &[u8]) -> Result<File, Error> {
    let what = || format!("cannot make the {name}");
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).context(what)?;
    let mut file = File::from(fd);
    io::Write::write_all(&mut file, content).context(what)?;
    Ok(file)
}

/// Where QEMU finds a file that only this process has open.
fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd()))
}

/// The important part of a console: from the kernel panic on, else the last lines.
fn last_words(console: &str) -> String {
    let lines: Vec<&str> = console.lines().map(str::trim_end).collect();
    let dying = |line: &&str| {
        let marks = ["BUG: ", "Oops", "Kernel panic", "sysrq: ", "watchdog: "];
        marks.iter().any(|mark| line.contains(mark))
    };
    let from = lines.iter().position(dying);
    let from = from.unwrap_or_else(|| lines.len().saturating_sub(SHOWN));
    let shown: Vec<&str> = lines.iter().skip(from).take(SHOWN).copied().collect();
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::{BOOT, LONGEST_BOOT, SHOWN, busy, last_words, scaled};

    #[test]
    fn output_of_a_panicking_kernel_begins_at_its_first_line() {
        let long = "more\r\n".repeat(100);
        let text = last_words(&format!(
            "SeaBIOS\r\n[ 2.0] sysrq: Trigger a crash\r\n{long}"
        ));
        assert!(
            text.starts_with("[ 2.0] sysrq: Trigger a crash\nmore\n"),
            "{text}"
        );
        assert_eq!(text.lines().count(), SHOWN);
        assert_eq!(last_words("qemu: no\n"), "qemu: no");
        assert!(last_words(&format!("{long}last")).ends_with("more\nlast"));
    }

    #[test]
    fn a_busy_machine_gets_longer() {
        assert_eq!(busy("2.50 1.62 0.80 1/123 4567\n"), Some(2.5));
        assert_eq!(busy("0.50 1.62 0.80 7/123 4567\n"), Some(7.0));
        assert_eq!(busy(""), None);
        assert_eq!(scaled(0.0, 2, 1), BOOT);
        assert_eq!(scaled(4.0, 2, 1), BOOT * 3);
        assert_eq!(scaled(0.0, 2, 2), BOOT * 2);
        assert_eq!(scaled(1e9, 1, 2), LONGEST_BOOT);
    }
}
