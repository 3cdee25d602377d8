//! The bytes that arrive with an event of the connection manager.

use std::fmt;

/// The bytes that a peer sent with its request, its answer or its rejection: see
/// [`Message`](crate::rdmacm::Message).
///
/// [`message`](Self::message) is what a peer that uses this crate has sent, and
/// [`as_bytes`](Self::as_bytes) is what has arrived, with the zeros behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[doc(alias = "private_data")]
pub struct PrivateData {
    pub(crate) len: u8,
    pub(crate) bytes: [u8; MAX],
}

const MAX: usize = u8::MAX as usize;

impl PrivateData {
    /// No bytes.
    pub(crate) const EMPTY: Self = Self {
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

    /// All bytes that have arrived. InfiniBand and RoCE fill the message's room with zeros behind
    /// the data sent.
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
    pub(crate) unsafe fn copied(data: *const std::ffi::c_void, len: u8) -> Self {
        let mut this = Self::EMPTY;
        if !data.is_null() {
            let to = this.bytes.as_mut_ptr();
            // SAFETY: the caller promises `len` bytes at `data`, and `bytes` has room for any `u8`.
            unsafe { std::ptr::copy_nonoverlapping(data.cast::<u8>(), to, len.into()) };
            this.len = len;
        }
        this
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({} bytes)", self.len)
    }
}
