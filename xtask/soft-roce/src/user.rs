//! Devices in user space: a libibverbs of this project's, in the place of the system's.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{self, Command as Process};

use crate::error::{Context as _, Error};
use crate::packages::library_dirs;
use crate::process::run as run_shown;
use crate::{Command, Driver, Options, cargo, native};

/// The package with the library's source.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/verbs");

/// The two devices that each process has.
const DEVICES: [&str; 2] = ["soft0", "soft1"];

const SONAME: &str = "libibverbs.so.1";
/// The same file is this one, too, so that a process has one card.
const MANAGER: &str = "librdmacm.so.1";
const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

/// The value of `SOFT_ROCE` for a command with these devices.
const NAME: &str = "user";

/// The libraries of the system that a Rust library needs.
const LIBRARIES: [&str; 5] = ["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"];

/// Whether the library's source is where it was when this program was built.
pub(crate) fn is_possible() -> bool {
    Path::new(SOURCE).is_dir()
}

/// Runs a command with the library in its search path.
pub(crate) fn run(options: &Options, command: &Command) -> Result<i32, Error> {
    if options.hosts > 1 {
        return Err(Error::usage("--hosts 2 needs guests: leave --user out"));
    }
    let set = command.env.iter().find(|(name, _)| name == SEARCH_PATH);
    let rest = set.map(|(_, value)| value.clone());
    let rest = rest.or_else(|| env::var_os(SEARCH_PATH));
    let path = joined(prepare(options)?.as_os_str(), rest.as_deref());
    let [device, peer] = DEVICES;
    let env = [
        ("SOFT_ROCE", NAME.into()),
        ("VERBS_DEVICE", device.into()),
        ("VERBS_PEER_DEVICE", peer.into()),
        (SEARCH_PATH, path),
    ];
    native::attach(options, command, &env)
}

/// The search path of a test that cargo gives this one, if this process has the library in its own.
pub(crate) fn search_path(cargos: &OsStr) -> Option<OsString> {
    let own = env::var_os("SOFT_ROCE").filter(|name| name == NAME);
    own.and_then(|_| env::var_os(SEARCH_PATH))
        .map(|own| joined(&own, Some(cargos)))
}

fn joined(first: &OsStr, rest: Option<&OsStr>) -> OsString {
    let rest = rest.filter(|rest| !rest.is_empty());
    [Some(first), rest]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(OsStr::new(":"))
}

/// Builds the library, and returns the folder that has it alone.
pub(crate) fn prepare(options: &Options) -> Result<PathBuf, Error> {
    if options.driver != Driver::Rxe {
        return Err(Error::usage(
            "devices in user space are of RoCE: leave --driver or --user out",
        ));
    }
    let source = Path::new(SOURCE);
    if !is_possible() {
        return Err(Error::new(format!(
            "the source of the library is not at {SOURCE} any more: run this program from a clone of its repository"
        )));
    }
    let (dir, host) = (cargo::dir()?.join(NAME), cargo::host()?);
    let mut build = cargo::cargo();
    build
        .args(["rustc", "--quiet", "--release", "--lib"])
        .args([
            "--features",
            "rdmacm",
            "--crate-type",
            "staticlib",
            "--target",
            &host,
        ])
        .arg("--manifest-path")
        .arg(source.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&dir);
    run_shown(&mut build)?;
    let archive = dir.join(&host).join("release/libsoft_verbs.a");
    let library = dir.join("lib");
    link(source, &archive, &library)?;
    Ok(library)
}

/// Makes the shared library, as rustc cannot: with versions of its symbols.
fn link(source: &Path, archive: &Path, library: &Path) -> Result<(), Error> {
    let version = private_version();
    let map = source.join("libibverbs.map");
    let text = fs::read_to_string(&map).context(|| format!("cannot read {}", map.display()))?;
    fs::create_dir_all(library).context(|| format!("cannot make {}", library.display()))?;
    // Another run may be using the library, or linking it.
    let new = library.with_extension(process::id().to_string());
    let script = new.with_extension("map");
    let what = || format!("cannot write {}", script.display());
    fs::write(&script, text.replace('@', &version)).context(what)?;
    let option = |name: &str, value: &OsStr| {
        let mut option = OsString::from(format!("-Wl,{name}"));
        option.push(value);
        option
    };
    let mut cc = Process::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.arg("-shared")
        .arg("-o")
        .arg(&new)
        .args(["-Wl,--whole-archive".as_ref(), archive.as_os_str()])
        .args(["-Wl,--no-whole-archive", "-Wl,--gc-sections", "-Wl,-z,defs"])
        // Every name in the script is a function that there is.
        .arg("-Wl,--no-undefined-version")
        .args([
            "-Wl,-init,soft_verbs_is_shared".to_owned(),
            format!("-Wl,-soname,{SONAME}"),
        ])
        .arg(format!(
            "-Wl,--defsym=verbs_register_driver_{version}=verbs_register_driver"
        ))
        .arg(option("--version-script=", script.as_os_str()))
        .args(LIBRARIES);
    let linked = run_shown(&mut cc);
    // It was read, or is no use.
    let _gone = fs::remove_file(&script);
    linked?;
    let file = library.join(SONAME);
    fs::rename(&new, &file).context(|| format!("cannot make {}", file.display()))?;
    let manager = library.join(MANAGER);
    match symlink(SONAME, &manager) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).context(|| format!("cannot make {}", manager.display()))
        }
        _ => Ok(()),
    }
}

/// The version that rdma-core's libraries call each other by: that of the library that is installed, which its providers
/// want; that of Debian 12's if there is none.
fn private_version() -> String {
    let found = library_dirs().find_map(|dir| version_in(&fs::read(dir.join(SONAME)).ok()?));
    found.unwrap_or_else(|| "34".to_owned())
}

fn version_in(bytes: &[u8]) -> Option<String> {
    const START: &[u8] = b"IBVERBS_PRIVATE_";
    let place = bytes.windows(START.len()).position(|part| part == START)?;
    let digits = bytes[place + START.len()..].iter();
    let digits: Vec<u8> = digits.copied().take_while(u8::is_ascii_digit).collect();
    String::from_utf8(digits)
        .ok()
        .filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{joined, version_in};
    use std::ffi::OsStr;

    #[test]
    fn the_library_comes_before_what_else_is_searched() {
        let path = |rest: Option<&str>| joined(OsStr::new("/a"), rest.map(OsStr::new));
        assert_eq!(path(Some("/b:/c")), "/a:/b:/c");
        // An empty part would be the current folder.
        assert_eq!(path(Some("")), "/a");
        assert_eq!(path(None), "/a");
    }

    #[test]
    fn the_private_version_is_that_of_the_library() {
        let bytes = b"\0IBVERBS_1.14\0IBVERBS_PRIVATE_34\0x";
        assert_eq!(version_in(bytes).as_deref(), Some("34"));
        assert_eq!(version_in(b"\0IBVERBS_1.14\0"), None);
        assert_eq!(version_in(b"IBVERBS_PRIVATE_"), None);
    }
}
