//! Lists of elements: the memory of a request.

#![expect(
    unsafe_code,
    reason = "puts shared elements side by side for the driver"
)]

use std::slice;

use verbs_core::{
    Element, Gather, GatherElement, ProtectionDomain, Scatter, ScatterElement, Sge, SharedElement,
};

use crate::buffer::OwnedElement;

/// The elements of one request: a single element, an array, or a vector.
///
/// The elements are [`GatherElement`], [`ScatterElement`] or [`SharedElement`], which borrow
/// registered memory. A raw [`Sge`] borrows nothing, so it is not accepted.
///
/// # Elements of another protection domain
///
/// If a [`SharedElement`] or an [owned buffer](crate::OwnedBuffer) belongs to another protection
/// domain than the channel's, the request is rejected with
/// [`RejectReason::OtherDomain`](crate::RejectReason::OtherDomain).
///
/// Other elements are the 16 bytes that the driver gets, and do not contain their domain. If that is not
/// the channel's, a debug build rejects the request with [`RejectReason::Post`](crate::RejectReason::Post).
/// In a release build the request fails with [`LOC_PROT_ERR`](verbs_core::WcStatus::LOC_PROT_ERR), on
/// soft-RoCE with [`LOC_QP_OP_ERR`](verbs_core::WcStatus::LOC_QP_OP_ERR), and the channel is down. No other
/// memory is accessed by mistake:
///
/// - On the same device, keys are unique, and the device checks their domain.
/// - On another device, the same key may belong to a region of the channel's domain. But a device accepts
///   a key only with an address within the key's own region. A region that contains the address is
///   either memory of this program at the same address, so these are the element's own bytes. Or it is a
///   [`DmabufRegion`](verbs_core::DmabufRegion) or a [`RawRegion`](verbs_core::RawRegion) with addresses
///   of its own, which the device may write to at any moment anyway.
///
/// There is one known exception, on another device and in a release build: a region of borrowed memory
/// that was leaked, by [`mem::forget`](std::mem::forget) or because the driver refused to deregister it. It
/// stays registered when its borrow ends, with the pages that it had. If the program then moves these pages to
/// another address, as `mremap(2)` does and a large `Vec` that grows, and has other memory at the old address,
/// an element of that memory may have the key of the leaked region. The device then accesses the pages that
/// were moved, whatever they hold by then.
pub trait List: sealed::Sealed {
    /// The type of the elements that the driver gets.
    type Element: Element;

    /// Whether its elements have their protection domain, and are to be put
    /// [side by side](Self::put_side_by_side).
    #[doc(hidden)]
    const IS_WIDE: bool;

    /// Whether a peer or another thread may write to the memory while it is sent, or this processor
    /// cannot read it.
    #[doc(hidden)]
    fn is_shared(&self) -> bool;

    /// Whether all elements may be posted to a queue pair of this protection domain.
    #[doc(hidden)]
    #[inline(always)]
    fn is_of(&self, _pd: &ProtectionDomain) -> bool {
        true
    }

    /// Has [`elements`](Self::elements) return the elements of a wide list, until it is
    /// [restored](Self::restore).
    ///
    /// # Safety
    ///
    /// - All elements are [of](Self::is_of) one protection domain.
    /// - Nothing but `elements` is called meanwhile.
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn put_side_by_side(&mut self) {}

    /// Makes it a list again, of elements of this protection domain.
    ///
    /// # Safety
    ///
    /// - The elements have been put [side by side](Self::put_side_by_side), and were of this protection
    ///   domain.
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn restore(&mut self, _pd: &ProtectionDomain) {}

    /// The elements, for the driver.
    ///
    /// # Safety
    ///
    /// - If it is [wide](Self::IS_WIDE), they have been put [side by side](Self::put_side_by_side).
    /// - Only the elements themselves are written to the slice, in any order: an [`Sge`] of other
    ///   memory is no element of this list.
    #[doc(hidden)]
    unsafe fn elements(&mut self) -> &mut [Self::Element];

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
    ($($element:ident)*) => {$(
        impl sealed::Sealed for $element<'_> {}
        impl List for $element<'_> {
            single!($element);

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
            several!($element 'a);
        }

        impl sealed::Sealed for Vec<$element<'_>> {}
        impl<'a> List for Vec<$element<'a>> {
            several!($element 'a);
        }
    )*};
}

/// A list of one element.
macro_rules! single {
    (SharedElement) => {
        type Element = Sge;
        const IS_WIDE: bool = true;

        #[inline(always)]
        fn is_shared(&self) -> bool {
            true
        }

        #[inline]
        fn is_of(&self, pd: &ProtectionDomain) -> bool {
            SharedElement::is_of(self, pd)
        }

        #[inline]
        unsafe fn elements(&mut self) -> &mut [Sge] {
            // SAFETY: `self` is a list of one element; the caller promises to write only this
            // element to it.
            unsafe { SharedElement::side_by_side(slice::from_mut(self)) }
        }
    };
    ($element:ident) => {
        type Element = Self;
        narrow!();

        #[inline]
        unsafe fn elements(&mut self) -> &mut [Self] {
            slice::from_mut(self)
        }
    };
}

macro_rules! narrow {
    () => {
        const IS_WIDE: bool = false;

        #[inline(always)]
        fn is_shared(&self) -> bool {
            false
        }
    };
}

/// A list of several elements.
macro_rules! several {
    (SharedElement $lifetime:lifetime) => {
        type Element = Sge;
        const IS_WIDE: bool = true;

        #[inline(always)]
        fn is_shared(&self) -> bool {
            true
        }

        #[inline]
        fn is_of(&self, pd: &ProtectionDomain) -> bool {
            self.iter().all(|element| element.is_of(pd))
        }

        #[inline]
        unsafe fn put_side_by_side(&mut self) {
            // SAFETY: the caller promises that all elements are of one domain, and that `restore`
            // follows.
            unsafe { SharedElement::squeeze(self) };
        }

        #[inline]
        unsafe fn restore(&mut self, pd: &ProtectionDomain) {
            // SAFETY: the caller promises that the list was squeezed, and its elements are of `pd`.
            unsafe { SharedElement::restore(self, pd) };
        }

        #[inline]
        unsafe fn elements(&mut self) -> &mut [Sge] {
            // SAFETY: the caller promises that the list was squeezed, or has at most one element.
            unsafe { SharedElement::side_by_side(self) }
        }

        several!();
    };
    ($element:ident $lifetime:lifetime) => {
        type Element = $element<$lifetime>;
        narrow!();

        #[inline]
        unsafe fn elements(&mut self) -> &mut [$element<$lifetime>] {
            self
        }

        several!();
    };
    () => {
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

lists! { GatherElement ScatterElement SharedElement }

impl sealed::Sealed for OwnedElement {}
impl List for OwnedElement {
    type Element = Sge;
    const IS_WIDE: bool = false;

    #[inline(always)]
    fn is_shared(&self) -> bool {
        false
    }

    #[inline]
    unsafe fn elements(&mut self) -> &mut [Sge] {
        slice::from_mut(&mut self.sge)
    }

    #[inline(always)]
    fn total_len(&self) -> u64 {
        self.sge.length().into()
    }

    #[inline(always)]
    fn count(&self) -> usize {
        1
    }
}
