//! The bytes that a connection manager carries while it connects.

use std::fmt;

use crate::error::{Error, Result};

/// The bytes that a peer sent with its request, its answer or its rejection.
///
/// On InfiniBand and RoCE they arrive padded with zeros, so their length is not the length that was
/// sent. So this crate sends a byte with the length first: [`message`](Self::message) is what a
/// peer that uses this crate has sent, and [`as_bytes`](Self::as_bytes) is what has arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
#[doc(alias = "private_data")]
pub struct PrivateData {
    len: u8,
    bytes: [u8; MAX],
}

const MAX: usize = u8::MAX as usize;

impl PrivateData {
    /// No bytes.
    pub(super) const EMPTY: Self = Self {
        len: 0,
        bytes: [0; MAX],
    };

    /// The message, if the peer uses this crate, too; `None` if the bytes cannot be one: the peer
    /// is another program.
    #[must_use]
    pub fn message(&self) -> Option<&[u8]> {
        let (len, rest) = self.as_bytes().split_first()?;
        rest.get(..usize::from(*len))
    }

    /// All bytes that have arrived.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The bytes at an address of C.
    ///
    /// # Safety
    ///
    /// - `data` is valid for reads of `len` bytes, or null.
    #[expect(unsafe_code, reason = "reads an event's bytes")]
    pub(super) unsafe fn copied(data: *const std::ffi::c_void, len: u8) -> Self {
        let mut this = Self::EMPTY;
        if !data.is_null() {
            let to = this.bytes.as_mut_ptr();
            // SAFETY: the caller's promise, and there is room for any such length.
            unsafe { std::ptr::copy_nonoverlapping(data.cast::<u8>(), to, len.into()) };
            this.len = len;
        }
        this
    }

    /// A message as it is sent: its length, and its bytes. At most `max` bytes fit, the length included.
    pub(super) fn framed(message: &[u8], max: u8) -> Result<Self> {
        let len = message.len();
        let room = usize::from(max).saturating_sub(1);
        let Some(first) = u8::try_from(len).ok().filter(|_| len <= room) else {
            return Err(Error::Limit {
                what: "private_data",
                asked: len as u64,
                max: Some(room as u64),
            });
        };
        let mut this = Self::EMPTY;
        this.len = first + 1;
        this.bytes[0] = first;
        if let Some(to) = this.bytes.get_mut(1..=len) {
            to.copy_from_slice(message);
        }
        Ok(this)
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_survives_the_zeros_behind_it() {
        for message in [&b""[..], b"x", &[7; 55]] {
            let mut sent = PrivateData::framed(message, 56).unwrap();
            assert_eq!(sent.message(), Some(message));
            sent.len = 56;
            assert_eq!(sent.message(), Some(message));
        }
    }

    #[test]
    fn longer_message_than_fits_is_an_error_with_the_limit() {
        let error = PrivateData::framed(&[0; 56], 56).unwrap_err();
        assert_eq!(
            error.to_string(),
            "private_data 56 exceeds this device's 55"
        );
        assert!(PrivateData::framed(&[0; 254], 255).is_ok());
        assert!(PrivateData::framed(&[0; 300], 255).is_err());
    }

    #[test]
    fn bytes_of_another_program_are_no_message() {
        let mut other = PrivateData::EMPTY;
        assert_eq!(other.message(), None);
        (other.len, other.bytes[0]) = (3, 9);
        assert_eq!((other.message(), other.as_bytes()), (None, &[9, 0, 0][..]));
    }
}
