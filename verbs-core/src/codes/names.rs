//! Names of C's codes, to be printed, parsed and serialized.

use std::fmt;
use std::str::FromStr;

/// An error from parsing a name: the text names no value of the type.
///
/// The types that mirror a C enum parse from what their `Display` prints, from C's name with or
/// without its prefix, in upper or lower case, and from C's number.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected one of: {}", names.join(", "))]
pub struct ParseNameError {
    names: &'static [&'static str],
}

impl ParseNameError {
    pub(crate) const fn new(names: &'static [&'static str]) -> Self {
        Self { names }
    }

    /// The names that would have been accepted.
    #[must_use]
    pub const fn names(&self) -> &'static [&'static str] {
        self.names
    }
}

crate::error_debug!(ParseNameError);

/// A code, and its names: the one that is printed, the constant's, C's.
pub(crate) type Names<C> = [(C, [&'static str; 3])];

/// Prints the name of a code, or the number of one that has no name.
pub(crate) fn print<C: Copy + PartialEq + fmt::Display>(
    names: &Names<C>,
    code: C,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match names.iter().find(|(known, _)| *known == code) {
        Some((_, [text, ..])) => f.pad(text),
        None => fmt::Display::fmt(&code, f),
    }
}

/// The code that a text names, or is.
pub(crate) fn parse<C: Copy + FromStr>(names: &Names<C>, text: &str) -> Option<C> {
    let text = text.trim();
    let is_text = |name: &&str| name.eq_ignore_ascii_case(text);
    let named = names.iter().find(|(_, names)| names.iter().any(is_text));
    named.map(|(code, _)| *code).or_else(|| text.parse().ok())
}

/// A type that is text in formats that people read, and a code in others.
#[cfg(feature = "serde")]
pub(crate) mod serde {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// A name or a number, as human-readable formats have.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum TextOrCode<C> {
        Code(C),
        Text(String),
    }

    /// Writes `value` as text, if `named` and if people read the format, else its code.
    pub(crate) fn serialize<T: Display, C: Serialize, S: Serializer>(
        value: &T,
        named: bool,
        code: C,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        if named && serializer.is_human_readable() {
            serializer.collect_str(value)
        } else {
            code.serialize(serializer)
        }
    }

    /// Reads what [`serialize`] wrote.
    pub(crate) fn deserialize<'de, T, C, D>(
        from_code: impl FnOnce(C) -> T,
        deserializer: D,
    ) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        C: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        if !deserializer.is_human_readable() {
            return C::deserialize(deserializer).map(from_code);
        }
        match TextOrCode::deserialize(deserializer)? {
            TextOrCode::Code(code) => Ok(from_code(code)),
            TextOrCode::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::codes::{
        GidType, LinkLayer, LinkSpeed, LinkWidth, PortState, QpState, WcOpcode, WcStatus,
    };
    use crate::device::{EventType, NodeType, TransportType};
    use crate::memory::AccessFlags;

    #[test]
    fn names_print_without_prefix_and_unknown_values_as_numbers() {
        assert_eq!(WcOpcode::RDMA_WRITE.to_string(), "RDMA_WRITE");
        assert_eq!(WcStatus::RNR_RETRY_EXC_ERR.to_string(), "RNR_RETRY_EXC_ERR");
        assert_eq!(QpState::RTS.to_string(), "RTS");
        assert_eq!(PortState::ACTIVE.to_string(), "ACTIVE");
        assert_eq!(GidType::ROCE_V2.to_string(), "RoCE v2");
        assert_eq!(NodeType::CA.to_string(), "CA");
        assert_eq!(EventType::PORT_ERR.to_string(), "PORT_ERR");
        assert_eq!(TransportType::IB.to_string(), "InfiniBand");
        assert_eq!(LinkLayer::ETHERNET.to_string(), "Ethernet");
        assert_eq!(WcOpcode::from_raw(77).to_string(), "77");
        assert_eq!(format!("[{:>8}]", QpState::RTS), "[     RTS]");
    }

    #[test]
    fn printed_text_parses_and_so_do_c_s_names_and_numbers() {
        for text in ["RoCE v2", "roce v2", "ROCE_V2", "IBV_GID_TYPE_ROCE_V2", "2"] {
            assert_eq!(text.parse(), Ok(GidType::ROCE_V2), "{text}");
        }
        assert_eq!("-1".parse(), Ok(NodeType::UNKNOWN));
        assert_eq!("77".parse(), Ok(WcOpcode::from_raw(77)));
        assert_eq!("4X".parse(), Ok(LinkWidth::X4));
        assert_eq!("25.0 Gbps".parse(), Ok(LinkSpeed::EDR));
        assert_eq!("edr".parse(), Ok(LinkSpeed::EDR));
        let error = "RoCE".parse::<GidType>().unwrap_err();
        assert_eq!(error.to_string(), "expected one of: IB, RoCE v1, RoCE v2");
    }

    #[test]
    fn access_flags_print_and_parse() {
        let flags = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        assert_eq!(flags.to_string(), "LOCAL_WRITE | REMOTE_READ");
        assert_eq!(AccessFlags::empty().to_string(), "0");
        let newer = AccessFlags::from_bits_retain(1 << 25) | flags;
        assert_eq!(newer.to_string(), "LOCAL_WRITE | REMOTE_READ | 0x2000000");
        for flags in [flags, newer, AccessFlags::empty()] {
            assert_eq!(flags.to_string().parse(), Ok(flags));
        }
        assert_eq!("ibv_access_local_write|remote_read".parse(), Ok(flags));
        assert!("LOCAL_WRITE | WRITE".parse::<AccessFlags>().is_err());
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_has_names_and_unknown_values_as_numbers() {
        let json = |value: WcOpcode| serde_json::to_string(&value).unwrap();
        assert_eq!(json(WcOpcode::SEND), r#""SEND""#);
        assert_eq!(json(WcOpcode::from_raw(77)), "77");
        for value in [WcOpcode::SEND, WcOpcode::from_raw(77)] {
            assert_eq!(
                serde_json::from_str::<WcOpcode>(&json(value)).unwrap(),
                value
            );
        }
        let error = serde_json::from_str::<GidType>(r#""RoCE""#).unwrap_err();
        assert!(error.to_string().contains("RoCE v2"), "{error}");
        let flags = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        let json = serde_json::to_string(&flags).unwrap();
        assert_eq!(json, r#""LOCAL_WRITE | REMOTE_READ""#);
        assert_eq!(serde_json::from_str::<AccessFlags>(&json).unwrap(), flags);
    }
}
