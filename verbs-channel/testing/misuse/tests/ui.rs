//! Misuse that does not compile, one promise a function, with the compiler's messages.
//!
//! `TRYBUILD=overwrite cargo test -p verbs-misuse` updates the messages.

#[test]
fn promises_are_kept_by_the_compiler() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/core/*.rs");
    cases.compile_fail("tests/channel/*.rs");
}
