//! Soft-iWARP in the guest: its module is built for the kernel once, and takes the place of `rdma_rxe`.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use soft_roce::packages::Policy;
use soft_roce::{Driver, Options, Way};

use crate::{assert_code, finish, run, scratch, text};

/// Whether the guest's kernel has the module, or gets it now; skips the test where it cannot be had.
#[expect(
    clippy::print_stdout,
    reason = "what is skipped is counted by this line"
)]
fn is_there(test: &str) -> bool {
    let mut options = Options::default();
    options.way = Way::Guest;
    options.driver = Driver::Siw;
    options.install = Policy::Yes;
    let prepared = soft_roce::prepare(&options);
    if let Err(error) = &prepared {
        println!("SKIPPED siw::{test}: {error}");
    }
    prepared.is_ok()
}

fn siw(args: &[&str], script: &str) -> Command {
    run(&[&["--driver", "siw"], args, &["--", "sh", "-c", script]].concat())
}

#[test]
fn a_damaged_module_is_not_loaded() {
    if !is_there("a_damaged_module_is_not_loaded") {
        return;
    }
    // A cache with the same kernel, and the module to be damaged.
    let real = cache(&user_cache());
    let kernel = real.join("default").canonicalize().unwrap();
    let name = format!("siw-{}", kernel.file_name().unwrap().to_str().unwrap());
    let dir = scratch("siw-cache");
    let copy = cache(&dir);
    fs::create_dir_all(copy.join(&name).join("load")).unwrap();
    symlink(&kernel, copy.join("default")).unwrap();
    let mut files = vec![PathBuf::from("MANIFEST")];
    for entry in fs::read_dir(real.join(&name).join("load")).unwrap() {
        files.push(Path::new("load").join(entry.unwrap().file_name()));
    }
    for file in &files {
        fs::copy(real.join(&name).join(file), copy.join(&name).join(file)).unwrap();
    }
    let there = || {
        let mut command = siw(&[], "echo up");
        finish(command.env("XDG_CACHE_HOME", &dir).spawn().unwrap())
    };
    assert_eq!(text(&there().stdout), "up\n");

    let module = files
        .iter()
        .find(|file| file.to_string_lossy().ends_with("-siw.ko"));
    let module = copy.join(&name).join(module.unwrap());
    let whole = fs::read(&module).unwrap();
    fs::write(&module, &whole[..whole.len() / 2]).unwrap();
    let output = there();
    assert_code(&output, 1);
    let err = text(&output.stderr);
    // It would be built again.
    assert!(
        err.contains("siw for the kernel") && err.contains("--no-install"),
        "{err}"
    );
    let left = fs::read_dir(&copy).unwrap().flatten();
    let mut left = left.map(|entry| entry.file_name().into_string().unwrap());
    assert!(left.all(|name| !name.starts_with("tmp-")));
}

/// Where the program keeps its kernels, below the user's folder for caches.
fn cache(base: &Path) -> PathBuf {
    base.join("cargo-soft-roce/1")
}

fn user_cache() -> PathBuf {
    let named = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let named = named.filter(|path| path.is_absolute());
    named.unwrap_or_else(|| Path::new(&env::var_os("HOME").unwrap()).join(".cache"))
}
