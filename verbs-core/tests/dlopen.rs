//! With the feature `dlopen`, one program runs on machines with libibverbs and without it.
//!
//! The example `device_names` is built with the feature, and is run with several libraries.
#![cfg(test)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Cargo's target folder, where the example's dependencies have been built already.
fn target() -> &'static Path {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tmp.parent().unwrap()
}

/// The output of a program that must succeed.
fn output(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?} does not run: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The example, built with the feature.
fn example() -> PathBuf {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    build.args(["build", "--example", "device_names", "--features", "dlopen"]);
    output(build.arg("--target-dir").arg(target()));
    // A copy: it may be built again without the feature.
    let program = folder("program").join("device_names");
    fs::copy(target().join("debug/examples/device_names"), &program).unwrap();
    program
}

/// An empty folder.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("dlopen")
        .join(name);
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The shared libraries that a program does not start without.
fn needed(program: &Path) -> Vec<String> {
    let dynamic = output(Command::new("readelf").arg("-d").arg(program));
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    needed.map(str::to_owned).collect()
}

/// What the program prints, with the libraries of this folder before those of the machine.
fn runs(program: &Path, libraries: &Path) -> String {
    output(Command::new(program).env("LD_LIBRARY_PATH", libraries))
}

/// A library with two devices, and without what came later.
const OLD_LIBRARY: &str = r#"
    struct device { char name[8]; };
    static struct device devices[2] = {{"old0"}, {"old1"}};
    struct device **ibv_get_device_list(int *count) {
        static struct device *list[3] = {&devices[0], &devices[1], 0};
        *count = 2;
        return list;
    }
    void ibv_free_device_list(struct device **list) {}
    const char *ibv_get_device_name(struct device *device) { return device->name; }
"#;

#[test]
fn one_program_runs_with_libibverbs_and_without_it() {
    let program = example();
    let ours = needed(&program);
    assert!(!ours.is_empty(), "it is a dynamic program");
    assert!(
        !ours.iter().any(|library| library.contains("ibverbs")),
        "{ours:?}"
    );

    // With the library of this machine, which the build needs.
    let printed = runs(&program, &folder("none"));
    assert!(
        printed.lines().next().unwrap().ends_with(" devices"),
        "{printed}"
    );

    // With another one, and what that does not have fails alone.
    let old = folder("old");
    let source = old.join("old.c");
    fs::write(&source, OLD_LIBRARY).unwrap();
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compile = Command::new(compiler);
    compile.args(["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-o"]);
    output(compile.arg(old.join("libibverbs.so.1")).arg(&source));
    assert_eq!(runs(&program, &old), "2 devices\nold0\nold1\n");

    // Without one: the first of this name cannot be loaded, and none is looked for after it.
    let broken = folder("broken");
    fs::create_dir(broken.join("libibverbs.so.1")).unwrap();
    let printed = runs(&program, &broken);
    assert!(
        printed.starts_with("no RDMA here: libibverbs.so.1 was not found"),
        "{printed}"
    );
    assert!(printed.contains("install rdma-core"), "{printed}");
}

/// Without the feature a program needs the library: the test above would show nothing otherwise.
#[cfg(not(feature = "dlopen"))]
#[test]
fn a_program_without_the_feature_needs_libibverbs() {
    drop(verbs_core::Device::list());
    let ours = needed(&env::current_exe().unwrap());
    assert!(
        ours.iter()
            .any(|library| library.contains("libibverbs.so.1")),
        "{ours:?}"
    );
}
