//! The project's task runner: demo, test, soft-roce and the checks.

fn main() {}
