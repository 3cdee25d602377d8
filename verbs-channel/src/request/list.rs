//! Lists of elements: the memory of a request.

use verbs_core::{Element, Gather, GatherElement, Scatter, ScatterElement, SharedElement};

/// The elements of one request: a single element, an array, or a vector.
///
/// The elements are [`GatherElement`], [`ScatterElement`] or [`SharedElement`], which borrow
/// registered memory. A raw [`Sge`](verbs_core::Sge) borrows nothing, so it is not accepted.
pub trait List: sealed::Sealed {
    /// The kind of element.
    type Element: Element;

    /// Whether a peer or another thread may write to the memory while it is sent.
    #[doc(hidden)]
    const IS_SHARED: bool;

    #[doc(hidden)]
    fn elements(&mut self) -> &mut [Self::Element];

    /// The length of all elements, in bytes.
    #[doc(hidden)]
    fn total_len(&self) -> u64;

    /// How many elements are not empty; 1 for a single element.
    #[doc(hidden)]
    fn count(&self) -> usize;
}

/// The elements of a request that sends from them: any [`List`] of such elements.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of elements to send from",
    note = "all of a region is `region.gather_element(..)?`"
)]
pub trait GatherList: List<Element: Gather> {}

/// The elements of a request that receives or reads into them: any [`List`] of such elements.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of elements to receive into",
    note = "all of a region is `region.scatter_element(..)?`"
)]
pub trait ScatterList: List<Element: Scatter> {}

impl<L: List<Element: Gather>> GatherList for L {}
impl<L: List<Element: Scatter>> ScatterList for L {}

mod sealed {
    #[expect(unnameable_types, reason = "seals `List`")]
    pub trait Sealed {}
}

macro_rules! lists {
    ($($element:ident $is_shared:literal)*) => {$(
        impl sealed::Sealed for $element<'_> {}
        impl List for $element<'_> {
            type Element = Self;
            const IS_SHARED: bool = $is_shared;

            #[inline]
            fn elements(&mut self) -> &mut [Self] {
                std::slice::from_mut(self)
            }

            #[inline(always)]
            fn total_len(&self) -> u64 {
                self.length().into()
            }

            #[inline(always)]
            fn count(&self) -> usize {
                1
            }
        }

        impl<const N: usize> sealed::Sealed for [$element<'_>; N] {}
        impl<'a, const N: usize> List for [$element<'a>; N] {
            several!($element<'a>, $is_shared);
        }

        impl sealed::Sealed for Vec<$element<'_>> {}
        impl<'a> List for Vec<$element<'a>> {
            several!($element<'a>, $is_shared);
        }
    )*};
}

macro_rules! several {
    ($element:ty, $is_shared:literal) => {
        type Element = $element;
        const IS_SHARED: bool = $is_shared;

        #[inline]
        fn elements(&mut self) -> &mut [$element] {
            self
        }

        #[inline(always)]
        fn total_len(&self) -> u64 {
            self.iter().map(|element| u64::from(element.length())).sum()
        }

        #[inline(always)]
        fn count(&self) -> usize {
            let full = self.iter().filter(|element| element.length() > 0);
            full.count()
        }
    };
}

lists! { GatherElement false ScatterElement false SharedElement true }
