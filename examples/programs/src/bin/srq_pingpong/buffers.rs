//! The memory to send from and to receive into.

use programs::Failure;
use programs::pingpong::Connected;
use verbs_core::memory::SharedElement;
use verbs_core::{AccessFlags, GatherElement, MemoryRegion, ProtectionDomain, SharedRegion};

/// One message to send, and the messages that come: in one place, as in C, or in a place for each receive
/// if they are checked.
pub(crate) struct Buffers {
    send: MemoryRegion<Vec<u8>>,
    receive: SharedRegion<Vec<u8>>,
    size: usize,
    is_checked: bool,
}

/// C's messages are zeros.
const FILL: u8 = 0;
/// A byte that no message has.
const STALE: u8 = 0xff;

impl Buffers {
    pub(crate) fn new(pd: &ProtectionDomain, options: &Connected) -> Result<Self, Failure> {
        let Connected { size, options, .. } = options;
        let size = usize::try_from(*size)?;
        let places = if options.chk { options.rx_depth } else { 1 };
        let room = size.saturating_mul(usize::try_from(places)?);
        Ok(Self {
            send: pd.reg_mr(programs::memory(FILL, size)?)?,
            receive: pd.reg_shared(programs::memory(STALE, room)?, AccessFlags::LOCAL_WRITE)?,
            size,
            is_checked: options.chk,
        })
    }

    pub(crate) fn send(&self) -> verbs_core::Result<GatherElement<'_>> {
        self.send.gather_element(..)
    }

    /// The element of the receive with this number.
    pub(crate) fn receive(&self, number: u32) -> verbs_core::Result<SharedElement<'_>> {
        let start = self.start(number);
        self.receive.element(start..start + self.size)
    }

    fn start(&self, number: u32) -> usize {
        let place = if self.is_checked { number as usize } else { 0 };
        place * self.size
    }

    /// Checks the message in the receive with this number, if messages are checked, and makes its bytes
    /// stale. Nothing comes there meanwhile: the receive is not posted.
    pub(crate) fn check(&self, number: u32, message: u32) -> Result<(), Failure> {
        if !self.is_checked {
            return Ok(());
        }
        let start = self.start(number);
        let mut came = [STALE; 4096];
        for at in (start..start + self.size).step_by(came.len()) {
            let len = came.len().min(start + self.size - at);
            let came = came.get_mut(..len).unwrap_or_default();
            self.receive.read(at, came)?;
            if came.iter().any(|byte| *byte != FILL) {
                return Err(Failure::new(format!(
                    "invalid data in message {message}, after byte {}",
                    at - start
                )));
            }
            came.fill(STALE);
            self.receive.write(at, came)?;
        }
        Ok(())
    }
}
