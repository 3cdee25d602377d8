//! Shorthands for documentation and for small types that repeat.

/// A link to a man page, in one format and in a paragraph of its own.
macro_rules! man {
    ($page:literal) => {
        concat!(
            "\n\nSee [`",
            $page,
            "(3)`](https://man7.org/linux/man-pages/man3/",
            $page,
            ".3.html)."
        )
    };
}

/// A C enumeration that may grow: a number with names.
///
/// `Display` prints the constant's name, or the text that stands behind C's name.
macro_rules! open_enum {
    (
        $(#[$attr:meta])*
        $name:ident($repr:ident), $c:literal;
        $($(#[$const_attr:meta])* $constant:ident = $code:tt $c_name:literal $($text:literal)?,)*
    ) => {
        $(#[$attr])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        #[doc(alias = $c)]
        pub struct $name($repr);

        impl $name {
            $(
                $(#[$const_attr])*
                #[doc(alias = $c_name)]
                pub const $constant: Self = Self($crate::codes::macros::code!($code));
            )*

            const NAMES: &'static $crate::codes::names::Names<$repr> = &[$((
                Self::$constant.0,
                [
                    $crate::codes::macros::text!($constant $($text)?),
                    stringify!($constant),
                    $c_name,
                ],
            ),)*];

            /// The value for C's number. A number that this crate has no name for is kept as it is.
            #[must_use]
            pub const fn from_raw(raw: $repr) -> Self {
                Self(raw)
            }

            /// C's number.
            #[must_use]
            pub const fn as_raw(self) -> $repr {
                self.0
            }

            /// C's name; `None` for an unknown value.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$constant => Some($c_name),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::codes::names::print(Self::NAMES, self.0, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::codes::ParseNameError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                const TEXTS: &[&str] = &[$($crate::codes::macros::text!($constant $($text)?),)*];
                let code = $crate::codes::names::parse(Self::NAMES, text);
                code.map(Self)
                    .ok_or($crate::codes::ParseNameError::new(TEXTS))
            }
        }

        $crate::codes::macros::serde_by_name!($name, $repr, |value| (value.name().is_some(), value.0), Self);

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!($c, "({})"), self.0),
                }
            }
        }
    };
}

/// The number of a constant of verbs-sys, or a number.
macro_rules! code {
    ($code:literal) => {
        $code
    };
    ($c_constant:ident) => {
        verbs_sys::$c_constant.0
    };
}

/// Text of a constant: its name, unless it has a text of its own.
macro_rules! text {
    ($constant:ident) => {
        stringify!($constant)
    };
    ($constant:ident $text:literal) => {
        $text
    };
}

/// Flags as text: C's names without prefix, separated by `|`, and a number for those that have none.
macro_rules! flags_as_text {
    ($name:ident($repr:ident), $prefix:literal) => {
        impl $name {
            const NAMES: &'static [&'static str] = {
                const FLAGS: &[bitflags::Flag<$name>] = <$name as bitflags::Flags>::FLAGS;
                // Without the last one, which stands for the flags of newer libraries.
                const COUNT: usize = FLAGS.len() - 1;
                const NAMES: [&str; COUNT] = {
                    let mut names = [""; COUNT];
                    let mut at = 0;
                    while at < COUNT {
                        names[at] = FLAGS[at].name();
                        at += 1;
                    }
                    names
                };
                &NAMES
            };

            /// One flag.
            fn parse_one(text: &str) -> Option<Self> {
                let name = text.trim().to_ascii_uppercase();
                let name = name.strip_prefix($prefix).unwrap_or(&name);
                let bits = || match name.strip_prefix("0X") {
                    Some(hex) => $repr::from_str_radix(hex, 16).ok(),
                    None => name.parse().ok(),
                };
                Self::from_name(name).or_else(|| bits().map(Self::from_bits_retain))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let (mut separator, mut newer) = ("", self.bits());
                for (name, flag) in self.iter_names() {
                    write!(f, "{separator}{name}")?;
                    separator = " | ";
                    newer &= !flag.bits();
                }
                match newer {
                    0 if self.is_empty() => f.write_str("0"),
                    0 => Ok(()),
                    newer => write!(f, "{separator}{newer:#x}"),
                }
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::codes::ParseNameError;

            /// Parses names and numbers, separated by `|`.
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.split('|')
                    .map(Self::parse_one)
                    .collect::<Option<Self>>()
                    .ok_or($crate::codes::ParseNameError::new(Self::NAMES))
            }
        }

        $crate::codes::macros::serde_by_name!(
            $name,
            $repr,
            |flags| (true, flags.bits()),
            Self::from_bits_retain
        );
    };
}

/// Serde of a type that is text for people, if it has a name, and a code for programs.
macro_rules! serde_by_name {
    ($name:ident, $code:ty, |$value:ident| $named_and_code:expr, $from_code:expr) => {
        #[cfg(feature = "serde")]
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $value = self;
                let (named, code): (bool, $code) = $named_and_code;
                $crate::codes::names::serde::serialize(self, named, code, serializer)
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let from_code: fn($code) -> Self = $from_code;
                $crate::codes::names::serde::deserialize(from_code, deserializer)
            }
        }
    };
}

/// Getters for the fields of a C struct in `self.attr`.
macro_rules! getters {
    ($($(#[$attr:meta])* $name:ident: $kind:ident $as:tt,)*) => {$(
        $(#[$attr])*
        #[must_use]
        pub const fn $name(&self) -> $as {
            $crate::codes::macros::getters!(@$kind self.attr.$name)
        }
    )*};
    // A number that C declares signed and that is never negative.
    (@count $field:expr) => {
        if $field < 0 { 0 } else { $field.cast_unsigned() }
    };
    (@plain $field:expr) => {
        $field
    };
    (@to_c count $value:expr) => {
        i32::try_from($value).unwrap_or(i32::MAX)
    };
    (@to_c plain $value:expr) => {
        $value
    };
}

/// [`getters`] of a struct that is serde data: with its fields that are not plain numbers, their
/// types, and how they are written to C's struct.
macro_rules! serde_getters {
    (
        $name:ident, $c:ident;
        { $($typed:ident: $type:ty, |$attr:ident, $value:ident| $write:expr;)* }
        $($(#[$doc:meta])* $field:ident: $kind:ident $as:tt,)*
    ) => {
        impl $name {
            $crate::codes::macros::getters! { $($(#[$doc])* $field: $kind $as,)* }
        }

        #[cfg(feature = "serde")]
        const _: () = {
            #[derive(serde::Serialize, serde::Deserialize)]
            struct Fields {
                $($typed: $type,)*
                $(#[serde(default)] $field: $as,)*
            }

            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    let fields = Fields {
                        $($typed: self.$typed(),)*
                        $($field: self.$field(),)*
                    };
                    fields.serialize(serializer)
                }
            }

            impl<'de> serde::Deserialize<'de> for $name {
                fn deserialize<D: serde::Deserializer<'de>>(
                    deserializer: D,
                ) -> Result<Self, D::Error> {
                    let fields = Fields::deserialize(deserializer)?;
                    let mut attr = $c::default();
                    $({
                        let ($attr, $value) = (&mut attr, fields.$typed);
                        $write;
                    })*
                    $(attr.$field = $crate::codes::macros::getters!(@to_c $kind fields.$field);)*
                    Ok(Self { attr })
                }
            }
        };
    };
}

pub(crate) use {code, flags_as_text, getters, man, open_enum, serde_by_name, serde_getters, text};
