//! Lists of elements: what an operation works on.

use verbs_core::{Element, Gather, GatherElement, Scatter, ScatterElement, SharedElement};

/// The elements of one operation: one of them, an array, or a vector.
///
/// Elements that borrow registered memory, [`GatherElement`], [`ScatterElement`] and
/// [`SharedElement`]; a raw [`Sge`](verbs_core::Sge) is none, since nothing keeps its memory.
pub trait List: sealed::Sealed {
    /// The kind of element.
    type Element: Element;

    #[doc(hidden)]
    fn elements(&mut self) -> &mut [Self::Element];
}

/// Elements to send from.
pub trait GatherList: List<Element: Gather> {}

/// Elements to receive or read into.
pub trait ScatterList: List<Element: Scatter> {}

impl<L: List<Element: Gather>> GatherList for L {}
impl<L: List<Element: Scatter>> ScatterList for L {}

mod sealed {
    #[expect(unnameable_types, reason = "seals `List`")]
    pub trait Sealed {}
}

macro_rules! lists {
    ($($element:ident)*) => {$(
        impl sealed::Sealed for $element<'_> {}
        impl List for $element<'_> {
            type Element = Self;

            #[inline]
            fn elements(&mut self) -> &mut [Self] {
                std::slice::from_mut(self)
            }
        }

        impl<const N: usize> sealed::Sealed for [$element<'_>; N] {}
        impl<'a, const N: usize> List for [$element<'a>; N] {
            type Element = $element<'a>;

            #[inline]
            fn elements(&mut self) -> &mut [$element<'a>] {
                self
            }
        }

        impl sealed::Sealed for Vec<$element<'_>> {}
        impl<'a> List for Vec<$element<'a>> {
            type Element = $element<'a>;

            #[inline]
            fn elements(&mut self) -> &mut [$element<'a>] {
                self
            }
        }
    )*};
}

lists! { GatherElement ScatterElement SharedElement }
