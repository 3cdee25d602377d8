//! The two halves of a stream.

/// Half of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Read = 0,
    Write = 1,
}

/// A set of halves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Halves {
    pub(super) read: bool,
    pub(super) write: bool,
}

impl Halves {
    pub(super) const BOTH: Self = Self {
        read: true,
        write: true,
    };

    pub(super) const fn without(self, half: Half) -> Self {
        match half {
            Half::Read => Self {
                read: false,
                ..self
            },
            Half::Write => Self {
                write: false,
                ..self
            },
        }
    }
}
