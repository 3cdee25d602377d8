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

/// The only error, which contains each of `words`.
fn assert_one_line(variables: &[(&str, &str)], words: &[&str]) {
    let errors = errors(variables);
    assert_eq!(errors.len(), 1, "one line: {errors:?}");
    for word in words {
        assert!(errors[0].contains(word), "`{word}` is in: {}", errors[0]);
    }
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

#[test]
fn no_libibverbs() {
    assert_one_line(
        &[("PKG_CONFIG_LIBDIR", "/nonexistent")],
        &[
            "libibverbs was not found",
            "libibverbs-dev",
            "rdma-core-devel",
            "rdma-core (Arch)",
        ],
    );
}

#[test]
fn an_old_libibverbs() {
    let directory = packages(&[("libibverbs", "1.11.33.2")]);
    assert_one_line(
        &[("PKG_CONFIG_LIBDIR", &directory)],
        &[
            "libibverbs 1.11.33.2 is too old",
            "rdma-core 36",
            "libibverbs-dev",
        ],
    );
}

#[cfg(feature = "rdmacm")]
#[test]
fn no_librdmacm_or_an_old_one() {
    let without = packages(&[("libibverbs", "1.14.44.1")]);
    assert_one_line(
        &[("PKG_CONFIG_LIBDIR", &without)],
        &["librdmacm was not found", "librdmacm-dev"],
    );
    let old = packages(&[("libibverbs", "1.14.44.2"), ("librdmacm", "1.2.35.0")]);
    assert_one_line(
        &[("PKG_CONFIG_LIBDIR", &old)],
        &[
            "librdmacm 1.2.35.0 is too old",
            "rdma-core 36",
            "librdmacm-dev",
        ],
    );
}

#[test]
fn no_pkg_config() {
    assert_one_line(
        &[("PKG_CONFIG", "/nonexistent")],
        &[
            "cannot run pkg-config",
            "pkgconf-pkg-config",
            "pkgconf (Arch)",
        ],
    );
}

#[test]
fn no_libclang() {
    assert_one_line(
        &[("LIBCLANG_PATH", "/nonexistent")],
        &["libclang", "libclang-dev", "clang-devel", "clang (Arch)"],
    );
}

#[test]
fn no_headers_of_libclang() {
    assert_one_line(
        &[("BINDGEN_EXTRA_CLANG_ARGS", &only_libc())],
        &[
            "libclang lacks the compiler's own headers",
            "libclang-dev",
            "stddef.h",
        ],
    );
}

/// Arguments of clang with which it finds no headers of its own.
fn only_libc() -> String {
    let arch = env::consts::ARCH;
    format!("-nostdinc -I/usr/include -I/usr/include/{arch}-linux-gnu")
}

#[test]
fn no_headers_of_the_c_library() {
    assert_one_line(
        &[("BINDGEN_EXTRA_CLANG_ARGS", &only_rdma())],
        &["the C library's headers are missing", "libc6-dev"],
    );
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

#[test]
fn cross_compiling_without_pkg_config_for_the_target() {
    assert_one_line(&[CROSS], &["cross-compiling", "PKG_CONFIG_ALLOW_CROSS=1"]);
}

/// A target with another processor.
const CROSS: (&str, &str) = ("TARGET", "s390x-unknown-linux-gnu");

#[test]
fn no_headers_of_libibverbs() {
    let directory = packages(&[("libibverbs", "1.14.44.0"), ("librdmacm", "1.3.44.0")]);
    assert_one_line(
        &[
            ("PKG_CONFIG_LIBDIR", &directory),
            ("BINDGEN_EXTRA_CLANG_ARGS", "-nostdinc"),
        ],
        &["libibverbs has no headers", "libibverbs-dev"],
    );
}

#[test]
fn another_system_or_32_bits() {
    let needs = "64-bit Linux only";
    assert_one_line(&[("CARGO_CFG_TARGET_OS", "macos")], &[needs]);
    assert_one_line(&[("CARGO_CFG_TARGET_POINTER_WIDTH", "32")], &[needs]);
}

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

#[test]
fn guide_quotes_the_errors_as_they_are_printed() {
    let Some(quoted) = quoted() else {
        println!("SKIPPED guide_quotes_the_errors_as_they_are_printed: the guide is not here");
        return;
    };
    let old = packages(&[("libibverbs", "1.11.33.2")]);
    let verbs = [("libibverbs", "1.14.44.1"), ("librdmacm", "1.3.44.0")];
    let [all, without_manager] = [packages(&verbs), packages(&verbs[..1])];
    let (only_libc, only_rdma) = (only_libc(), only_rdma());
    let arguments = "BINDGEN_EXTRA_CLANG_ARGS";
    let missing: [&[(&str, &str)]; 10] = [
        &[("PKG_CONFIG_LIBDIR", "/nonexistent")],
        &[("PKG_CONFIG", "/nonexistent")],
        &[("LIBCLANG_PATH", "/nonexistent")],
        &[("PKG_CONFIG_LIBDIR", &without_manager)],
        &[("PKG_CONFIG_LIBDIR", &old)],
        &[(arguments, &only_libc)],
        &[("PKG_CONFIG_LIBDIR", &all), (arguments, "-nostdinc")],
        &[(arguments, &only_rdma)],
        &[CROSS],
        &[
            ("CARGO_CFG_TARGET_OS", "macos"),
            ("TARGET", "x86_64-apple-darwin"),
        ],
    ];
    assert_eq!(quoted.len(), missing.len(), "{quoted:#?}");
    for (text, variables) in quoted.iter().zip(missing) {
        if text.starts_with("librdmacm") && !cfg!(feature = "rdmacm") {
            continue;
        }
        let line = errors(variables).concat();
        assert!(
            line.starts_with(text),
            "{line:?} does not begin with {text:?}"
        );
    }
}
