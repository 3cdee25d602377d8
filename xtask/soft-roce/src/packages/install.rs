//! Installing packages: with the distribution's own package manager, after saying what and why.
#![expect(clippy::print_stderr, reason = "it prints what it installs, and asks")]

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use super::{Need, Policy, system_names};
use crate::error::{Context as _, Error};
use crate::process::{Quiet, display, quietly, succeeds, which};

/// How long another package manager may hold the lock.
const LOCK_WAIT: Duration = Duration::from_secs(180);

/// How long one run of a package manager may take.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Package lists older than this are fetched again first: what they name is often gone.
const LISTS_MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// A package manager that this project knows the package names of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manager {
    Apt,
    Dnf,
    Pacman,
}

/// How a command becomes root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    /// It already is.
    Already,
    /// As root, by `sudo -n`, without a password.
    Sudo,
    /// As root, by `sudo`, which asks for a password on the terminal.
    SudoAsking,
}

/// Installs what `missing` needs, or returns an error that explains how to.
pub(crate) fn install(missing: &[Need], policy: Policy) -> Result<(), Error> {
    let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let manager = detect(&os_release, |name| which(name).is_some())
        .ok_or_else(|| Error::new(unknown_system(missing)))?;
    let names = names(missing, manager);

    eprintln!("missing on this system:");
    for need in missing {
        eprintln!("  {}, {}", need.what, need.why);
    }
    let root = how_to_become_root(io::stdin().is_terminal());
    let shown = display(&manager.install(&names, root.unwrap_or(Root::SudoAsking)));
    let by_hand = |why: &str| Error::new(format!("{why}; run this, then try again:\n  {shown}"));
    if policy == Policy::No {
        return Err(by_hand(
            "packages are missing, and --no-install forbids to install them",
        ));
    }
    let Some(root) = root else {
        return Err(by_hand(
            "packages are missing, and installing them needs root (no sudo without a password, no terminal to ask on)",
        ));
    };
    let asks = io::stdin().is_terminal() && io::stderr().is_terminal();
    if policy == Policy::Ask && asks && !answer(&format!("run `{shown}`?"))? {
        return Err(by_hand("packages are missing"));
    }
    if root == Root::SudoAsking {
        // Here, because the password cannot be asked for behind a progress line.
        crate::process::run(Command::new("sudo").arg("-v"))?;
    }
    eprintln!("installing: {shown}");
    manager.run(&names, root)?;
    verify(missing, &names)
}

/// Whether `what`, which is no package, may be made in the way `how`.
pub(crate) fn permit(what: &str, how: &str, policy: Policy) -> Result<(), Error> {
    eprintln!("missing on this system:\n  {what}: {how}");
    let asks = io::stdin().is_terminal() && io::stderr().is_terminal();
    let denied = match policy {
        Policy::No => "--no-install forbids to make it: try again without that",
        Policy::Ask if asks && !answer("go on?")? => "it was not agreed to",
        Policy::Ask | Policy::Yes => return Ok(()),
    };
    Err(Error::new(format!("{what} is missing, and {denied}")))
}

/// Checks again: a package manager may succeed without meeting the need.
fn verify(missing: &[Need], names: &[&str]) -> Result<(), Error> {
    let Some(need) = missing.iter().find(|need| !need.is_met()) else {
        return Ok(());
    };
    Err(Error::new(format!(
        "not found even after {} was installed: {}; is an older or another copy in the way (PATH, \
         PKG_CONFIG_PATH, LIBCLANG_PATH)?",
        names.join(" "),
        need.what,
    )))
}

/// Asks a question on the terminal.
fn answer(question: &str) -> Result<bool, Error> {
    eprint!("{question} [Y/n] ");
    let what = || "cannot ask on the terminal";
    io::stderr().flush().context(what)?;
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer).context(what)?;
    let answer = answer.trim().to_lowercase();
    Ok(read > 0 && matches!(answer.as_str(), "" | "y" | "yes"))
}

fn how_to_become_root(terminal: bool) -> Option<Root> {
    // `/proc/self` belongs to the effective user.
    if fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0) {
        Some(Root::Already)
    } else if succeeds(Command::new("sudo").args(["-n", "true"])) {
        Some(Root::Sudo)
    } else if terminal && which("sudo").is_some() {
        Some(Root::SudoAsking)
    } else {
        None
    }
}

/// The package manager by what the system calls itself, else by what is on PATH.
fn detect(os_release: &str, has: impl Fn(&str) -> bool) -> Option<Manager> {
    let all = [Manager::Apt, Manager::Dnf, Manager::Pacman];
    let ids: Vec<&str> = system_names(os_release).collect();
    let named = |manager: &&Manager| manager.systems().iter().any(|id| ids.contains(id));
    let present = |manager: &&Manager| has(manager.program());
    let by_name = all.iter().filter(named).find(present);
    by_name.or_else(|| all.iter().find(present)).copied()
}

/// The packages to ask for, each once.
fn names(missing: &[Need], manager: Manager) -> Vec<&'static str> {
    let mut names = Vec::new();
    for need in missing {
        let [apt, dnf, pacman] = need.packages;
        let found = match manager {
            Manager::Apt => apt,
            Manager::Dnf => dnf,
            Manager::Pacman => pacman,
        };
        names.extend(found.split_whitespace());
    }
    names.sort_unstable();
    names.dedup();
    names
}

fn unknown_system(missing: &[Need]) -> String {
    let mut message = String::from(
        "this system has none of apt-get, dnf and pacman; install these by hand, then try again:",
    );
    for need in missing {
        let [names, ..] = need.packages;
        message.push_str(&format!(
            "\n  {} (Debian's {names}), {}",
            need.what, need.why
        ));
    }
    message
}

impl Manager {
    fn program(self) -> &'static str {
        match self {
            Self::Apt => "apt-get",
            Self::Dnf => "dnf",
            Self::Pacman => "pacman",
        }
    }

    fn systems(self) -> &'static [&'static str] {
        match self {
            Self::Apt => &["debian", "ubuntu"],
            Self::Dnf => &["fedora", "rhel", "centos"],
            Self::Pacman => &["arch"],
        }
    }

    fn command(self, root: Root, args: &[&str]) -> Command {
        let mut words = match root {
            Root::Already => vec![],
            Root::Sudo => vec!["sudo", "-n"],
            Root::SudoAsking => vec!["sudo"],
        };
        // `env` sets the language, since sudo does not keep all variables and the output is parsed.
        words.extend(["env", "LC_ALL=C"]);
        if self == Self::Apt {
            words.push("DEBIAN_FRONTEND=noninteractive");
        }
        words.push(self.program());
        words.extend(args);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    }

    fn install(self, names: &[&str], root: Root) -> Command {
        let args: &[&str] = match self {
            Self::Apt => &["install", "--yes", "--no-install-recommends"],
            Self::Dnf => &["install", "--assumeyes"],
            Self::Pacman => &["-S", "--needed", "--noconfirm"],
        };
        self.command(root, &[args, names].concat())
    }

    fn refresh(self, root: Root) -> Command {
        let args: &[&str] = match self {
            Self::Apt => &["update"],
            Self::Dnf => &["makecache"],
            Self::Pacman => &["-Sy", "--noconfirm"],
        };
        self.command(root, args)
    }

    fn lists_are_fresh(self) -> bool {
        match self {
            Self::Apt => apt_lists_are_fresh(Path::new("/var/lib/apt/lists")),
            // dnf looks after its own.
            Self::Dnf => true,
            Self::Pacman => fs::read_dir("/var/lib/pacman/sync")
                .is_ok_and(|mut entries| entries.next().is_some()),
        }
    }

    /// Installs; with stale lists, or when that failed, fetches the lists (again) first.
    fn run(self, names: &[&str], root: Root) -> Result<(), Error> {
        let mut fresh = self.lists_are_fresh();
        loop {
            if !fresh {
                let mut refresh = self.refresh(root);
                let quiet = patiently(&mut refresh, "fetching package lists")?;
                if !quiet.success() {
                    // Not the end: what is needed may be in the lists and the cache already.
                    eprintln!("{}", quiet.error(&refresh));
                }
            }
            let mut install = self.install(names, root);
            let quiet = patiently(&mut install, "installing packages")?;
            if quiet.success() {
                return Ok(());
            }
            if !fresh {
                return Err(quiet.error(&install));
            }
            fresh = false;
        }
    }
}

/// Runs a package manager's command; while another one holds its lock, again and again until
/// [`LOCK_WAIT`] is over.
fn patiently(command: &mut Command, label: &str) -> Result<Quiet, Error> {
    let pause = Duration::from_secs(3);
    let mut waited = Duration::ZERO;
    loop {
        let quiet = quietly(command, label, LIMIT)?;
        if quiet.success() || !is_locked(&quiet.output) || waited >= LOCK_WAIT {
            return Ok(quiet);
        }
        if waited.is_zero() {
            let most = LOCK_WAIT.as_secs();
            eprintln!("another package manager is at work; waiting for it, {most} s at most");
        }
        thread::sleep(pause);
        waited += pause;
    }
}

/// Whether a package manager failed only because another one is at work.
fn is_locked(output: &str) -> bool {
    let signs = [
        "Could not get lock",
        "Unable to acquire the dpkg frontend lock",
        "Unable to lock directory",
        "unable to lock database",
    ];
    signs.iter().any(|sign| output.contains(sign))
}

/// Whether there are package lists, fetched not too long ago.
fn apt_lists_are_fresh(lists: &Path) -> bool {
    let Ok(entries) = fs::read_dir(lists) else {
        return false;
    };
    let has_lists = entries
        .filter_map(Result::ok)
        .any(|entry| entry.file_name().to_string_lossy().contains("_Packages"));
    // A list's own time is the server's; these folders are touched by each update.
    let touched = [lists, &lists.join("partial")]
        .iter()
        .filter_map(|dir| fs::metadata(dir).ok()?.modified().ok())
        .max();
    let age = touched.and_then(|time| SystemTime::now().duration_since(time).ok());
    has_lists && age.is_none_or(|age| age < LISTS_MAX_AGE)
}

#[cfg(test)]
mod tests {
    use super::{
        Manager, Root, apt_lists_are_fresh, detect, is_locked, names, permit, unknown_system,
    };
    use crate::packages::{Need, Policy, RDMA_PROVIDERS};
    use crate::process::display;
    use std::path::Path;

    #[test]
    fn the_system_s_name_decides_over_what_else_is_installed() {
        let arch_with_apt = "NAME=\"Arch Linux\"\nID=arch\n";
        assert_eq!(detect(arch_with_apt, |_| true), Some(Manager::Pacman));
        let ubuntu = "ID=ubuntu\nID_LIKE=debian\n";
        assert_eq!(detect(ubuntu, |_| true), Some(Manager::Apt));
        let rocky = "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n";
        assert_eq!(detect(rocky, |_| true), Some(Manager::Dnf));
    }

    #[test]
    fn an_unknown_system_is_known_by_its_tools() {
        assert_eq!(detect("ID=mine", |name| name == "dnf"), Some(Manager::Dnf));
        assert_eq!(
            detect("ID=debian", |name| name == "pacman"),
            Some(Manager::Pacman)
        );
        assert_eq!(detect("ID=debian", |_| false), None);
        assert!(unknown_system(&[RDMA_PROVIDERS]).contains("ibverbs-providers"));
    }

    #[test]
    fn a_package_is_named_once_in_the_words_of_its_distribution() {
        let both = Need::new("both", "to try", ["b a", "", "rdma-core"], || false);
        let needs = [both, RDMA_PROVIDERS];
        assert_eq!(names(&needs, Manager::Pacman), ["rdma-core"]);
        assert_eq!(names(&needs, Manager::Apt), ["a", "b", "ibverbs-providers"]);
    }

    #[test]
    fn commands_never_ask_and_keep_their_environment_through_sudo() {
        assert_eq!(
            display(&Manager::Apt.install(&["xz-utils"], Root::Sudo)),
            "sudo -n env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get install --yes \
             --no-install-recommends xz-utils"
        );
        assert_eq!(
            display(&Manager::Dnf.install(&["xz"], Root::Already)),
            "env LC_ALL=C dnf install --assumeyes xz"
        );
    }

    #[test]
    fn held_lock_is_distinguished_from_other_failures() {
        assert!(is_locked(
            "E: Could not get lock /var/lib/dpkg/lock-frontend."
        ));
        assert!(!is_locked("E: Unable to locate package nonesuch"));
    }

    #[test]
    fn nothing_is_made_that_may_not_be() {
        let denied = permit("the module x", "built in a minute", Policy::No).unwrap_err();
        let text = denied.to_string();
        assert!(
            text.starts_with("the module x is missing, and --no-install"),
            "{text}"
        );
        assert!(permit("the module x", "built in a minute", Policy::Yes).is_ok());
    }

    #[test]
    fn no_lists_are_not_fresh() {
        assert!(!apt_lists_are_fresh(Path::new("/nonexistent")));
    }
}
