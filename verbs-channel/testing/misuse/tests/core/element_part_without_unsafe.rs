//! Parts of an element that may overlap take `unsafe`; `split_at_mut` and `chunks_mut` do not.

use verbs_core::ScatterElement;
use verbs_core::memory::Part;

fn overlap<'a>(element: &ScatterElement<'a>) -> [ScatterElement<'a>; 2] {
    [element.sub(0, 8), element.sub(4, 8)]
}

fn main() {}
