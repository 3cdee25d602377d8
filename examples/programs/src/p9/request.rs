//! Requests of a client: the T-messages that Linux sends, to and from bytes.

use rustix::io::Errno;

use super::wire::{Data, Field, Name, Reader, Text, Writer};

/// The most names of a walk.
const MAX_NAMES: usize = 16;

/// The names of a walk, at most 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a>([Option<Name<'a>>; MAX_NAMES]);

/// Defines the requests, by name, type and fields in their order.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident = $number:literal {
        $($field:ident: $type:ty),* $(,)?
    })*) => {
        /// A request, with the names of 9P2000.L.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the fields are those of the protocol")]
        #[expect(clippy::large_enum_variant, reason = "the names of a walk stay on the stack")]
        #[non_exhaustive]
        pub enum Request<'a> {
            $($(#[$doc])* $name { $($field: $type),* },)*
        }

        impl<'a> Request<'a> {
            /// Decodes the fields of a message of this type: all that comes after its header.
            ///
            /// # Errors
            ///
            /// `EOPNOTSUPP` for other types, `EINVAL` for bytes that are no such message, `ENAMETOOLONG`.
            pub fn decode(number: u8, fields: &'a [u8]) -> Result<Self, Errno> {
                let mut reader = Reader::new(fields);
                let request = match number {
                    $($number => Self::$name { $($field: Field::get(&mut reader)?),* },)*
                    _ => return Err(Errno::OPNOTSUPP),
                };
                reader.end()?;
                Ok(request)
            }

            /// Its number in the header.
            #[must_use]
            pub const fn number(&self) -> u8 {
                match self {
                    $(Self::$name { .. } => $number,)*
                }
            }

            fn put(&self, writer: &mut Writer<'_>) -> Result<(), Errno> {
                match self {
                    $(Self::$name { $($field),* } => {
                        $($field.put(writer)?;)*
                        Ok(())
                    })*
                }
            }
        }
    };
}

requests! {
    /// Asks about the file system.
    Statfs = 8 { fid: u32 }
    /// Opens what a fid stands for.
    Lopen = 12 { fid: u32, flags: u32 }
    /// Creates and opens a file. The fid is that of its directory, and becomes the file's.
    Lcreate = 14 { fid: u32, name: Name<'a>, flags: u32, mode: u32, gid: u32 }
    /// Creates a symbolic link.
    Symlink = 16 { dfid: u32, name: Name<'a>, target: Text<'a>, gid: u32 }
    /// Creates a special file.
    Mknod = 18 { dfid: u32, name: Name<'a>, mode: u32, major: u32, minor: u32, gid: u32 }
    /// Reads the target of a symbolic link.
    Readlink = 22 { fid: u32 }
    /// Asks for attributes.
    Getattr = 24 { fid: u32, mask: u64 }
    /// Changes attributes.
    Setattr = 26 {
        fid: u32,
        valid: u32,
        mode: u32,
        uid: u32,
        gid: u32,
        size: u64,
        atime_sec: u64,
        atime_nsec: u64,
        mtime_sec: u64,
        mtime_nsec: u64,
    }
    /// Reads entries of a directory.
    Readdir = 40 { fid: u32, offset: u64, count: u32 }
    /// Makes a file's contents permanent.
    Fsync = 50 { fid: u32, datasync: u32 }
    /// Creates a further name of a file.
    Link = 70 { dfid: u32, fid: u32, name: Name<'a> }
    /// Creates a directory.
    Mkdir = 72 { dfid: u32, name: Name<'a>, mode: u32, gid: u32 }
    /// Renames or moves.
    Renameat = 74 { old_dfid: u32, old_name: Name<'a>, new_dfid: u32, new_name: Name<'a> }
    /// Removes a name.
    Unlinkat = 76 { dfid: u32, name: Name<'a>, flags: u32 }
    /// Begins a session, with a limit for messages.
    Version = 100 { msize: u32, version: Text<'a> }
    /// Makes a fid stand for the root.
    Attach = 104 { fid: u32, afid: u32, uname: Text<'a>, aname: Text<'a>, n_uname: u32 }
    /// Gives up on an earlier request.
    Flush = 108 { old_tag: u16 }
    /// Makes a fid stand for what is found by these names, one after the other.
    Walk = 110 { fid: u32, new_fid: u32, names: Names<'a> }
    /// Reads from a file.
    Read = 116 { fid: u32, offset: u64, count: u32 }
    /// Writes to a file.
    Write = 118 { fid: u32, offset: u64, data: Data<'a> }
    /// Ends the use of a fid.
    Clunk = 120 { fid: u32 }
    /// Removes a file, and ends the use of its fid in any case.
    Remove = 122 { fid: u32 }
}

impl Request<'_> {
    /// Encodes it as a message with this tag. Returns the message's length.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE`: the buffer is too short. `ENAMETOOLONG`: a field is too long.
    pub fn encode(&self, tag: u16, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut writer = Writer::new(buffer);
        writer.begin()?;
        self.put(&mut writer)?;
        writer.finish(self.number(), tag)
    }
}

impl<'a> Names<'a> {
    /// These names.
    ///
    /// # Errors
    ///
    /// `EINVAL`: they are more than 16.
    pub fn new(from: &[Name<'a>]) -> Result<Self, Errno> {
        let mut names = [None; MAX_NAMES];
        let to = names.get_mut(..from.len()).ok_or(Errno::INVAL)?;
        for (to, from) in to.iter_mut().zip(from) {
            *to = Some(*from);
        }
        Ok(Self(names))
    }

    /// The names, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Name<'a>> {
        self.0.into_iter().flatten()
    }
}

impl<'a> Field<'a> for Names<'a> {
    fn get(reader: &mut Reader<'a>) -> Result<Self, Errno> {
        let mut names = [None; MAX_NAMES];
        let len = usize::from(u16::get(reader)?);
        for name in names.get_mut(..len).ok_or(Errno::INVAL)? {
            *name = Some(Name::get(reader)?);
        }
        Ok(Self(names))
    }

    fn put(&self, writer: &mut Writer<'_>) -> Result<(), Errno> {
        let len = self.iter().count();
        u16::try_from(len).or(Err(Errno::INVAL))?.put(writer)?;
        self.iter().try_for_each(|name| name.put(writer))
    }
}
