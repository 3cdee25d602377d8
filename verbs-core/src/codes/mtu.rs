//! Path MTUs: how much of a message goes into one packet.

use std::fmt;
use std::str::FromStr;

use super::names::ParseNameError;

/// A path MTU: how many bytes of a message travel in one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[doc(alias = "ibv_mtu")]
#[doc(alias = "path_mtu")]
pub enum MaximumTransferUnit {
    /// 256 bytes.
    #[doc(alias = "IBV_MTU_256")]
    Mtu256 = 1,
    /// 512 bytes.
    #[doc(alias = "IBV_MTU_512")]
    Mtu512 = 2,
    /// 1024 bytes.
    #[doc(alias = "IBV_MTU_1024")]
    Mtu1024 = 3,
    /// 2048 bytes.
    #[doc(alias = "IBV_MTU_2048")]
    Mtu2048 = 4,
    /// 4096 bytes.
    #[doc(alias = "IBV_MTU_4096")]
    Mtu4096 = 5,
}

impl MaximumTransferUnit {
    /// The value for C's code, 1 to 5; `None` for any other number.
    #[must_use]
    pub const fn from_raw(code: u32) -> Option<Self> {
        match code {
            1 => Some(Self::Mtu256),
            2 => Some(Self::Mtu512),
            3 => Some(Self::Mtu1024),
            4 => Some(Self::Mtu2048),
            5 => Some(Self::Mtu4096),
            _ => None,
        }
    }

    /// C's code.
    #[must_use]
    pub const fn as_raw(self) -> u32 {
        match self {
            Self::Mtu256 => 1,
            Self::Mtu512 => 2,
            Self::Mtu1024 => 3,
            Self::Mtu2048 => 4,
            Self::Mtu4096 => 5,
        }
    }

    /// The value for a number of bytes; `None` if it is not one of those above.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 => Some(Self::Mtu256),
            512 => Some(Self::Mtu512),
            1024 => Some(Self::Mtu1024),
            2048 => Some(Self::Mtu2048),
            4096 => Some(Self::Mtu4096),
            _ => None,
        }
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self.as_raw()
    }
}

impl fmt::Display for MaximumTransferUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.bytes(), f)
    }
}

impl FromStr for MaximumTransferUnit {
    type Err = ParseNameError;

    /// Parses a number of bytes.
    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        const BYTES: &[&str] = &["256", "512", "1024", "2048", "4096"];
        let mtu = text.trim().parse().ok().and_then(Self::from_bytes);
        mtu.ok_or(ParseNameError::new(BYTES))
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for MaximumTransferUnit {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.bytes())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for MaximumTransferUnit {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = u32::deserialize(deserializer)?;
        let mtu = Self::from_bytes(bytes);
        mtu.ok_or_else(|| serde::de::Error::custom(format_args!("no path MTU has {bytes} bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_are_those_of_c() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            let mtu = MaximumTransferUnit::from_raw(code).unwrap();
            assert_eq!((mtu.as_raw(), mtu.bytes()), (code, bytes));
            assert_eq!(MaximumTransferUnit::from_bytes(bytes), Some(mtu));
        }
        assert_eq!(MaximumTransferUnit::from_raw(0), None);
        assert_eq!(MaximumTransferUnit::from_raw(6), None);
        assert_eq!(verbs_sys::IBV_MTU_4096.0, 5);
    }

    #[test]
    fn a_number_of_bytes_parses() {
        assert_eq!("1024".parse(), Ok(MaximumTransferUnit::Mtu1024));
        let error = "1500".parse::<MaximumTransferUnit>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "expected one of: 256, 512, 1024, 2048, 4096"
        );
    }
}
