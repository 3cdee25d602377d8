//! Lists of elements: the memory of a request.
#![expect(unsafe_code, reason = "sees elements as the driver does")]

use std::{ptr, slice};

use verbs_core::memory::{Element, Gather, Scatter, Sge, SharedElement};
use verbs_core::{GatherElement, ProtectionDomain, ScatterElement};

use crate::error::RejectReason;

/// The elements of one request: a single element, an array, or a vector.
///
/// The elements are [`GatherElement`], [`ScatterElement`] or [`SharedElement`], which borrow
/// registered memory. A raw [`Sge`] borrows nothing, so it is not accepted.
///
/// A list of [`SharedElement`]s has 32 elements at most, the empty ones included.
///
/// # Elements of another protection domain
///
/// If a [`SharedElement`] or an [owned buffer](crate::OwnedBuffer) belongs to another protection
/// domain than the channel's, the request is rejected with
/// [`RejectReason::OtherDomain`](crate::RejectReason::OtherDomain).
///
/// Other elements are the 16 bytes that the driver gets, and do not contain their domain. If that is not
/// the channel's, a debug build rejects the request with [`RejectReason::Post`](crate::RejectReason::Post).
/// In a release build the request fails with [`LOC_PROT_ERR`](verbs_core::codes::WcStatus::LOC_PROT_ERR), on
/// soft-RoCE with [`LOC_QP_OP_ERR`](verbs_core::codes::WcStatus::LOC_QP_OP_ERR), and the channel is down. No other
/// memory is accessed by mistake:
///
/// - On the same device, keys are unique, and the device checks their domain.
/// - On another device, the same key may belong to a region of the channel's domain. But a device accepts
///   a key only with an address within the key's own region. A region that contains the address is
///   either memory of this program at the same address, so these are the element's own bytes. Or it is a
///   [`DmabufRegion`](verbs_core::memory::DmabufRegion) or a [`RawRegion`](verbs_core::memory::RawRegion) with addresses
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

/// Room for the elements of a list that have their protection domain, which the driver does not get.
#[derive(Clone, Copy, Debug)]
#[expect(unnameable_types, reason = "is named in a sealed trait")]
pub struct Place(Option<[Sge; MOST_SHARED]>);

/// The most elements of a list that have their protection domain.
const MOST_SHARED: usize = 32;

impl Place {
    pub(crate) const fn new() -> Self {
        Self(None)
    }
}

pub(crate) mod sealed {
    use verbs_core::ProtectionDomain;
    use verbs_core::memory::{Element, Sge};

    use super::Place;
    use crate::error::RejectReason;

    #[expect(unnameable_types, reason = "seals `List`")]
    pub trait Sealed {
        /// Whether a peer or another thread may write to the memory while it is sent, or this processor
        /// cannot read it.
        const IS_SHARED: bool;

        /// The elements as the driver gets them: in `place`, if those of the list have their protection
        /// domain. One of another domain than `pd` is rejected.
        fn sges<'l>(
            &'l mut self,
            pd: &ProtectionDomain,
            place: &'l mut Place,
        ) -> Result<&'l mut [Sge], RejectReason>;
    }

    /// An element of a list.
    #[expect(unnameable_types, reason = "seals `List`")]
    pub trait Member: Sized {
        type Element: Element;
        const IS_SHARED: bool;

        /// As [`Sealed::sges`].
        fn sges<'l>(
            list: &'l mut [Self],
            pd: &ProtectionDomain,
            place: &'l mut Place,
        ) -> Result<&'l mut [Sge], RejectReason>;
    }
}

/// The lists of one type of element.
macro_rules! lists {
    ($element:ident as $narrow:ty, $is_shared:literal, $sges:expr) => {
        impl sealed::Member for $element<'_> {
            type Element = $narrow;
            const IS_SHARED: bool = $is_shared;

            #[inline(always)]
            fn sges<'l>(
                list: &'l mut [Self],
                pd: &ProtectionDomain,
                place: &'l mut Place,
            ) -> Result<&'l mut [Sge], RejectReason> {
                $sges(list, pd, place)
            }
        }

        lists!([] $element<'_>, Self, slice::from_mut);
    };
    ([$($generics:tt)*] $list:ty, $member:ty, $as_slice:expr) => {
        impl<$($generics)*> List for $list {
            type Element = <$member as sealed::Member>::Element;
        }

        impl<$($generics)*> sealed::Sealed for $list {
            const IS_SHARED: bool = <$member as sealed::Member>::IS_SHARED;

            #[inline(always)]
            fn sges<'l>(
                &'l mut self,
                pd: &ProtectionDomain,
                place: &'l mut Place,
            ) -> Result<&'l mut [Sge], RejectReason> {
                <$member as sealed::Member>::sges($as_slice(self), pd, place)
            }
        }
    };
}

lists!(GatherElement as Self, false, |list, _, _| Ok(as_sges(list)));
lists!(ScatterElement as Self, false, |list, _, _| Ok(as_sges(
    list
)));
lists!(SharedElement as Sge, true, copy);
lists!([E: sealed::Member, const N: usize] [E; N], E, <[E; N]>::as_mut_slice);
lists!([E: sealed::Member] Vec<E>, E, Vec::as_mut_slice);

/// Elements as the driver gets them. A request writes nothing but their order to the slice.
#[inline(always)]
fn as_sges<E: Element>(elements: &mut [E]) -> &mut [Sge] {
    const { assert!(size_of::<E>() == size_of::<Sge>() && align_of::<E>() == align_of::<Sge>()) };
    let all = ptr::from_mut(elements) as *mut [Sge];
    // SAFETY: an `Element` is `repr(transparent)` over an `ibv_sge`, as an `Sge` is, and the slice stays
    // borrowed. Only this crate gets it, and writes nothing but the same elements, in another order.
    unsafe { &mut *all }
}

/// Copies elements that have their protection domain.
#[inline]
fn copy<'p>(
    elements: &[SharedElement<'_>],
    pd: &ProtectionDomain,
    place: &'p mut Place,
) -> Result<&'p mut [Sge], RejectReason> {
    let count = elements.len();
    let copies = place.0.insert([Sge::new(1, 0, 0); MOST_SHARED]);
    let Some(copies) = copies.get_mut(..count) else {
        let max = u32::try_from(MOST_SHARED).unwrap_or(u32::MAX);
        return Err(RejectReason::TooManyElements { count, max });
    };
    for (copy, element) in copies.iter_mut().zip(elements) {
        if !element.is_of(pd) {
            return Err(RejectReason::OtherDomain);
        }
        *copy = Sge::from(*element);
    }
    Ok(copies)
}
