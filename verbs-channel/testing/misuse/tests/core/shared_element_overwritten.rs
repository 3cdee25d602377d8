//! An element of shared memory cannot become one of other memory.

use verbs_core::memory::{Sge, SharedElement};

fn broken(element: &mut SharedElement<'_>, other: Sge) {
    let list: &mut [Sge] = AsMut::as_mut(element);
    list[0] = other;
}

fn main() {}
