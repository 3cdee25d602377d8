//! Leaks: buffers that a device may touch for good.

use std::fmt::{self, Write as _};
use std::process;

use verbs_core::Error;
use verbs_core::error::ErrorChain;

/// A report of buffers that had to be leaked, because the driver failed to destroy their queue pair.
///
/// Its `Display` is a line for the log.
#[derive(Debug)]
pub struct Leak {
    pub(crate) buffers: usize,
    pub(crate) error: Error,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { buffers, error } = self;
        let error = ErrorChain::new(error);
        match buffers {
            0 => write!(f, "leaked an object without buffers: {error}"),
            _ => write!(
                f,
                "leaked {buffers} buffers that the device may still touch: {error}"
            ),
        }
    }
}

impl From<Leak> for crate::error::Error {
    fn from(leak: Leak) -> Self {
        leak.error.into()
    }
}

/// Aborts the process, and writes the reason to stderr.
///
/// No code of the program runs in between: no logger, and no allocator. It could take back what the device still
/// has.
#[cold]
pub(crate) fn abort_with(why: fmt::Arguments<'_>) -> ! {
    let mut line = Line {
        bytes: [0; 400],
        len: 0,
    };
    // It is cut if it is too long.
    let _all = writeln!(line, "verbs-channel: {why}");
    let bytes = line.bytes.get(..line.len).unwrap_or_default();
    // Past the lock of `std`. There is nothing left to do if that fails.
    let _written = rustix::io::write(rustix::stdio::stderr(), bytes);
    process::abort();
}

/// A line in memory that is not allocated.
struct Line {
    bytes: [u8; 400],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        for (place, byte) in room.iter_mut().zip(part.bytes()) {
            *place = byte;
            self.len += 1;
        }
        Ok(())
    }
}
