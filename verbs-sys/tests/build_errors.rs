//! If something is missing, the build script ends with one line that names the packages to install.
//!
//! The build script is compiled into this test, which runs itself as that script.

use std::env;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

#[expect(
    clippy::print_stdout,
    reason = "a build script speaks to cargo by printing"
)]
#[path = "../build.rs"]
mod build;

const AS_BUILD_SCRIPT: &str = "VERBS_SYS_TEST_AS_BUILD_SCRIPT";

/// The errors that the build script reports to cargo, with `variables` set as well.
fn errors(variables: &[(&str, &str)]) -> Vec<String> {
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let this_test = env::current_exe().expect("a test has a path");
    let output = Command::new(this_test)
        .args(["--exact", "nothing_is_missing_here", "--nocapture"])
        .env(AS_BUILD_SCRIPT, "1")
        .env("TARGET", &target)
        .env("HOST", &target)
        .envs([
            ("CARGO_CFG_TARGET_OS", "linux"),
            ("CARGO_CFG_TARGET_POINTER_WIDTH", "64"),
        ])
        .env("OUT_DIR", env!("CARGO_TARGET_TMPDIR"))
        .envs(variables.iter().copied())
        .output()
        .expect("this test runs");
    assert!(
        output.status.success(),
        "cargo gets its line, not a failure: {output:?}"
    );
    let stdout = String::from_utf8(output.stdout).expect("the script prints text");
    stdout
        .lines()
        .filter_map(|line| line.strip_prefix("cargo::error="))
        .map(str::to_owned)
        .collect()
}

/// The texts of the guide's section on building, each the beginning of a line that is printed. None if
/// this package is not in its workspace.
fn quoted() -> Option<Vec<String>> {
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../verbs-channel/src/guide/troubleshooting/machine.md"
    );
    let page = fs::read_to_string(page).ok()?;
    let (_, section) = page
        .split_once("\n# Building\n")
        .expect("the page has the section");
    let section = section.split("\n# ").next().unwrap_or_default();
    let blocks = section.split("```text\n").skip(1);
    let texts = blocks.map(|block| {
        let (text, _) = block.split_once("\n```").expect("the block has an end");
        text.replace('\n', " ")
    });
    Some(texts.collect())
}

/// A directory with libraries of these versions for pkg-config to find, and nothing else. Each call has one of
/// its own: tests run beside each other, in one process or in several.
fn packages(libraries: &[(&str, &str)]) -> String {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let thread = std::thread::current();
    let test = thread.name().expect("a test's thread has its name");
    let directory = format!("{}/packages-{test}-{call}", env!("CARGO_TARGET_TMPDIR"));
    drop(fs::remove_dir_all(&directory));
    fs::create_dir_all(&directory).expect("cargo's directory for tests is writable");
    for (name, version) in libraries {
        let description = format!("Name: {name}\nDescription: none\nVersion: {version}\n");
        fs::write(format!("{directory}/{name}.pc"), description).expect("it still is");
    }
    directory
}

#[test]
fn nothing_is_missing_here() {
    if env::var_os(AS_BUILD_SCRIPT).is_some() {
        build::main();
    } else {
        assert_eq!(errors(&[]), [""; 0]);
    }
}

/// Arguments of clang with which it finds no headers of its own.
fn only_libc() -> String {
    let arch = env::consts::ARCH;
    format!("-nostdinc -I/usr/include -I/usr/include/{arch}-linux-gnu")
}

/// Arguments of clang with which it finds the headers of rdma-core and its own, and nothing else.
fn only_rdma() -> String {
    let directory = packages(&[]);
    for name in ["infiniband", "rdma"] {
        let headers = format!("/usr/include/{name}");
        std::os::unix::fs::symlink(headers, format!("{directory}/{name}"))
            .expect("cargo's directory for tests is writable");
    }
    format!("-nostdlibinc -I{directory}")
}

/// A target with another processor.
const CROSS: (&str, &str) = ("TARGET", "s390x-unknown-linux-gnu");

/// Messages of libibverbs itself.
#[test]
fn guide_quotes_texts_of_libibverbs() {
    let guide = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../verbs-channel/src/guide/troubleshooting"
    );
    let pages =
        ["machine.md", "running.md"].map(|page| fs::read_to_string(format!("{guide}/{page}")));
    let [Ok(machine), Ok(running)] = pages else {
        println!("SKIPPED guide_quotes_texts_of_libibverbs: the guide is not here");
        return;
    };
    // Links it, so that it is loaded.
    std::hint::black_box(verbs_sys::ibv_get_device_list as *const ());
    let maps = fs::read_to_string("/proc/self/maps").expect("Linux has it");
    let mut words = maps.split_whitespace();
    let path = words.find(|word| word.contains("/libibverbs.so"));
    let Some(path) = path else {
        println!("SKIPPED guide_quotes_texts_of_libibverbs: it is not loaded (dlopen)");
        return;
    };
    let library = fs::read(path).expect("it was read already");
    for (page, text) in [
        (machine, "couldn't load driver '"),
        (running, "Warning: RLIMIT_MEMLOCK is "),
    ] {
        assert!(page.contains(text), "{text}");
        let mut parts = library.windows(text.len());
        assert!(parts.any(|part| part == text.as_bytes()), "{text}");
    }
}

/// Each error is one line with what to do, and begins as the guide quotes it.
#[test]
fn missing_part_is_named_in_one_line_as_the_guide_quotes_it() {
    let old = packages(&[("libibverbs", "1.11.33.2")]);
    let verbs = [("libibverbs", "1.14.44.1"), ("librdmacm", "1.3.44.0")];
    let [all, without_manager] = [packages(&verbs), packages(&verbs[..1])];
    let old_manager = packages(&[("libibverbs", "1.14.44.2"), ("librdmacm", "1.2.35.0")]);
    let (only_libc, only_rdma) = (only_libc(), only_rdma());
    let (libraries, arguments) = ("PKG_CONFIG_LIBDIR", "BINDGEN_EXTRA_CLANG_ARGS");
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);
    let missing: [Case<'_>; 12] = [
        (
            &[(libraries, "/nonexistent")],
            &["libibverbs-dev", "rdma-core-devel", "rdma-core (Arch)"],
        ),
        (
            &[("PKG_CONFIG", "/nonexistent")],
            &["pkgconf-pkg-config", "pkgconf (Arch)"],
        ),
        (
            &[("LIBCLANG_PATH", "/nonexistent")],
            &["libclang-dev", "clang-devel", "clang (Arch)"],
        ),
        (
            &[(libraries, &without_manager)],
            &["librdmacm was not found", "librdmacm-dev"],
        ),
        (
            &[(libraries, &old)],
            &["1.11.33.2 is too old", "rdma-core 36", "libibverbs-dev"],
        ),
        (&[(arguments, &only_libc)], &["libclang-dev", "stddef.h"]),
        (
            &[(libraries, &all), (arguments, "-nostdinc")],
            &["libibverbs has no headers", "libibverbs-dev"],
        ),
        (&[(arguments, &only_rdma)], &["libc6-dev"]),
        (&[CROSS], &["PKG_CONFIG_ALLOW_CROSS=1"]),
        (
            &[
                ("CARGO_CFG_TARGET_OS", "macos"),
                ("TARGET", "x86_64-apple-darwin"),
            ],
            &["64-bit Linux only"],
        ),
        // The guide has not these.
        (
            &[("CARGO_CFG_TARGET_POINTER_WIDTH", "32")],
            &["64-bit Linux only"],
        ),
        (
            &[(libraries, &old_manager)],
            &[
                "librdmacm 1.2.35.0 is too old",
                "rdma-core 36",
                "librdmacm-dev",
            ],
        ),
    ];
    let quoted = quoted();
    if let Some(quoted) = &quoted {
        assert_eq!(quoted.len(), missing.len() - 2, "{quoted:#?}");
    }
    for (nth, (variables, words)) in missing.into_iter().enumerate() {
        if words[0].starts_with("librdmacm") && !cfg!(feature = "rdmacm") {
            continue;
        }
        let errors = errors(variables);
        let [line] = &errors[..] else {
            panic!("one line: {errors:?}");
        };
        let quoted = quoted.as_ref().and_then(|quoted| quoted.get(nth));
        assert!(
            quoted.is_none_or(|text| line.starts_with(text)),
            "{line:?}: {quoted:?}"
        );
        for word in words {
            assert!(line.contains(word), "`{word}` is in: {line}");
        }
    }
}
