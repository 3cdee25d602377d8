//! Elements: registered slices with their keys.
#![expect(unsafe_code, reason = "turns registered memory into slices and back")]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use verbs_sys::ibv_sge;

use super::slice::{slice, slice_mut};
use super::subrange::{Chunks, Part, Sealed};
use crate::error::{Error, Result};

/// A registered slice to send from: a `&[u8]` with its key.
///
/// [`MemoryRegion::gather_element`](crate::MemoryRegion::gather_element) makes one. It is `Copy`, and
/// its parts can be sent separately: see [`split_at`](Self::split_at) and [`chunks`](Self::chunks).
#[derive(Clone, Copy)]
#[repr(transparent)]
#[doc(alias = "ibv_sge")]
pub struct GatherElement<'a> {
    sge: ibv_sge,
    bytes: PhantomData<&'a [u8]>,
}

/// A registered slice to receive or read into: a `&mut [u8]` with its key.
///
/// [`MemoryRegion::scatter_element`](crate::MemoryRegion::scatter_element) makes one. It can be moved
/// and split, but not copied, so that no two requests write to the same bytes:
///
/// ```no_run
/// # fn main() -> verbs_core::Result<()> {
/// # let pd = verbs_core::Context::first_active()?.alloc_pd()?;
/// let mut region = pd.reg_mr(vec![0_u8; 4096])?;
/// let (header, body) = region.scatter_element(..)?.split_at_mut(64)?;
/// assert_eq!((header.length(), body.length()), (64, 4032));
/// # Ok(())
/// # }
/// ```
#[repr(transparent)]
#[doc(alias = "ibv_sge")]
pub struct ScatterElement<'a> {
    sge: ibv_sge,
    bytes: PhantomData<&'a mut [u8]>,
}

/// An element that borrows nothing: an address, a length and a key, as in C.
///
/// Nothing checks that there is such memory. It is for code that manages registrations by itself.
#[derive(Clone, Copy)]
#[repr(transparent)]
#[doc(alias = "ibv_sge")]
pub struct Sge {
    sge: ibv_sge,
}

/// An element that a work request can send from.
pub trait Gather: Element {}

/// An element that a work request can receive or read into.
pub trait Scatter: Element {}

impl Gather for GatherElement<'_> {}
// Writable memory can also be sent: after the send, the same buffer can be filled again.
impl Gather for ScatterElement<'_> {}
impl Gather for Sge {}
impl Scatter for ScatterElement<'_> {}
impl Scatter for Sge {}

/// A registered slice that a work request can name: one entry of its gather or scatter list.
///
/// [`GatherElement`], [`ScatterElement`] and [`Sge`] implement it. It is sealed: types of other crates
/// cannot.
///
/// # Safety
///
/// The type is `repr(transparent)` over `ibv_sge`.
pub unsafe trait Element: Part {}

macro_rules! element {
    ($element:ident [$($lifetime:lifetime)?], $name:literal, $split:ident, $chunks:ident, $($phantom:ident)? $(+ $pd:ident)?) => {
        impl $(<$lifetime>)? Sealed for $element $(<$lifetime>)? {}

        impl $(<$lifetime>)? Part for $element $(<$lifetime>)? {
            unsafe fn sub(&self, start: u32, length: u32) -> Self {
                // An `Sge` may have any address.
                let addr = self.sge.addr.wrapping_add(u64::from(start));
                let sge = ibv_sge { addr, length, ..self.sge };
                Self { sge, $($pd: self.$pd,)? $($phantom: PhantomData)? }
            }
        }

        impl $(<$lifetime>)? $element $(<$lifetime>)? {
            /// The address of its first byte, as the device uses it.
            #[must_use]
            pub const fn addr(&self) -> u64 {
                self.sge.addr
            }

            /// The length in bytes.
            #[must_use]
            pub const fn length(&self) -> u32 {
                self.sge.length
            }

            /// The key of its region, by which this side's requests name it.
            #[must_use]
            pub const fn lkey(&self) -> u32 {
                self.sge.lkey
            }

            /// Splits the element in two: the first `mid` bytes and the rest. One may be empty.
            ///
            /// # Errors
            ///
            /// [`Error::OutOfBounds`] if `mid` is past the end.
            pub fn $split(self, mid: usize) -> Result<(Self, Self)> {
                let length = self.sge.length;
                match u32::try_from(mid) {
                    Ok(mid) if mid <= length => {
                        // SAFETY: `mid` is within, and `self` ends here.
                        let head = unsafe { self.sub(0, mid) };
                        // SAFETY: the rest does not overlap the head.
                        let tail = unsafe { self.sub(mid, length - mid) };
                        Ok((head, tail))
                    }
                    _ => Err(Error::OutOfBounds {
                        start: mid as u64,
                        end: mid as u64,
                        len: u64::from(length),
                    }),
                }
            }

            /// Splits the element in parts of `size` bytes each; the last may be shorter.
            ///
            /// # Errors
            ///
            /// [`Error::OutOfRange`] if `size` is 0, or 4 GiB or more.
            pub fn $chunks(self, size: usize) -> Result<Chunks<Self>> {
                match u32::try_from(size) {
                    Ok(size) if size > 0 => Ok(Chunks {
                        length: self.sge.length,
                        element: self,
                        start: 0,
                        size,
                    }),
                    _ => Err(Error::OutOfRange {
                        what: "chunk size",
                        value: size as u64,
                        min: 1,
                        max: u64::from(u32::MAX),
                    }),
                }
            }
        }

        impl $(<$lifetime>)? fmt::Debug for $element $(<$lifetime>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let ibv_sge { addr, length, lkey } = self.sge;
                write!(f, concat!($name, "({:#x}, {} bytes, lkey {:#x})"), addr, length, lkey)
            }
        }
    };
}

element!(GatherElement['a], "GatherElement", split_at, chunks, bytes);
element!(ScatterElement['a], "ScatterElement", split_at_mut, chunks_mut, bytes);
element!(Sge[], "Sge", split_at, chunks,);

pub(super) use element;

/// Those that are handed to the driver as they are.
macro_rules! in_place {
    ($($element:ty)*) => {$(
        const _: () = assert!(size_of::<$element>() == size_of::<ibv_sge>());

        // SAFETY: the type is declared so above.
        unsafe impl Element for $element {}

        impl AsMut<[Self]> for $element {
            #[inline]
            fn as_mut(&mut self) -> &mut [Self] {
                std::slice::from_mut(self)
            }
        }
    )*};
}

in_place! { GatherElement<'_> ScatterElement<'_> Sge }

impl GatherElement<'_> {
    /// An element of no bytes and no region, for a message without bytes.
    ///
    /// Empty elements in a list are not posted.
    #[must_use]
    pub const fn empty() -> Self {
        ScatterElement::empty().into_gather()
    }

    /// An element for registered bytes.
    ///
    /// # Safety
    ///
    /// - The bytes are initialised, and registered under `lkey`.
    /// - They stay so, and nothing writes to them, for the lifetime of the element, which the caller
    ///   chooses.
    pub(super) unsafe fn new(start: NonNull<u8>, length: u32, lkey: u32) -> Self {
        Self {
            sge: sge(start, length, lkey),
            bytes: PhantomData,
        }
    }
}

impl<'a> ScatterElement<'a> {
    /// An element of no bytes and no region, for a message without bytes.
    ///
    /// Empty elements in a list are not posted.
    #[must_use]
    pub const fn empty() -> Self {
        // A slice may begin anywhere but at null.
        let (addr, length, lkey) = (1, 0, 0);
        Self {
            sge: ibv_sge { addr, length, lkey },
            bytes: PhantomData,
        }
    }

    /// An element for registered bytes.
    ///
    /// # Safety
    ///
    /// - The bytes are initialised, and registered under `lkey`.
    /// - They stay so, and nothing else accesses them, for the lifetime of the element, which the
    ///   caller chooses.
    pub(super) unsafe fn new(start: NonNull<u8>, length: u32, lkey: u32) -> Self {
        Self {
            sge: sge(start, length, lkey),
            bytes: PhantomData,
        }
    }

    /// The same bytes to send from, for as long as this borrow lasts.
    #[must_use]
    pub const fn as_gather(&self) -> GatherElement<'_> {
        GatherElement {
            sge: self.sge,
            bytes: PhantomData,
        }
    }

    /// The same bytes to send from, for as long as this element could be used.
    #[must_use]
    pub const fn into_gather(self) -> GatherElement<'a> {
        GatherElement {
            sge: self.sge,
            bytes: PhantomData,
        }
    }

    /// The same bytes to receive into, for as long as this borrow lasts.
    #[must_use]
    pub const fn reborrow(&mut self) -> ScatterElement<'_> {
        ScatterElement {
            sge: self.sge,
            bytes: PhantomData,
        }
    }
}

impl From<GatherElement<'_>> for Sge {
    fn from(element: GatherElement<'_>) -> Self {
        Self { sge: element.sge }
    }
}

impl Sge {
    /// An element from its parts. Nothing is checked, and nothing happens until it is posted.
    #[must_use]
    pub const fn new(addr: u64, length: u32, lkey: u32) -> Self {
        Self {
            sge: ibv_sge { addr, length, lkey },
        }
    }
}

impl Deref for GatherElement<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `new` got initialised bytes that are not written to while `self` lives.
        unsafe { slice(start(&self.sge), self.sge.length) }
    }
}

impl Deref for ScatterElement<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `new` got initialised bytes that are this element's alone while it lives.
        unsafe { slice(start(&self.sge), self.sge.length) }
    }
}

impl DerefMut for ScatterElement<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `new` got initialised bytes that are this element's alone, and `self` is borrowed
        // mutably.
        unsafe { slice_mut(start(&self.sge), self.sge.length) }
    }
}

fn sge(start: NonNull<u8>, length: u32, lkey: u32) -> ibv_sge {
    ibv_sge {
        addr: start.as_ptr().expose_provenance() as u64,
        length,
        lkey,
    }
}

fn start(sge: &ibv_sge) -> *mut u8 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "verbs-sys builds on 64 bits only"
    )]
    let addr = sge.addr as usize;
    ptr::with_exposed_provenance_mut(addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scatter(bytes: &mut [u8]) -> ScatterElement<'_> {
        let length = u32::try_from(bytes.len()).unwrap();
        // SAFETY: borrowed mutably for as long as the element lives; never posted.
        unsafe { ScatterElement::new(NonNull::from(bytes).cast(), length, 7) }
    }

    #[test]
    fn split_parts_are_disjoint_and_whole() {
        let mut bytes = *b"hello world";
        let (mut hello, mut world) = scatter(&mut bytes).split_at_mut(5).unwrap();
        hello[0] = b'J';
        world[0] = b'-';
        assert_eq!((&hello[..], &world[..]), (&b"Jello"[..], &b"-world"[..]));
        assert_eq!(world.addr(), hello.addr() + 5);
        let gather = world.into_gather();
        assert_eq!(gather.lkey(), 7);
        assert_eq!(&bytes, b"Jello-world");
    }

    #[test]
    fn split_past_the_end_is_an_error() {
        let mut bytes = [0; 4];
        let element = scatter(&mut bytes);
        assert!(element.as_gather().split_at(5).is_err());
        let (all, none) = element.as_gather().split_at(4).unwrap();
        assert_eq!((all.len(), none.len()), (4, 0));
        assert!(element.split_at_mut(usize::MAX).is_err());
    }

    #[test]
    fn an_empty_element_has_no_bytes() {
        let mut empty = ScatterElement::empty();
        assert_eq!((&*empty, empty.length()), (&[][..], 0));
        empty.fill(1);
        let (head, tail) = empty.split_at_mut(0).unwrap();
        assert_eq!(crate::memory::compact(&mut [head, tail]).1, 0);
    }

    #[test]
    fn chunks_cover_everything_once() {
        let mut bytes = [0_u8; 10];
        let chunks = scatter(&mut bytes).chunks_mut(4).unwrap();
        assert_eq!(chunks.len(), 3);
        let mut lengths = Vec::new();
        for (mut chunk, mark) in chunks.zip(1_u8..) {
            chunk.fill(mark);
            lengths.push(chunk.len());
        }
        assert_eq!(lengths, [4, 4, 2]);
        assert_eq!(bytes, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
        assert!(scatter(&mut bytes).chunks_mut(0).is_err());
        let (empty, _) = scatter(&mut bytes).split_at_mut(0).unwrap();
        assert_eq!(empty.chunks_mut(4).unwrap().count(), 0);
    }
}
