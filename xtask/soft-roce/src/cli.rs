//! The command line of `cargo soft-roce`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lexopt::Arg::{Long, Short, Value};
use lexopt::{Parser, ValueExt};

use crate::error::Error;
use crate::kernel::{self, Freshness};
use crate::packages::{self, Policy};
use crate::{
    Accel, Command, Driver, Options, Way, choose, guest, native, run, say, signals, status, test,
    user,
};

const HELP: &str = "\
RDMA devices for tests and programs of any crate, on a machine without RDMA hardware: natively
where the kernel offers rdma_rxe, else in user space, or in a guest, a virtual machine that runs what was
built here.

Usage: cargo soft-roce COMMAND [OPTION…]

  test [ARG…] [-- TEST_ARG…]
                   build the tests of the crate in this folder, as `cargo test ARG…` does, and run
                   them where the devices are, with TEST_ARG…, such as `-- --ignored`
  run [--] CMD…    run a command where the devices are; its exit code is this one's
  shell            a shell where the devices are
  status           what `test` and `run` would use on this machine and why, and what is missing
  up               natively: make the devices rxe0 and rxe1 (siw0 and siw1), on a wire of
                   their own; guest: fetch what it needs, and start it once
  down             remove what `up` made natively

  --native         on this machine's kernel (needs root or sudo)
  --guest          in a virtual machine (needs no root): chosen for --driver siw, --hosts 2 and --kernel
  --user           in user space: programs find a libibverbs of this project's, with the devices soft0
                   and soft1, which joins processes over UDP, and a librdmacm (needs cc; nothing of the
                   kernel, and sysfs does not know of them)
  --driver NAME    rxe, soft-RoCE (the default), or siw, soft-iWARP: the devices are then siw0 and
                   siw1, and connect by librdmacm only. Where a kernel lacks siw, as Debian's
                   do, it is built for the guest from the kernel's source package, once
                   (160 MB of packages, 5 MB are kept; needs gcc and make; a minute)
  --hosts N        2: two guests on one wire; CMD runs in both, SOFT_ROCE_HOST says which
                   one, SOFT_ROCE_PEER is the other's address; the first one's exit code
                   counts
  --timeout TIME   stop after TIME, such as 90, 90s, 5m (run, test: 20m; shell: 0, no limit);
                   the exit code is then 124
  --results DIR    the one folder that a guest can write to, SOFT_ROCE_RESULTS in it
                   (soft-roce/results in the crate's target folder)
  --kernel NAME    the guest's kernel: a package, or the start of a version, such as 6.12
  --accel HOW      auto, kvm or tcg (emulation)
  --memory MIB     the guest's memory (1024)
  --cpus N         the guest's processors (2; with --hosts 2 on a small machine 1)
  --cache          with `down`: remove the guests' kernels too
  --yes            install what is missing without asking
  --no-install     install nothing, print what to install
  -h, --help       this text

As cargo's runner, each test program in a run of its own:
  CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='cargo-soft-roce run --' cargo test

The command finds in its environment: SOFT_ROCE (native, guest or user), SOFT_ROCE_DRIVER (rxe or
siw), VERBS_DEVICE and VERBS_PEER_DEVICE (the two devices), VERBS_NETDEV and VERBS_PEER_NETDEV
(the links below them, which it may break, with ip and tc). In a guest it is root, sees this machine's files
as they are; what it writes is lost on exit, except for the results.

Exit codes of this program: 2 wrong usage, 124 timeout, 125 the guest failed, 126 and 127 the
command cannot be run.";

/// The command line, parsed.
#[derive(Debug, Default)]
struct Request {
    command: String,
    options: Options,
    timeout: Option<Option<Duration>>,
    cache: bool,
    /// The command of `run`, the arguments for cargo of `test`.
    args: Vec<OsString>,
    /// The arguments for test programs.
    test_args: Vec<OsString>,
}

/// Does what `args` ask for: the whole program but its name, which is `name` in messages.
///
/// # Errors
///
/// If `args` are wrong, and if what they ask for fails; the message says what to do.
#[expect(
    clippy::print_stdout,
    reason = "help and status are what was asked for"
)]
pub fn main(name: &str, args: Vec<OsString>) -> Result<ExitCode, Error> {
    let Some(request) = parse(args)? else {
        println!("{}", HELP.replace("cargo soft-roce", name));
        return Ok(ExitCode::SUCCESS);
    };
    let options = request.options()?;
    signals::stay_default()?;
    match request.command.as_str() {
        "up" => up(name, &options),
        "down" => down(&options, request.cache),
        "status" => {
            println!("{}", status::report(name, &options));
            Ok(ExitCode::SUCCESS)
        }
        "run" if request.args.is_empty() => Err(Error::usage(format!(
            "run what? Try `{name} run -- ibv_devices`"
        ))),
        "run" => attached(options, request.args),
        "test" => Ok(exit_code(test::run(
            &options,
            &request.args,
            &request.test_args,
        )?)),
        _ => shell(name, options),
    }
}

/// The options in `args`, for a task runner that has a `test` of its own; `None` is help.
///
/// # Errors
///
/// If there is anything else in `args`.
pub fn options(args: Vec<OsString>) -> Result<Option<Options>, Error> {
    let args = [vec![OsString::from("up")], args].concat();
    parse(args)?.map(|request| request.options()).transpose()
}

impl Request {
    fn options(&self) -> Result<Options, Error> {
        let mut options = self.options.clone();
        if let Some(timeout) = self.timeout {
            options.timeout = timeout;
        } else if self.command == "shell" {
            options.timeout = None;
        }
        Ok(options)
    }
}

fn up(name: &str, options: &Options) -> Result<ExitCode, Error> {
    match choose(options) {
        Way::Native => {
            native::up(options.driver, options.install)?;
            let devices = options.driver.devices().join(" and ");
            say(&format!("{devices} are up; `{name} down` removes them"));
        }
        Way::User => {
            let library = user::prepare(options)?;
            say(&format!("the library is in {}", library.display()));
        }
        _ => {
            packages::ensure(&guest::needs(options.driver), options.install)?;
            let kernel = guest::kernel(options, Freshness::Newest)?;
            let start = Instant::now();
            let code = guest::run(options, &Command::here(["true"])?)?;
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

/// Runs a command as if it ran in our place.
fn attached(options: Options, argv: Vec<OsString>) -> Result<ExitCode, Error> {
    let options = Options {
        attached: true,
        ..options
    };
    Ok(exit_code(run(&options, &Command::here(argv)?)?))
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn shell(name: &str, options: Options) -> Result<ExitCode, Error> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Error::usage(format!(
            "a shell needs a terminal on its input and output: use `run` for anything else, such \
             as `{name} run -- sh < script`"
        )));
    }
    let shell = env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
    let options = Options {
        terminal: true,
        ..options
    };
    attached(options, vec![shell])
}

/// The request in `args`; `None` is help.
fn parse(mut args: Vec<OsString>) -> Result<Option<Request>, Error> {
    let end = args.iter().position(|arg| arg == "--");
    let mut after = end.map(|end| args.split_off(end)).unwrap_or_default();
    let mut request = Request::default();
    let mut parser = Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(usage)? {
        let options = &mut request.options;
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("native") => options.way = Way::Native,
            Long("guest") => options.way = Way::Guest,
            Long("user") => options.way = Way::User,
            Short('y') | Long("yes") => options.install = Policy::Yes,
            Long("no-install") => options.install = Policy::No,
            Long("cache") => request.cache = true,
            Long("hosts") => options.hosts = number("--hosts", &mut parser, 1, 2)?,
            Long("memory") => options.memory_mib = number("--memory", &mut parser, 256, 1 << 20)?,
            Long("cpus") => options.cpus = Some(number("--cpus", &mut parser, 1, 64)?),
            Long("kernel") => options.kernel = Some(text(&mut parser)?),
            Long("results") => options.results = Some(parser.value().map_err(usage)?.into()),
            Long("timeout") => request.timeout = Some(time(&text(&mut parser)?)?),
            Long("driver") => options.driver = driver(&text(&mut parser)?)?,
            Long("accel") => options.accel = accel(&text(&mut parser)?)?,
            Value(word) if request.command.is_empty() => {
                request.command = word.to_string_lossy().into_owned();
            }
            Value(word) if request.command == "run" => {
                request.args.push(word);
                request.args.extend(parser.raw_args().map_err(usage)?);
                request.args.append(&mut after);
            }
            Value(word) if request.command == "test" => request.args.push(word),
            Long(name) if request.command == "test" => {
                let name = OsString::from(format!("--{name}"));
                let value = parser.optional_value();
                request.args.push(joined(name, OsStr::new("="), value));
            }
            Short(letter) if request.command == "test" => {
                let name = OsString::from(format!("-{letter}"));
                let value = parser.optional_value();
                request.args.push(joined(name, OsStr::new(""), value));
            }
            other => return Err(usage(other.unexpected())),
        }
    }
    let after = after.split_off(after.len().min(1));
    match request.command.as_str() {
        "" | "help" => return Ok(None),
        "run" if request.args.is_empty() => request.args = after,
        "test" => request.test_args = after,
        "run" | "up" | "down" | "status" | "shell" if after.is_empty() => {}
        "up" | "down" | "status" | "shell" => {
            return Err(Error::usage(format!(
                "`{}` takes nothing after `--` (--help says more)",
                request.command
            )));
        }
        other => {
            return Err(Error::usage(format!(
                "there is no command `{other}` (--help says which there are)"
            )));
        }
    }
    Ok(Some(request))
}

fn usage(error: lexopt::Error) -> Error {
    Error::usage(format!("{error} (--help says more)"))
}

/// An option of cargo's, as it was.
fn joined(mut name: OsString, between: &OsStr, value: Option<OsString>) -> OsString {
    if let Some(value) = value {
        name.push(between);
        name.push(value);
    }
    name
}

fn text(parser: &mut Parser) -> Result<String, Error> {
    parser.value().and_then(ValueExt::string).map_err(usage)
}

fn number<N: std::str::FromStr + PartialOrd + std::fmt::Display>(
    name: &str,
    parser: &mut Parser,
    min: N,
    max: N,
) -> Result<N, Error> {
    let text = text(parser)?;
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
    let found = Accel::ALL.into_iter().find(|accel| accel.name() == text);
    found.ok_or_else(|| Error::usage(format!("--accel takes auto, kvm or tcg, not `{text}`")))
}

fn driver(text: &str) -> Result<Driver, Error> {
    let mut all = Driver::ALL.into_iter();
    let found = all.find(|driver| driver.name() == text);
    found.ok_or_else(|| Error::usage(format!("--driver takes rxe or siw, not `{text}`")))
}

#[cfg(test)]
mod tests {
    use super::{Request, parse, time};
    use crate::{Driver, Way};
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
        assert_eq!(plain.args, ["ls", "-l", "--native"]);
        let marked = request("--hosts=2 run -- --odd -- x");
        assert_eq!(marked.options.hosts, 2);
        assert_eq!(marked.args, ["--odd", "--", "x"]);
    }

    #[test]
    fn the_driver_is_soft_roce_unless_it_is_named() {
        assert_eq!(request("run x").options.driver, Driver::Rxe);
        let named = request("test --driver siw -- --ignored");
        assert_eq!(named.options.driver, Driver::Siw);
        assert!(named.args.is_empty());
    }

    #[test]
    fn options_of_cargo_stay_as_they_were() {
        let line = "--guest test -p a --timeout 9 --test=b -vq -j4 c --yes -- --ignored --guest";
        let request = request(line);
        assert_eq!(request.args, ["-p", "a", "--test=b", "-vq", "-j4", "c"]);
        assert_eq!(request.test_args, ["--ignored", "--guest"]);
        assert_eq!(request.timeout, Some(Some(Duration::from_secs(9))));
    }

    #[test]
    fn errors_name_the_wrong_argument() {
        assert!(error("status -- x").contains("status"));
        assert!(error("run --frobnicate").contains("--frobnicate"));
        assert!(error("runn").contains("runn"));
        assert!(error("run --hosts 3 x").contains("from 1 to 2"));
        assert!(error("run --timeout").contains("--timeout"));
        assert!(error("up now").contains("now"));
        assert!(error("up --driver mlx5").contains("rxe or siw"));
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
