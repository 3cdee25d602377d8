//! Sets a variable for the tests, as build scripts do.

fn main() {
    println!("cargo::rustc-env=FOREIGN_BUILT={}", std::env::consts::ARCH);
    println!("cargo::rerun-if-changed=build.rs");
}
