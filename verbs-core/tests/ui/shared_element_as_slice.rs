//! Nor is an element of it.

use verbs_core::SharedElement;

fn first(element: SharedElement<'_>) -> u8 {
    element[0]
}

fn main() {}
