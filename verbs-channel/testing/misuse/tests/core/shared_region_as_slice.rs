//! Memory that a peer may write to is never a slice.

use verbs_core::SharedRegion;

fn slice(region: &SharedRegion<Vec<u8>>) -> &[u8] {
    &region[..]
}

fn deref(region: &SharedRegion<Vec<u8>>) -> &[u8] {
    region
}

fn main() {}
