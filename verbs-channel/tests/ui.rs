//! What the types forbid, one promise a file in `ui/`: each must fail to compile, with these words.
//!
//! `TRYBUILD=overwrite cargo test -p verbs-channel --test ui` writes the words anew.

#[test]
fn promises_are_kept_by_the_compiler() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
