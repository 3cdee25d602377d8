//! An element of a shared region is never a slice.

use verbs_core::memory::SharedElement;

fn first(element: SharedElement<'_>) -> u8 {
    element[0]
}

fn main() {}
