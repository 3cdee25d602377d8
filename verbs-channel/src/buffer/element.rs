//! The tag of a protection domain.

use verbs_core::ProtectionDomain;

/// Identifies a protection domain that exists, and its parent domains, whose queue pairs its regions work
/// with; or none, which no queue pair is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PdTag(usize);

impl PdTag {
    pub(super) const NONE: Self = Self(0);

    /// The same for memory that cannot be borrowed.
    pub(super) const fn shared(self) -> Self {
        // A tag is an aligned address.
        Self(self.0 | 1)
    }

    /// The same for any other memory.
    pub(super) const fn not_shared(self) -> Self {
        Self(self.0 & !1)
    }

    pub(crate) fn of(pd: &ProtectionDomain) -> Self {
        Self(verbs_core::__private::tag(pd))
    }
}
