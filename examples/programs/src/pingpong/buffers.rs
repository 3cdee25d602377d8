//! The two buffers: where they begin, and what is in them.
#![expect(unsafe_code, reason = "asks for the size of a page")]

use std::ops::Deref as _;

use verbs_core::memory::SharedElement;
use verbs_core::{AccessFlags, GatherElement, MemoryRegion, ProtectionDomain, SharedRegion};

use crate::{Context as _, Failure};

/// The buffers to send from and to receive into: they begin at a page, as C's do.
pub(super) struct Buffers {
    send: MemoryRegion<Vec<u8>>,
    receive: SharedRegion<Vec<u8>>,
    size: usize,
    /// Length of the header before a message in a datagram.
    header: usize,
    page: usize,
}

/// C's buffer is filled with this, and checked for a zero at the begin of each page.
const FILL: u8 = 0x7b;
const PAGE_MARK: u8 = 0;
/// A byte that no message has.
const STALE: u8 = 0xff;

impl Buffers {
    pub(super) fn new(
        pd: &ProtectionDomain,
        size: u32,
        header: usize,
        chk: bool,
    ) -> Result<Self, Failure> {
        let (size, page) = (usize::try_from(size)?, page_size()?);
        let room = || crate::memory(STALE, header + size + page);
        let mut this = Self {
            send: pd.reg_mr(room()?)?,
            receive: pd.reg_shared(room()?, AccessFlags::LOCAL_WRITE)?,
            size,
            header,
            page,
        };
        let start = this.send.deref().as_ptr().align_offset(page);
        let message = this.send.get_mut(start..start + size).unwrap_or_default();
        for page in message.chunks_mut(page) {
            fill(page, chk);
        }
        Ok(this)
    }

    /// The bytes of a message.
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// The bytes that come with a message: its own, and those before it.
    pub(super) const fn comes_with(&self) -> usize {
        self.header + self.size
    }

    pub(super) fn send(&self) -> verbs_core::Result<GatherElement<'_>> {
        let start = self.send.deref().as_ptr().align_offset(self.page);
        self.send.gather_element(start..start + self.size)
    }

    pub(super) fn receive(&self) -> verbs_core::Result<SharedElement<'_>> {
        let start = self.received();
        self.receive.element(start..start + self.header + self.size)
    }

    fn received(&self) -> usize {
        self.receive.as_ptr().align_offset(self.page)
    }

    /// Checks the message that has come, and makes its bytes stale. Nothing comes meanwhile: the
    /// peer waits for the answer.
    pub(super) fn check(&self, message: u32) -> Result<(), Failure> {
        let start = self.received() + self.header;
        let end = start + self.size;
        let mut right = vec![0; self.page];
        fill(&mut right, true);
        let stale = vec![STALE; self.page];
        let mut came = vec![0; self.page];
        for (number, at) in (start..end).step_by(self.page).enumerate() {
            let len = self.page.min(end - at);
            let (came, right, stale) = (&mut came[..len], &right[..len], &stale[..len]);
            self.receive.read(at, came)?;
            if came != right {
                return Err(Failure::new(format!(
                    "invalid data in page {number} of message {message}"
                )));
            }
            self.receive.write(at, stale)?;
        }
        Ok(())
    }
}

fn fill(page: &mut [u8], mark: bool) {
    page.fill(FILL);
    if let Some(first) = page.first_mut().filter(|_| mark) {
        *first = PAGE_MARK;
    }
}

fn page_size() -> Result<usize, Failure> {
    // SAFETY: `sysconf` takes a number and touches no memory.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).context(|| "cannot read the size of a page")
}
