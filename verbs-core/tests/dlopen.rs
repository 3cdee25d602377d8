//! With the feature `dlopen`, one program runs on machines with libibverbs and without it.
//!
//! The example `device_names` is built with the feature, and is run with several libraries.
#![cfg(test)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::{env, fs};

/// The output of a program that must succeed.
fn output(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?} does not run: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The example, built with the feature as this program was built, and linked with these arguments.
fn example(name: &str, link_args: &[&Path]) -> PathBuf {
    // One at a time: all are built to the same file.
    static BUILT: Mutex<()> = Mutex::new(());
    let _alone = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    // target/PROFILE/deps, where the example's dependencies have been built already.
    let own = env::current_exe().unwrap();
    let built = own.parent().and_then(Path::parent).unwrap();
    let profile = match built.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        other => other,
    };
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    // With serde, as tests of the whole workspace have it: fewer dependencies are built again.
    build.args(["rustc", "--example=device_names", "--features=dlopen,serde"]);
    build.args(["--profile", profile, "--message-format=json"]);
    build.arg("--target-dir").arg(built.parent().unwrap());
    build.arg("--");
    let link = |file: &&Path| format!("-Clink-arg={}", file.display());
    let messages = output(build.args(link_args.iter().map(link)));
    let built = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).unwrap();
        Some(PathBuf::from(message["executable"].as_str()?))
    });
    // A copy: it may be built again without the feature.
    let program = folder(name).join("device_names");
    fs::copy(built.unwrap(), &program).unwrap();
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

/// The program's output, with the libraries of this folder before those of the machine.
fn runs(program: &Path, libraries: &Path) -> String {
    output(Command::new(program).env("LD_LIBRARY_PATH", libraries))
}

/// A library with two devices, and without what came later.
const OLD_LIBRARY: &str = r#"
    struct device { char name[8]; };
    static struct device devices[2] = {{NAME "0"}, {NAME "1"}};
    struct device **ibv_get_device_list(int *count) {
        static struct device *list[3] = {&devices[0], &devices[1], 0};
        *count = 2;
        return list;
    }
    void ibv_free_device_list(struct device **list) {}
    const char *ibv_get_device_name(struct device *device) { return device->name; }
"#;

/// Compiles [`OLD_LIBRARY`], whose devices' names begin so, to a file in a folder of this name.
fn compiled(name: &str, args: &[&str], file: &str) -> PathBuf {
    let folder = folder(name);
    let source = folder.join("old.c");
    fs::write(&source, OLD_LIBRARY).unwrap();
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compile = Command::new(compiler);
    compile.args(args).arg("-fPIC");
    compile.arg(format!("-DNAME=\"{name}\"")).arg("-o");
    output(compile.arg(folder.join(file)).arg(&source));
    folder
}

/// The folder of the old library as a shared one.
static OLD: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = ["-shared", "-Wl,-soname,libibverbs.so.1"];
    compiled("old", &shared, "libibverbs.so.1")
});

#[test]
fn one_program_runs_with_libibverbs_and_without_it() {
    let program = example("program", &[]);
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
    assert_eq!(runs(&program, &OLD), "2 devices\nold0\nold1\n");

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

/// As a linked library's functions give way to the program's own.
#[test]
fn functions_of_the_program_itself_come_before_the_library_s() {
    let own = compiled("own", &["-c"], "own.o").join("own.o");
    let program = example("overriding", &[&own]);
    assert_eq!(runs(&program, &OLD), "2 devices\nown0\nown1\n");
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
