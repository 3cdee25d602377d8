//! Shorthands for documentation and for small types that repeat.

/// A link to a man page, in one format.
macro_rules! man {
    ($page:literal) => {
        concat!(
            "See [`",
            $page,
            "(3)`](https://man7.org/linux/man-pages/man3/",
            $page,
            ".3.html)."
        )
    };
}

/// A C enumeration that may grow: a number with names.
macro_rules! open_enum {
    (
        $(#[$attr:meta])*
        $name:ident($repr:ident), $c:literal;
        $($(#[$const_attr:meta])* $constant:ident = $c_constant:ident $c_name:literal,)*
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
                pub const $constant: Self = Self(verbs_sys::$c_constant.0);
            )*

            /// The value for C's number. Numbers from newer libraries are kept.
            #[must_use]
            pub const fn from_raw(raw: $repr) -> Self {
                Self(raw)
            }

            /// C's number.
            #[must_use]
            pub const fn as_raw(self) -> $repr {
                self.0
            }

            /// C's name, where this crate knows it.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$constant => Some($c_name),)*
                    _ => None,
                }
            }
        }

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
            /// The largest value.
            pub const MAX: Self = Self($max);

            #[doc = concat!("Checks a number: 0 to ", stringify!($max), ".")]
            ///
            /// # Errors
            ///
            /// [`Error::OutOfRange`](crate::Error::OutOfRange) for any other number.
            pub const fn new(value: $repr) -> crate::Result<Self> {
                if value <= $max {
                    Ok(Self(value))
                } else {
                    Err(crate::Error::OutOfRange {
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

/// Getters for the fields of a C struct in `self.attr`.
macro_rules! getters {
    ($($(#[$attr:meta])* $name:ident: $kind:ident $as:tt,)*) => {$(
        $(#[$attr])*
        #[must_use]
        pub const fn $name(&self) -> $as {
            getters!(@$kind self.attr.$name)
        }
    )*};
    // A number that C declares signed and that is never negative.
    (@count $field:expr) => {
        if $field < 0 { 0 } else { $field.cast_unsigned() }
    };
    (@plain $field:expr) => {
        $field
    };
}

pub(crate) use {bounded, getters, man, open_enum};
