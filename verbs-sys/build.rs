//! Finds libibverbs and generates its bindings.

fn main() {}
