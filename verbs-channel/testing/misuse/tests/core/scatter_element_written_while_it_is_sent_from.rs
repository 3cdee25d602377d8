//! A scatter element lent as a gather element is not written to meanwhile.

use verbs_core::ScatterElement;

fn write(mut element: ScatterElement<'_>) -> u32 {
    let gather = element.as_gather();
    element[0] = 1;
    gather.length()
}

fn main() {}
