//! Memory that the peer may write is never a slice.

use verbs_channel::verbs_core::SharedRegion;

fn broken(region: &SharedRegion<Vec<u8>>) -> &[u8] {
    &region[..]
}

fn main() {}
