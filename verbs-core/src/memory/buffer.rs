//! What can be registered: owners and borrowers of stable bytes.
#![expect(unsafe_code, reason = "the contract of memory a card may write")]

use std::ptr::NonNull;

/// Bytes that stay where they are, whatever happens to the value that holds them.
///
/// Implemented for vectors, boxed slices and arrays, and mutable borrows of bytes.
///
/// # Safety
///
/// - `bytes` returns the same initialised memory each time, valid for reads and writes.
/// - The memory stays valid, and at its address, until the value is dropped, wherever the value is
///   moved to.
/// - While the value lives, nobody reaches the memory but through it.
/// - Any bytes may be written there.
pub unsafe trait Buffer {
    /// The memory.
    fn bytes(&mut self) -> NonNull<[u8]>;
}

/// The bytes of a slice of plain numbers.
fn bytes_of<T>(slice: &mut [T]) -> NonNull<[u8]> {
    let len = size_of_val(slice);
    NonNull::slice_from_raw_parts(NonNull::from(slice).cast(), len)
}

macro_rules! buffers {
    ($($number:ty)*) => {$(
        // SAFETY: a vector's elements live on the heap, and the vector owns them.
        unsafe impl Buffer for Vec<$number> {
            fn bytes(&mut self) -> NonNull<[u8]> {
                bytes_of(self.as_mut_slice())
            }
        }

        // SAFETY: the box owns its slice on the heap.
        unsafe impl Buffer for Box<[$number]> {
            fn bytes(&mut self) -> NonNull<[u8]> {
                bytes_of(self)
            }
        }

        // SAFETY: the box owns its array on the heap.
        unsafe impl<const N: usize> Buffer for Box<[$number; N]> {
            fn bytes(&mut self) -> NonNull<[u8]> {
                bytes_of(self.as_mut_slice())
            }
        }

        // SAFETY: a mutable borrow is exclusive while it lives, and does not move what it borrows.
        unsafe impl Buffer for &mut [$number] {
            fn bytes(&mut self) -> NonNull<[u8]> {
                bytes_of(self)
            }
        }

        // SAFETY: as for a borrowed slice.
        unsafe impl<const N: usize> Buffer for &mut [$number; N] {
            fn bytes(&mut self) -> NonNull<[u8]> {
                bytes_of(self.as_mut_slice())
            }
        }
    )*};
}

buffers! { u8 u16 u32 u64 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_in_bytes() {
        assert_eq!(vec![0_u64; 3].bytes().len(), 24);
        assert_eq!((&mut [0_u32; 5]).bytes().len(), 20);
    }

    #[test]
    fn bytes_stay_when_the_owner_moves() {
        let mut vec = vec![7_u8; 64];
        let before = vec.bytes();
        let mut moved = std::hint::black_box(vec);
        assert_eq!(before, moved.bytes());
    }
}
