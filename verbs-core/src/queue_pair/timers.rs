//! The settings of a queue pair, as types that hold valid values only.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::ffi::random;

/// A number of few bits with C's name, checked when it is made.
macro_rules! bounded {
    (
        $(#[$attr:meta])*
        $name:ident($repr:ident), $what:literal, 0..=$max:literal
    ) => {
        $(#[$attr])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[doc(alias = $what)]
        pub struct $name($repr);

        impl $name {
            #[doc = concat!("The largest value: ", stringify!($max), ".")]
            pub const MAX: Self = Self($max);

            #[doc = concat!("The value for a number, 0 to ", stringify!($max), ".")]
            ///
            /// # Errors
            ///
            /// [`Error::OutOfRange`](crate::Error::OutOfRange) for any other number.
            pub const fn new(value: $repr) -> Result<Self> {
                if value <= $max {
                    Ok(Self(value))
                } else {
                    Err(Error::OutOfRange {
                        what: $what,
                        value: value as u64,
                        min: 0,
                        max: $max,
                    })
                }
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> $repr {
                self.0
            }
        }
    };
}

bounded! {
    /// How many times the device sends again when the peer does not acknowledge.
    ///
    /// Each try waits for an [`AckTimeout`]. After the last one, the request fails with
    /// [`RETRY_EXC_ERR`](crate::codes::WcStatus::RETRY_EXC_ERR). Default: 6. Soft-RoCE treats 7 as forever.
    ///
    /// With 0, one lost request or acknowledgement breaks the connection. On soft-RoCE it can break without a loss
    /// (seen in Linux 6.1): the acknowledgement of the last request in flight does not stop the timer, which can then
    /// expire while a later request waits for its own.
    MaxAckRetries(u8), "retry_cnt", 0..=7
}

bounded! {
    /// How many times the device sends again when the peer has no receive posted (RNR).
    ///
    /// The peer sets how long each try waits: its [`MinRnrTimer`]. After the last try, the request
    /// fails with [`RNR_RETRY_EXC_ERR`](crate::codes::WcStatus::RNR_RETRY_EXC_ERR).
    ///
    /// Default: 7, which means forever. A program that waits needs a timeout of its own. Soft-RoCE
    /// gives up when the time of [`AckTimeout`] and [`MaxAckRetries`] is over, even with 7: by default, after about
    /// half a second.
    MaxRnrRetries(u8), "rnr_retry", 0..=7
}

bounded! {
    /// How long the peer waits before it sends again when this side has no receive posted (RNR).
    ///
    /// The value is a code of the InfiniBand specification: 1 is 0.01 ms, 31 is 491.52 ms, and 0 is
    /// the longest, 655.36 ms. See [`duration`](Self::duration). Default: 12, which is 0.64 ms.
    MinRnrTimer(u8), "min_rnr_timer", 0..=31
}

bounded! {
    /// How long the device waits for an acknowledgement before it sends again.
    ///
    /// The value is a code t that stands for 4.096 µs × 2ᵗ; 0 means forever. See
    /// [`duration`](Self::duration) and [`at_least`](Self::at_least). Default: 14, which is 67 ms.
    /// Short times cause needless retries on loaded or software fabrics.
    AckTimeout(u8), "timeout", 0..=31
}

bounded! {
    /// The number of a queue pair's first packet, 24 bits.
    ///
    /// A [`QueuePairBuilder`](crate::queue_pair::QueuePairBuilder) uses a random one unless it is set, so that
    /// packets of an earlier connection are not taken for this one's.
    PacketSequenceNumber(u32), "psn", 0..=0xff_ffff
}

impl MaxRnrRetries {
    /// Retries forever: 7.
    pub const UNLIMITED: Self = Self::MAX;
}

impl Default for MaxRnrRetries {
    fn default() -> Self {
        Self::UNLIMITED
    }
}

impl Default for MaxAckRetries {
    fn default() -> Self {
        Self(6)
    }
}

impl Default for MinRnrTimer {
    fn default() -> Self {
        Self(12)
    }
}

impl MinRnrTimer {
    /// The time that the code stands for.
    #[must_use]
    pub const fn duration(self) -> Duration {
        // In units of 10 µs, as the InfiniBand specification's table 45 has them.
        const TENS_OF_MICROS: [u64; 32] = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
            1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        Duration::from_micros(10 * TENS_OF_MICROS[self.0 as usize])
    }
}

impl Default for AckTimeout {
    fn default() -> Self {
        Self(14)
    }
}

impl AckTimeout {
    /// Waits forever: 0.
    pub const UNLIMITED: Self = Self(0);

    /// The time that the code stands for; `None` for 0, which is forever.
    #[must_use]
    pub const fn duration(self) -> Option<Duration> {
        match self.0 {
            0 => None,
            code => Some(Duration::from_nanos(4096 << code)),
        }
    }

    /// The code of the shortest time that is at least this long.
    ///
    /// If there is none, it is the code of the longest time, over two hours.
    #[must_use]
    pub fn at_least(duration: Duration) -> Self {
        let long_enough = |code: &u8| Self(*code).duration().is_some_and(|d| d >= duration);
        (1..=31).find(long_enough).map_or(Self::MAX, Self)
    }
}

impl PacketSequenceNumber {
    /// A random number, which cannot be guessed from earlier ones.
    #[must_use]
    pub fn random() -> Self {
        let [a, b, c, ..] = random().to_ne_bytes();
        Self(u32::from_be_bytes([0, a, b, c]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_checked_when_made() {
        assert_eq!(MaxAckRetries::new(7).unwrap(), MaxAckRetries::MAX);
        assert_eq!(
            MaxAckRetries::new(8).unwrap_err().to_string(),
            "retry_cnt 8 is out of range: 0 to 7 are possible"
        );
        assert!(PacketSequenceNumber::new(0x100_0000).is_err());
        assert!(AckTimeout::new(32).is_err());
    }

    #[test]
    fn timeouts_are_codes() {
        let default = AckTimeout::default().duration().unwrap();
        assert_eq!(default, Duration::from_nanos(67_108_864));
        assert_eq!(AckTimeout::at_least(default), AckTimeout::default());
        assert_eq!(
            AckTimeout::at_least(default + Duration::from_nanos(1)).get(),
            15
        );
        assert_eq!(AckTimeout::at_least(Duration::ZERO).get(), 1);
        assert_eq!(AckTimeout::at_least(Duration::MAX), AckTimeout::MAX);
        assert_eq!(AckTimeout::UNLIMITED.duration(), None);
        assert_eq!(
            MinRnrTimer::default().duration(),
            Duration::from_micros(640)
        );
    }

    #[test]
    fn packet_numbers_differ() {
        let numbers: Vec<_> = (0..8).map(|_| PacketSequenceNumber::random()).collect();
        assert!(numbers.iter().any(|number| *number != numbers[0]));
    }
}
