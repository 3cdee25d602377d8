//! Time: the system's, or a virtual one that only the network and its programs move.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::interpose::kernel_clock;

/// How far each reading of virtual time moves it, so that a loop that waits for a deadline ends.
const READING: u64 = 1_000;

/// A virtual clock begins here, far behind the kernel's: a wait that the kernel carries out until an instant of virtual
/// time is over at once.
pub(super) const EPOCH: Duration = Duration::from_secs(1);

/// The time since the network was made.
pub(super) enum Clock {
    /// Runs by itself, since this reading of the kernel's, and this time of the wall's.
    Real { start: Duration, wall: Duration },
    /// Stands still, unless it is moved: nanoseconds.
    Virtual(AtomicU64),
}

impl Clock {
    pub(super) fn real() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Self::Real {
            start: kernel_clock(),
            wall: wall.unwrap_or_default(),
        }
    }

    pub(super) const fn virtual_time() -> Self {
        Self::Virtual(AtomicU64::new(0))
    }

    pub(super) const fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual(_))
    }

    pub(super) fn now(&self) -> Duration {
        match self {
            Self::Real { start, .. } => kernel_clock().saturating_sub(*start),
            Self::Virtual(nanos) => Duration::from_nanos(nanos.load(Ordering::Relaxed)),
        }
    }

    /// The time of a wall clock at an instant; virtual time begins in 1970.
    pub(super) fn wall(&self, at: Duration) -> Duration {
        match self {
            Self::Real { wall, .. } => *wall + at,
            Self::Virtual(_) => EPOCH + at,
        }
    }

    /// A program's reading of virtual time; nothing if the kernel has the time.
    pub(super) fn read(&self) -> Option<Duration> {
        match self {
            Self::Real { .. } => None,
            Self::Virtual(nanos) => {
                let before = nanos.fetch_add(READING, Ordering::Relaxed);
                Some(EPOCH + Duration::from_nanos(before + READING))
            }
        }
    }

    /// Moves virtual time; it does not go back.
    pub(super) fn advance_to(&self, instant: Duration) {
        if let Self::Virtual(nanos) = self {
            let instant = u64::try_from(instant.as_nanos()).unwrap_or(u64::MAX);
            nanos.fetch_max(instant, Ordering::Relaxed);
        }
    }
}
