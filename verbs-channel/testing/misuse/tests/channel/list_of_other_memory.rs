//! The elements of a list cannot become ones of other memory.

use verbs_channel::request::List;
use verbs_channel::verbs_core::memory::Sge;

fn broken<L: List<Element = Sge>>(list: &mut L, other: Sge) {
    list.elements()[0] = other;
}

fn main() {}
