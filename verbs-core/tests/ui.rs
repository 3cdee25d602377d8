//! Misuse that does not compile, one promise a file in `ui/`, with the compiler's messages.
//!
//! `TRYBUILD=overwrite cargo test -p verbs-core --test ui` updates the messages.

#[test]
fn promises_are_kept_by_the_compiler() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
    if cfg!(feature = "rdmacm") {
        cases.compile_fail("tests/ui_rdmacm/*.rs");
    }
}
