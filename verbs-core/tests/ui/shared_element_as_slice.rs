//! An element of a shared region is never a slice.

use verbs_core::SharedElement;

fn first(element: SharedElement<'_>) -> u8 {
    element[0]
}

fn main() {}
