//! Buffers that can be registered: owners and borrowers of stable bytes.
#![expect(unsafe_code, reason = "the contract of memory a device may write")]

use std::ptr::NonNull;

/// A type whose values a device may overwrite with any bytes.
///
/// Integers, floating-point numbers and arrays of them are such types.
///
/// Implement it for structs of your own that are registered as they are, such as headers:
///
/// ```
/// use verbs_core::memory::Plain;
///
/// #[derive(Clone, Copy)]
/// #[repr(C)]
/// struct Header {
///     sequence: u64,
///     len: u32,
///     kind: u32,
/// }
///
/// // SAFETY: `repr(C)`, all fields are plain, and there is no padding between or after them.
/// unsafe impl Plain for Header {}
/// ```
///
/// # Safety
///
/// - The type has no padding.
/// - Each pattern of bits is a valid value. There are no references, `bool`s, `char`s or enums in it.
/// - It has no interior mutability.
#[diagnostic::on_unimplemented(
    message = "a device cannot write values of type `{Self}`",
    label = "not an integer, a floating-point number or an array of them",
    note = "registered memory holds numbers (`u8` to `u128`, `i8` to `i128`, `f32`, `f64`), arrays of them, or structs for which you implement `Plain`"
)]
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($number:ty)*) => {$(
        // SAFETY: a number has no padding, and each pattern of its bits is a value.
        unsafe impl Plain for $number {}
    )*};
}

plain! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 }

// SAFETY: an array's items have no padding between them, and each is plain.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A buffer that can be registered: its memory stays in place when the value is moved.
///
/// It is implemented for vectors, boxed slices, boxed arrays, and mutable borrows of slices and arrays.
/// Their items are of any [`Plain`] type.
///
/// # Safety
///
/// - `items` returns the same initialised memory each time, aligned and valid for reads and writes.
/// - The memory stays valid, and at its address, until the value is dropped, wherever the value is
///   moved to.
/// - While the value lives, the memory is accessed only through it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be registered as a memory region",
    label = "cannot be registered",
    note = "register a `Vec<T>`, `Box<[T]>`, `Box<[T; N]>`, `&mut [T]` or `&mut [T; N]` of numbers, or a copy of a `&[T]` (`to_vec`); memory of other kinds is registered with `register_raw`"
)]
pub unsafe trait Buffer {
    /// The type of the items in the buffer.
    type Item: Plain;

    /// The buffer's memory, as a slice of its items.
    fn items(&mut self) -> NonNull<[Self::Item]>;
}

// SAFETY: a vector's elements live on the heap, and the vector owns them.
unsafe impl<T: Plain> Buffer for Vec<T> {
    type Item = T;

    fn items(&mut self) -> NonNull<[T]> {
        NonNull::from(self.as_mut_slice())
    }
}

// SAFETY: the box owns its slice on the heap.
unsafe impl<T: Plain> Buffer for Box<[T]> {
    type Item = T;

    fn items(&mut self) -> NonNull<[T]> {
        NonNull::from(&mut **self)
    }
}

// SAFETY: the box owns its array on the heap.
unsafe impl<T: Plain, const N: usize> Buffer for Box<[T; N]> {
    type Item = T;

    fn items(&mut self) -> NonNull<[T]> {
        NonNull::from(self.as_mut_slice())
    }
}

// SAFETY: a mutable borrow is exclusive while it lives, and does not move what it borrows.
unsafe impl<T: Plain> Buffer for &mut [T] {
    type Item = T;

    fn items(&mut self) -> NonNull<[T]> {
        NonNull::from(&mut **self)
    }
}

// SAFETY: a mutable borrow is exclusive while it lives, and does not move the array.
unsafe impl<T: Plain, const N: usize> Buffer for &mut [T; N] {
    type Item = T;

    fn items(&mut self) -> NonNull<[T]> {
        NonNull::from(self.as_mut_slice())
    }
}

/// The bytes of a buffer.
pub(super) fn bytes<B: Buffer>(buffer: &mut B) -> NonNull<[u8]> {
    let items = buffer.items();
    // No overflow: memory is shorter than that.
    let len = items.len() * size_of::<B::Item>();
    NonNull::slice_from_raw_parts(items.cast(), len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_in_bytes() {
        assert_eq!(bytes(&mut vec![0_u64; 3]).len(), 24);
        assert_eq!(bytes(&mut vec![0.0_f32; 3].into_boxed_slice()).len(), 12);
        assert_eq!(bytes(&mut Box::new([[0_i16; 2]; 3])).len(), 12);
        assert_eq!(bytes(&mut &mut [0_u32; 5]).len(), 20);
        assert_eq!(bytes(&mut &mut [0.0_f64; 5][..]).len(), 40);
    }

    #[test]
    fn bytes_stay_when_the_owner_moves() {
        let mut vec = vec![7_u8; 64];
        let before = vec.items();
        let mut moved = std::hint::black_box(vec);
        assert_eq!(before, moved.items());
    }
}
