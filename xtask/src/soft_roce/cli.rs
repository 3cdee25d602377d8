//! The command line of `cargo xtask soft-roce`.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::iter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::error::{Context as _, Error};
use crate::packages::{self, Policy};

use super::guest::say;
use super::kernel::{self, Freshness};
use super::{
    Accel, Command, Options, Way, choose, guest, launch, native, run, signals, status, wire,
};

const HELP: &str = "\
An RDMA device on a machine without RDMA hardware: natively where the kernel offers
rdma_rxe, else in a guest, a virtual machine that runs what was built here.

Usage: cargo xtask soft-roce COMMAND [OPTION…]

  up               natively: make the devices rxe0 and rxe1, on a wire of their own;
                   guest: fetch what it needs, and start it once
  down             remove what `up` made natively
  status           what this machine offers, and what is missing
  test             the tests that need a device
  run [--] CMD…    run a command where the devices are; its exit code is this one's
  shell            a shell where the devices are

  --native         on this machine's kernel (needs root or sudo)
  --guest          in a virtual machine (needs no root)
  --hosts N        2: two guests on one wire; CMD runs in both, SOFT_ROCE_HOST says which
                   one, SOFT_ROCE_PEER is the other's address; the first one's exit code
                   counts
  --timeout TIME   stop the job after TIME, such as 90, 90s, 5m (run, test: 20m; shell: 0,
                   no limit); the exit code is then 124
  --results DIR    the one folder that a guest can write to, SOFT_ROCE_RESULTS in it
                   (target/soft-roce/results)
  --kernel NAME    the guest's kernel: a package, or the start of a version, such as 6.12
  --accel HOW      auto, kvm or tcg (emulation)
  --memory MIB     the guest's memory (1024)
  --cpus N         the guest's processors (2; with --hosts 2 on a small machine 1)
  --cache          with `down`: remove the guests' kernels too
  --yes            install what is missing without asking
  --no-install     install nothing, print what to install
  -h, --help       this text

The command finds in its environment: SOFT_ROCE (native or guest), VERBS_DEVICE and
VERBS_PEER_DEVICE (the two devices), VERBS_NETDEV and VERBS_PEER_NETDEV (the links below
them, which it may break, with ip and tc). In a guest it is root, sees this machine's files
as they are, and loses on exit whatever it writes, but for the results.

Exit codes of our own: 2 wrong usage, 124 time over, 125 the guest failed, 126 and 127 the
command cannot be run.";

/// What was asked for.
#[derive(Debug)]
struct Request {
    command: String,
    options: Options,
    timeout: Option<Option<Duration>>,
    cache: bool,
    argv: Vec<OsString>,
}

/// `cargo xtask soft-roce …`
#[expect(
    clippy::print_stdout,
    reason = "help and status are what was asked for"
)]
pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    launch::exec_if_asked(&args)?;
    let Some(mut request) = parse(args)? else {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    let (options, command) = (&mut request.options, request.command.as_str());
    if let Some(timeout) = request.timeout {
        options.timeout = timeout;
    } else if command == "shell" {
        options.timeout = None;
    }
    if command == "test" {
        // As `cargo xtask test` does it.
        crate::process::end_children_when_told_to_end()?;
        return crate::test::device(options);
    }
    signals::stay_default()?;
    match command {
        "up" => up(options),
        "down" => down(options, request.cache),
        "status" => {
            println!("{}", status::report());
            Ok(ExitCode::SUCCESS)
        }
        "run" => run_here(options, request.argv),
        _ => shell(options),
    }
}

fn up(options: &Options) -> Result<ExitCode, Error> {
    match choose(options.way, options.hosts) {
        Way::Native => {
            native::up(options.install)?;
            let devices = wire::DEVICES.join(" and ");
            say(&format!(
                "{devices} are up; `cargo xtask soft-roce down` removes them"
            ));
        }
        _ => {
            packages::ensure(&guest::NEEDS, options.install)?;
            let wanted = options.kernel.as_deref();
            let kernel = kernel::get(wanted, Freshness::Newest, options.install)?;
            let start = Instant::now();
            let command = here(vec!["true".into()])?;
            let code = guest::run(options, &command)?;
            if code != 0 {
                let why = format!("the guest cannot even run `true`: exit code {code}");
                return Err(Error::new(why));
            }
            say(&format!(
                "a guest with the kernel {} started, had its devices and ended in {:.1} s; there \
                 is one at each `run`, none stays up",
                kernel.release,
                start.elapsed().as_secs_f64()
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn down(options: &Options, cache: bool) -> Result<ExitCode, Error> {
    if options.way != Way::Guest {
        let removed = native::down()?;
        match removed.is_empty() {
            true => say("nothing was up natively"),
            false => say(&format!("removed {}", removed.join(", "))),
        }
    }
    if cache {
        let dir = kernel::remove_cache()?;
        say(&format!("removed {}", dir.display()));
    }
    Ok(ExitCode::SUCCESS)
}

fn run_here(options: &mut Options, argv: Vec<OsString>) -> Result<ExitCode, Error> {
    if argv.is_empty() {
        return Err(Error::usage(
            "run what? Try `cargo xtask soft-roce run -- ibv_devices`",
        ));
    }
    options.attached = true;
    let code = run(options, &here(argv)?)?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn shell(options: &mut Options) -> Result<ExitCode, Error> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Error::usage(
            "a shell needs a terminal on its input and output: use `run` for anything else, such \
             as `cargo xtask soft-roce run -- sh < script`",
        ));
    }
    options.terminal = true;
    let shell = env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
    run_here(options, vec![shell])
}

/// A command in the current folder.
fn here(argv: Vec<OsString>) -> Result<Command, Error> {
    Ok(Command {
        argv,
        dir: env::current_dir().context(|| "cannot find the current folder")?,
        env: Vec::new(),
    })
}

/// What `args` ask for; `None` is help.
fn parse(args: Vec<OsString>) -> Result<Option<Request>, Error> {
    let mut request = Request {
        command: String::new(),
        options: Options::default(),
        timeout: None,
        cache: false,
        argv: Vec::new(),
    };
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy().into_owned();
        let (name, inline) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (text.as_str(), None),
        };
        let mut value = || {
            let next = || {
                args.next()
                    .map(|value| value.to_string_lossy().into_owned())
            };
            let missing = || Error::usage(format!("{name} needs a value"));
            inline.clone().or_else(next).ok_or_else(missing)
        };
        let options = &mut request.options;
        match name {
            "-h" | "--help" => return Ok(None),
            "--native" => options.way = Way::Native,
            "--guest" => options.way = Way::Guest,
            "--yes" | "-y" => options.install = Policy::Yes,
            "--no-install" => options.install = Policy::No,
            "--cache" => request.cache = true,
            "--hosts" => options.hosts = number(name, &value()?, 1, 2)?,
            "--memory" => options.memory_mib = number(name, &value()?, 256, 1 << 20)?,
            "--cpus" => options.cpus = Some(number(name, &value()?, 1, 64)?),
            "--kernel" => options.kernel = Some(value()?),
            "--results" => options.results = PathBuf::from(value()?),
            "--timeout" => request.timeout = Some(time(&value()?)?),
            "--accel" => options.accel = accel(&value()?)?,
            "--" if request.command == "run" => {
                request.argv = args.collect();
                break;
            }
            _ if name.starts_with('-') => {
                return Err(Error::usage(format!(
                    "there is no option `{name}`\n\n{HELP}"
                )));
            }
            _ if request.command.is_empty() => request.command = text,
            _ if request.command == "run" => {
                request.argv = iter::once(arg).chain(args).collect();
                break;
            }
            _ => return Err(Error::usage(format!("what is `{text}` for?\n\n{HELP}"))),
        }
    }
    match request.command.as_str() {
        "" | "help" => Ok(None),
        "up" | "down" | "status" | "test" | "run" | "shell" => Ok(Some(request)),
        other => Err(Error::usage(format!(
            "there is no command `{other}`\n\n{HELP}"
        ))),
    }
}

fn number<N: std::str::FromStr + PartialOrd + std::fmt::Display>(
    name: &str,
    text: &str,
    min: N,
    max: N,
) -> Result<N, Error> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (&min..=&max).contains(&number));
    number.ok_or_else(|| {
        Error::usage(format!(
            "{name} takes a number from {min} to {max}, not `{text}`"
        ))
    })
}

/// A time limit; `Some(None)` would be odd, so that `None` is "no limit".
fn time(text: &str) -> Result<Option<Duration>, Error> {
    let (digits, unit) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(digits) if text.ends_with('m') => (digits, 60.0),
        Some(digits) if text.ends_with('h') => (digits, 3600.0),
        Some(digits) => (digits, 1.0),
        None => (text, 1.0),
    };
    let seconds = digits.parse::<f64>().ok().map(|number| number * unit);
    let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let limit = limit.filter(|limit| *limit < Duration::from_secs(366 * 24 * 3600));
    let limit = limit.ok_or_else(|| {
        Error::usage(format!(
            "--timeout takes a time such as 90, 90s, 5m or 1h, not `{text}`"
        ))
    })?;
    Ok((!limit.is_zero()).then_some(limit))
}

fn accel(text: &str) -> Result<Accel, Error> {
    match text {
        "auto" => Ok(Accel::Auto),
        "kvm" => Ok(Accel::Kvm),
        "tcg" => Ok(Accel::Tcg),
        _ => Err(Error::usage(format!(
            "--accel takes auto, kvm or tcg, not `{text}`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Request, parse, time};
    use crate::soft_roce::Way;
    use std::ffi::OsString;
    use std::time::Duration;

    fn request(line: &str) -> Request {
        let args = line.split(' ').map(OsString::from).collect();
        parse(args).unwrap().unwrap()
    }

    fn error(line: &str) -> String {
        let args = line.split(' ').map(OsString::from).collect();
        parse(args).unwrap_err().to_string()
    }

    #[test]
    fn a_command_keeps_its_own_options() {
        let plain = request("run --guest --timeout 5m ls -l --native");
        assert_eq!(plain.options.way, Way::Guest);
        assert_eq!(plain.argv, ["ls", "-l", "--native"]);
        let marked = request("--hosts=2 run -- --odd -- x");
        assert_eq!(marked.options.hosts, 2);
        assert_eq!(marked.argv, ["--odd", "--", "x"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(error("run --frobnicate").contains("--frobnicate"));
        assert!(error("runn").contains("runn"));
        assert!(error("run --hosts 3 x").contains("from 1 to 2"));
        assert!(error("run --timeout").contains("needs a value"));
        assert!(error("up now").contains("now"));
    }

    #[test]
    fn times_have_units() {
        let limit = |text| time(text).unwrap();
        assert_eq!(limit("90"), Some(Duration::from_secs(90)));
        assert_eq!(limit("0.5s"), Some(Duration::from_millis(500)));
        assert_eq!(limit("5m"), Some(Duration::from_secs(300)));
        assert_eq!(limit("1h"), Some(Duration::from_secs(3600)));
        assert_eq!(limit("0"), None);
        for odd in ["", "m", "-1", "1d", "inf", "nan"] {
            assert!(time(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn help_is_asked_for_in_many_ways() {
        for line in ["--help", "-h", "help", "run --help", "up -h"] {
            let args = line.split(' ').map(OsString::from).collect();
            assert!(parse(args).unwrap().is_none(), "{line}");
        }
    }
}
