//! The command line of QEMU, for each architecture and way to run.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::agent;
use crate::wire;

/// How the guest's instructions are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accel {
    /// KVM where it really works, else TCG.
    Auto,
    /// Virtualisation by the processor.
    Kvm,
    /// Emulation.
    Tcg,
}

impl Accel {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Auto, Self::Kvm, Self::Tcg];

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// The accelerators to try, in this order.
    pub(super) fn candidates(self) -> &'static [Self] {
        match self {
            Self::Auto if kvm_works() => &[Self::Kvm, Self::Tcg],
            Self::Auto | Self::Tcg => &[Self::Tcg],
            Self::Kvm => &[Self::Kvm],
        }
    }
}

/// The hardware and files that one guest is started with.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) host: u8,
    /// Whether another host is at the other end of its wire, which is then open at fd 1.
    pub(super) wired: bool,
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
    pub(super) console: PathBuf,
    pub(super) results: PathBuf,
    pub(super) memory_mib: u32,
    pub(super) cpus: u32,
}

impl Machine {
    /// QEMU's arguments. The port to the guest is open at fd 0.
    pub(super) fn args(&self, accel: Accel) -> Vec<OsString> {
        let arm = cfg!(target_arch = "aarch64");
        let tsc = if arm { None } else { tsc_khz() };
        let kvm = accel == Accel::Kvm;
        // Without a known TSC the kernel has to measure it, which takes the timers of a whole PC.
        let (machine, bus) = match (arm, tsc.is_some()) {
            (true, _) => ("virt,gic-version=max", "device"),
            (false, true) => ("microvm", "device"),
            (false, false) => ("q35", "pci"),
        };
        let (accel, cpu) = match (arm, kvm) {
            (_, true) => ("kvm", "host"),
            (true, false) => ("tcg,thread=multi", "max"),
            // TCG emulates this instruction slowly, and rxe's checksum would use it.
            (false, false) => ("tcg,thread=multi", "max,pclmulqdq=off"),
        };
        let (memory, cpus) = (self.memory_mib.to_string(), self.cpus.to_string());
        let mut args: Vec<OsString> = Vec::new();
        let mut add = |option: &str, value: OsString| args.extend([option.into(), value]);
        for (option, value) in [
            ("-M", machine),
            ("-accel", accel),
            ("-cpu", cpu),
            ("-smp", &cpus),
            ("-m", &memory),
            ("-display", "none"),
        ] {
            add(option, value.into());
        }
        add("-kernel", self.kernel.clone().into());
        add("-initrd", self.initrd.clone().into());
        add("-append", command_line(arm, tsc).into());

        let console = escape(&self.console);
        add(
            "-chardev",
            join(&["file,id=console,append=on,path="], &console),
        );
        add("-serial", "chardev:console".into());
        add("-device", format!("virtio-serial-{bus}").into());
        add("-chardev", "socket,id=port,fd=0".into());
        let port = format!("virtserialport,chardev=port,name={}", agent::PORT);
        add("-device", port.into());

        let read_only = "local,security_model=none,multidevs=remap,readonly=on,id=root,path=/";
        add("-fsdev", read_only.into());
        let root = format!("virtio-9p-{bus},fsdev=root,mount_tag={}", agent::ROOT_TAG);
        add("-device", root.into());
        let writable = "local,security_model=none,multidevs=remap,id=results,path=";
        add("-fsdev", join(&[writable], &escape(&self.results)));
        let tag = agent::RESULTS_TAG;
        let results = format!("virtio-9p-{bus},fsdev=results,mount_tag={tag}");
        add("-device", results.into());

        if self.wired {
            add("-netdev", "socket,id=wire,fd=1".into());
            let (mtu, host) = (wire::MTU, self.host);
            let device = format!(
                "virtio-net-{bus},netdev=wire,host_mtu={mtu},mac=02:00:00:00:00:{host:02x}"
            );
            add("-device", device.into());
        }
        args.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(OsString::from));
        args
    }
}

fn command_line(arm: bool, tsc: Option<u64>) -> String {
    let console = if arm { "ttyAMA0" } else { "ttyS0" };
    let mut line = format!(
        "console={console} quiet panic=-1 oops=panic mitigations=off nokaslr random.trust_cpu=on \
         nowatchdog audit=0 lsm= rcupdate.rcu_expedited=1 cryptomgr.notests trace_clock=local"
    );
    if !arm {
        line.push_str(" no_timer_check 8250.nr_uarts=1");
    }
    if let Some(khz) = tsc {
        line.push_str(&format!(" tsc_early_khz={khz} tsc=reliable"));
    }
    line
}

/// A path as an option's value: QEMU takes `,,` for a comma.
fn escape(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let bytes = path.as_os_str().as_bytes();
    let doubled = bytes.iter().flat_map(|&byte| match byte {
        b',' => vec![b',', b','],
        other => vec![other],
    });
    OsString::from_vec(doubled.collect())
}

fn join(parts: &[&str], end: &OsString) -> OsString {
    let mut all: OsString = parts.concat().into();
    all.push(end);
    all
}

/// Whether KVM can run a guest at the processor's speed.
///
/// A `/dev/kvm` alone does not say so: without hardware support below it (`kvm_pvm`) a guest is
/// slower than by emulation, or does not start.
pub(crate) fn kvm_works() -> bool {
    let device = fs::File::options().read(true).write(true).open("/dev/kvm");
    let hardware = ["/sys/module/kvm_intel", "/sys/module/kvm_amd"];
    let hardware = hardware.iter().any(|module| Path::new(module).exists());
    device.is_ok() && (hardware || cfg!(target_arch = "aarch64"))
}

/// The rate of the time stamp counter, which emulation passes on to the guest as it is.
///
/// A microvm has no timer that the guest's kernel could measure it by on a busy machine: without
/// this number, more than half of the starts at high load hang.
fn tsc_khz() -> Option<u64> {
    let (start, start_ticks) = tick()?;
    thread::sleep(Duration::from_millis(50));
    let (end, end_ticks) = tick()?;
    let nanos = end.duration_since(start).as_nanos();
    let ticks = u128::from(end_ticks.checked_sub(start_ticks)?);
    let khz = u64::try_from(ticks * 1_000_000 / nanos.max(1)).ok()?;
    // Anything else is no time stamp counter as we know it.
    (100_000..20_000_000).contains(&khz).then_some(khz)
}

/// One reading of both clocks: the tightest of a few, since any of them may be interrupted.
fn tick() -> Option<(Instant, u64)> {
    let once = |_| {
        let before = Instant::now();
        let ticks = ticks()?;
        Some((before.elapsed(), before, ticks))
    };
    let best = (0..16).filter_map(once).min()?;
    Some((best.1, best.2))
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    Some(tick_counter::start())
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::{Accel, Machine, command_line, escape, tsc_khz};
    use std::path::Path;

    fn machine(wired: bool) -> Machine {
        Machine {
            host: 2,
            wired,
            kernel: "/k".into(),
            initrd: "/i".into(),
            console: "/c".into(),
            results: "/r,s".into(),
            memory_mib: 512,
            cpus: 2,
        }
    }

    #[test]
    fn only_the_results_can_be_written_to() {
        let args = machine(false).args(Accel::Tcg);
        let exports = args.iter().filter_map(|arg| arg.to_str());
        let exports: Vec<&str> = exports.filter(|arg| arg.starts_with("local,")).collect();
        assert_eq!(exports.len(), 2);
        assert!(exports[0].contains("readonly=on") && exports[0].ends_with("path=/"));
        assert!(exports[1].ends_with("path=/r,,s"));
    }

    #[test]
    fn only_a_second_host_brings_a_network() {
        let nets = |wired| {
            let args = machine(wired).args(Accel::Tcg);
            args.iter().filter(|arg| *arg == "-netdev").count()
        };
        assert_eq!((nets(false), nets(true)), (0, 1));
    }

    #[test]
    fn the_measured_rate_is_passed_on() {
        assert!(
            command_line(false, Some(2_000_000)).ends_with("tsc_early_khz=2000000 tsc=reliable")
        );
        assert!(!command_line(false, None).contains("tsc"));
        assert!(command_line(true, None).contains("ttyAMA0"));
    }

    #[test]
    fn the_rate_is_the_same_each_time() {
        let (first, second) = (tsc_khz(), tsc_khz());
        assert_eq!(first.is_some(), cfg!(target_arch = "x86_64"));
        // Within a hundredth, though anything may run beside this test.
        let (first, second) = (first.unwrap_or(1), second.unwrap_or(1));
        assert!(first.abs_diff(second) <= first / 100, "{first} {second}");
    }

    #[test]
    fn a_comma_in_a_path_is_doubled() {
        assert_eq!(escape(Path::new("/a,b")), "/a,,b");
    }
}
