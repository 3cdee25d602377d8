//! The plan of a benchmark: measurements, places and repetitions.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use soft_roce::Way;

use super::contest::Place;
use crate::args::Args;
use crate::error::Error;
use crate::jobs;
use crate::packages::{self, Need, Policy};

/// A part of the report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Part {
    Instructions,
    Perftest,
    Streams,
    Async,
    Scale,
    Transfer,
    Build,
}

impl Part {
    pub(super) const ALL: [Self; 7] = [
        Self::Instructions,
        Self::Perftest,
        Self::Streams,
        Self::Async,
        Self::Scale,
        Self::Transfer,
        Self::Build,
    ];

    /// Without `--only` and `--full`: not those that would take more than ten minutes with the others.
    pub(super) const USUAL: [Self; 5] = [
        Self::Instructions,
        Self::Perftest,
        Self::Streams,
        Self::Async,
        Self::Scale,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Perftest => "perftest",
            Self::Streams => "streams",
            Self::Async => "async",
            Self::Scale => "scale",
            Self::Transfer => "transfer",
            Self::Build => "build",
        }
    }

    /// How often programs are run in turns, unless that is given.
    const fn usual_rounds(self, full: bool) -> usize {
        match (self, full) {
            // Rounds for times on the stand-in.
            (Self::Instructions, false) => 5,
            (Self::Instructions, true) => 15,
            (Self::Transfer, false) => 7,
            (Self::Scale | Self::Build, true) => 3,
            (_, false) => 2,
            (_, true) => 10,
        }
    }

    /// Whether it runs programs on RDMA devices.
    const fn has_devices(self) -> bool {
        !matches!(self, Self::Instructions | Self::Build)
    }
}

/// The options.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) parts: Vec<Part>,
    pub(super) full: bool,
    /// How often programs are run in turns, if that is given.
    rounds: Option<usize>,
    /// Whether the figures go to the docs.
    pub(super) updates: bool,
    /// Even if they are not fit for the docs.
    pub(super) is_forced: bool,
    pub(super) place: Place,
    pub(super) gid: Option<String>,
    /// Another checkout of the workspace, whose builds are measured in turns with those of this one.
    pub(super) beside: Option<PathBuf>,
}

impl Plan {
    pub(super) fn read(args: &mut Args, policy: Policy) -> Result<Self, Error> {
        let full = args.flag("--full");
        let parts = match args.value("--only")? {
            None if full => Part::ALL.to_vec(),
            None => Part::USUAL.to_vec(),
            Some(names) => {
                let part = |name: &str| {
                    let part = Part::ALL.into_iter().find(|part| part.name() == name);
                    let all = Part::ALL.map(Part::name).join(", ");
                    let complaint = format!("there is no part `{name}`, only: {all}");
                    part.ok_or_else(|| args.usage(&complaint))
                };
                names.split(',').map(part).collect::<Result<_, _>>()?
            }
        };
        let rounds = args.value("--rounds")?.map(|number| {
            let parsed = number
                .parse()
                .ok()
                .filter(|rounds| (1..=1000).contains(rounds));
            let complaint = format!("--rounds takes a number from 1 to 1000, not `{number}`");
            parsed.ok_or_else(|| args.usage(&complaint))
        });
        let rounds = rounds.transpose()?;
        let updates = args.flag("--update-docs");
        let is_forced = args.flag("--force");
        if is_forced && !updates {
            return Err(args.usage("`--force` is for --update-docs"));
        }
        let is_few = rounds.is_some_and(|rounds| rounds < DOCUMENTED);
        if updates && is_few && parts.contains(&Part::Perftest) {
            let complaint =
                format!("`--update-docs` needs at least {DOCUMENTED} rounds of the part perftest");
            return Err(args.usage(&complaint));
        }
        let (own, peer) = (args.value("--device")?, args.value("--peer")?);
        let gid = args.value("--gid-index")?;
        let beside = args.value("--beside")?;
        if beside.is_some() && !parts.contains(&Part::Build) {
            return Err(args.usage("`--beside` is for the part build: --only build, or --full"));
        }
        let soft_roce = jobs::options(args, policy)?;
        let is_chosen = soft_roce.way != Way::Auto;
        let (place, gid) = match own {
            Some(_) if is_chosen => {
                let complaint = "`--device` is no soft-RoCE: leave out --guest and --native";
                return Err(args.usage(complaint));
            }
            Some(_) if updates => {
                return Err(args.usage("`--update-docs` is for soft-RoCE, not for --device"));
            }
            Some(own) => {
                let peer = peer.unwrap_or_else(|| own.clone());
                (Place::Devices { own, peer }, gid)
            }
            None if peer.is_some() || gid.is_some() => {
                return Err(args.usage("`--peer` and `--gid-index` are for --device"));
            }
            // Soft-RoCE's GID that is an IPv4 address.
            None => (Place::SoftRoce(Box::new(soft_roce)), Some("1".to_owned())),
        };
        Ok(Self {
            parts,
            full,
            rounds,
            updates,
            is_forced,
            place,
            gid,
            beside: beside.map(PathBuf::from),
        })
    }

    /// Packages that the parts need.
    pub(super) fn needs(&self) -> Vec<Need> {
        let has = |part| self.parts.contains(&part);
        let mut needs = packages::BUILD.to_vec();
        if has(Part::Instructions) || has(Part::Scale) {
            needs.push(packages::VALGRIND);
        }
        if has(Part::Perftest) || has(Part::Transfer) {
            needs.push(packages::PERFTEST);
        }
        if has(Part::Async) {
            needs.push(packages::STRACE);
        }
        if self.parts.iter().any(|part| part.has_devices()) {
            needs.push(packages::TASKSET);
            if let Place::SoftRoce(options) = &self.place {
                needs.extend(soft_roce::needs(&options.of_kernel()));
            }
        }
        needs
    }

    /// How often the programs of a part are run in turns.
    pub(super) fn rounds(&self, part: Part) -> usize {
        let usual = part.usual_rounds(self.full);
        let usual = match part {
            Part::Perftest if self.updates => usual.max(DOCUMENTED),
            _ => usual,
        };
        self.rounds.unwrap_or(usual)
    }

    /// Fails if there is no such device.
    pub(super) fn check_devices(&self) -> Result<(), Error> {
        let Place::Devices { own, peer } = &self.place else {
            return Ok(());
        };
        let complaint = missing(Path::new("/sys/class/infiniband"), [own, peer]);
        complaint.map_or(Ok(()), |complaint| Err(Error::new(complaint)))
    }

    pub(super) const fn is_soft_roce(&self) -> bool {
        matches!(self.place, Place::SoftRoce(_))
    }

    /// A number of operations or bytes for soft-RoCE, and more for a real device.
    pub(super) const fn scaled(&self, count: u64) -> u64 {
        if self.is_soft_roce() {
            count
        } else {
            count * 20
        }
    }

    /// The processors that the two ends are pinned to, near the device.
    pub(super) fn processors(&self) -> [String; 2] {
        let all = match &self.place {
            Place::SoftRoce(_) => String::new(),
            Place::Devices { own, .. } => {
                let file = format!("/sys/class/infiniband/{own}/device/local_cpulist");
                fs::read_to_string(file).unwrap_or_default()
            }
        };
        let count = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        first_two(&all).unwrap_or_else(|| either(&self.place, count).map(str::to_owned))
    }

    /// The command that measures a part in this way.
    pub(super) fn command(&self, part: Part) -> String {
        let mut command = format!("cargo xtask bench --only {}", part.name());
        if self.full {
            command += " --full";
        }
        let rounds = self.rounds(part);
        if rounds != part.usual_rounds(self.full) {
            command += &format!(" --rounds {rounds}");
        }
        match &self.place {
            _ if !part.has_devices() => {}
            Place::Devices { own, peer } => {
                command += &format!(" --device {own}");
                if peer != own {
                    command += &format!(" --peer {peer}");
                }
                if let Some(gid) = &self.gid {
                    command += &format!(" --gid-index {gid}");
                }
            }
            Place::SoftRoce(options) => match options.way {
                Way::Guest => command += " --guest",
                Way::Native => command += " --native",
                _ => {}
            },
        }
        if let Some(beside) = self.beside.as_ref().filter(|_| part == Part::Build) {
            command += &format!(" --beside {}", beside.display());
        }
        command
    }
}

/// The least number of rounds of perftest behind the ratios in the docs.
pub(super) const DOCUMENTED: usize = 10;

/// The complaint if one of these devices is not in the folder of all of them.
fn missing(all: &Path, names: [&String; 2]) -> Option<String> {
    let name = names.into_iter().find(|name| !all.join(name).exists())?;
    let entries = fs::read_dir(all).into_iter().flatten().flatten();
    let mut others: Vec<String> = entries
        .map(|entry| entry.file_name().display().to_string())
        .collect();
    others.sort();
    let others = match others.is_empty() {
        true => "this machine has none".to_owned(),
        false => format!("there are: {}", others.join(", ")),
    };
    Some(format!("there is no RDMA device `{name}`; {others}"))
}

/// Two processors, if nothing more is known of the machine of the devices; this machine has
/// `count`.
const fn either(place: &Place, count: usize) -> [&'static str; 2] {
    match (place, count) {
        (Place::Devices { .. }, 1) => ["0", "0"],
        // A guest has two, but this may become the kernel of this machine: then the first is all there is.
        (Place::SoftRoce(_), 1) => ["0-1", "0-1"],
        _ => ["0", "1"],
    }
}

/// The first two of a list such as `0-7,16`.
fn first_two(list: &str) -> Option<[String; 2]> {
    let mut all = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    });
    let mut numbers = all.by_ref().flatten();
    Some([numbers.next()?.to_string(), numbers.next()?.to_string()])
}

#[cfg(test)]
mod tests {
    use super::{Args, DOCUMENTED, Part, Place, Plan, Policy, either, first_two, missing};
    use std::{env, fs, process};

    fn plan(words: &str) -> Result<Plan, String> {
        let words = words.split_whitespace().map(Into::into).collect();
        let mut args = Args::new("Usage: try", words).unwrap();
        let plan = Plan::read(&mut args, Policy::No).map_err(|error| error.to_string())?;
        args.finish().map_err(|error| error.to_string())?;
        Ok(plan)
    }

    #[test]
    fn all_parts_but_the_longest_are_measured_unless_some_are_named() {
        let usual = plan("").unwrap().parts;
        assert_eq!(
            [&usual[..], &[Part::Transfer, Part::Build]].concat(),
            Part::ALL
        );
        assert_eq!(plan("--full").unwrap().parts, Part::ALL);
        assert_eq!(plan("--only build").unwrap().parts, [Part::Build]);
        let two = plan("--only perftest,instructions --full").unwrap();
        assert_eq!(two.parts, [Part::Perftest, Part::Instructions]);
        let twice = plan("--full --rounds 2").unwrap();
        let command = "cargo xtask bench --only scale --full --rounds 2";
        assert_eq!(twice.command(Part::Scale), command);
        let error = plan("--only instruction").unwrap_err();
        assert!(error.contains("only: instructions"), "{error}");
    }

    #[test]
    fn a_device_is_its_own_peer_unless_there_is_another() {
        let one = plan("--device mlx5_0 --only perftest").unwrap();
        assert!(matches!(&one.place, Place::Devices { own, peer } if own == peer));
        let command = "cargo xtask bench --only perftest --device mlx5_0";
        assert_eq!(one.command(Part::Perftest), command);
        let two = plan("--device a --peer b --gid-index 3").unwrap();
        assert_eq!(two.gid.as_deref(), Some("3"));
        for words in [
            "--device a --guest",
            "--peer b",
            "--beside a --only scale",
            "--beside a",
            "--gid-index 3",
            "--rounds 0",
            "--rounds many",
            "--force",
            "--update-docs --device a",
        ] {
            assert!(plan(words).is_err(), "{words}");
        }
    }

    #[test]
    fn each_part_has_its_rounds_unless_a_number_is_given() {
        let rounds = |words: &str, part| plan(words).unwrap().rounds(part);
        assert_eq!(rounds("", Part::Perftest), 2);
        assert_eq!(rounds("", Part::Instructions), 5);
        assert_eq!(rounds("--full", Part::Perftest), 10);
        assert_eq!(rounds("--full", Part::Scale), 3);
        for part in Part::ALL {
            assert_eq!(rounds("--rounds 4", part), 4);
        }
    }

    #[test]
    fn documented_figures_have_enough_rounds() {
        let usual = plan("--update-docs").unwrap();
        assert_eq!(usual.rounds(Part::Perftest), DOCUMENTED);
        assert_eq!(usual.rounds(Part::Streams), 2);
        let command = "cargo xtask bench --only perftest --rounds 10";
        assert_eq!(usual.command(Part::Perftest), command);
        let more = plan("--update-docs --rounds 20").unwrap();
        assert_eq!(more.rounds(Part::Perftest), 20);
        assert!(plan("--update-docs --rounds 9").is_err());
        assert!(plan("--update-docs --rounds 9 --only instructions").is_ok());
    }

    #[test]
    fn a_device_that_is_not_there_is_named_with_the_others() {
        let dir = env::temp_dir().join(format!("xtask-devices-{}", process::id()));
        let names = ["a", "b"].map(str::to_owned);
        let [a, b] = &names;
        let why = missing(&dir, [a, b]).unwrap();
        assert!(why.contains("`a`; this machine has none"), "{why}");
        fs::create_dir_all(dir.join("a")).unwrap();
        fs::create_dir_all(dir.join("c")).unwrap();
        assert_eq!(missing(&dir, [a, a]), None);
        let why = missing(&dir, [a, b]).unwrap();
        assert!(why.contains("`b`; there are: a, c"), "{why}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn one_processor_is_enough() {
        let device = plan("--device a").unwrap().place;
        let guest = plan("").unwrap().place;
        assert_eq!(either(&device, 1), ["0", "0"]);
        assert_eq!(either(&guest, 1), ["0-1", "0-1"]);
        assert_eq!(either(&guest, 2), ["0", "1"]);
        assert_eq!(either(&device, 64), ["0", "1"]);
    }

    #[test]
    fn the_command_measures_the_same_again() {
        for words in [
            "--only scale --full --rounds 2",
            "--only perftest --device a --peer b --gid-index 3",
            "--only streams --device a --gid-index 0",
            "--only async --guest",
            "--only async --full --native",
            "--only build --beside a",
        ] {
            let first = plan(words).unwrap();
            let command = first.command(first.parts[0]);
            assert_eq!(command, format!("cargo xtask bench {words}"));
            let again = plan(command.strip_prefix("cargo xtask bench ").unwrap()).unwrap();
            assert_eq!(format!("{again:?}"), format!("{first:?}"));
        }
        // A stand-in has no device.
        let all = plan("--device a --gid-index 3 --rounds 6").unwrap();
        let command = "cargo xtask bench --only instructions --rounds 6";
        assert_eq!(all.command(Part::Instructions), command);
    }

    #[test]
    fn another_checkout_is_for_builds_alone() {
        let plan = plan("--full --beside a").unwrap();
        let command = "cargo xtask bench --only build --full --beside a";
        assert_eq!(plan.command(Part::Build), command);
        let command = "cargo xtask bench --only scale --full";
        assert_eq!(plan.command(Part::Scale), command);
    }

    #[test]
    fn only_what_is_measured_needs_its_tools() {
        let needs = |words: &str| plan(words).unwrap().needs().len();
        assert!(needs("--only instructions") < needs("--only perftest"));
        assert!(needs("--only perftest --device a") < needs("--only perftest --guest"));
    }

    #[test]
    fn the_first_processors_near_a_device_are_taken() {
        let two = |list| first_two(list).map(|[a, b]| format!("{a} {b}"));
        assert_eq!(two("4-7,12\n").as_deref(), Some("4 5"));
        assert_eq!(two("3,9").as_deref(), Some("3 9"));
        assert_eq!(two("3"), None);
        assert_eq!(two(""), None);
    }
}
