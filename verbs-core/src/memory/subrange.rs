//! Parts of elements.
#![expect(unsafe_code, reason = "cuts elements that cannot be copied")]

use std::iter::FusedIterator;

/// An element that can be split into [`Chunks`]: every kind of element.
pub trait Part: Sized + Sealed {
    /// The part of `self` from `start`, `length` bytes long.
    ///
    /// # Safety
    ///
    /// - The part lies within `self`.
    /// - If the type is not `Copy`: `self` is not used after this, except for other parts, which do
    ///   not overlap with this one.
    #[doc(hidden)]
    #[must_use]
    unsafe fn sub(&self, start: u32, length: u32) -> Self;
}

pub(super) use sealed::Sealed;

mod sealed {
    /// Keeps [`Part`](super::Part) to the four types here.
    #[expect(unnameable_types, reason = "seals a trait")]
    pub trait Sealed {}
}

/// An iterator over the parts of an element: all of one size, except that the last may be shorter.
///
/// [`ScatterElement::chunks_mut`](crate::ScatterElement::chunks_mut),
/// [`GatherElement::chunks`](crate::GatherElement::chunks) and similar methods make one.
#[derive(Debug)]
pub struct Chunks<E> {
    pub(super) element: E,
    pub(super) length: u32,
    pub(super) start: u32,
    pub(super) size: u32,
}

impl<E: Part> Iterator for Chunks<E> {
    type Item = E;

    fn next(&mut self) -> Option<E> {
        let length = self.size.min(self.length - self.start);
        if length == 0 {
            return None;
        }
        // SAFETY: the part is within the element, which `self` owns and does not hand out, and
        // begins where the part before it ended.
        let chunk = unsafe { self.element.sub(self.start, length) };
        self.start += length;
        Some(chunk)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.length - self.start).div_ceil(self.size) as usize;
        (left, Some(left))
    }
}

impl<E: Part> ExactSizeIterator for Chunks<E> {}
impl<E: Part> FusedIterator for Chunks<E> {}
