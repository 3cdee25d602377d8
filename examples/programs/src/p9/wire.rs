//! The bytes of 9P: little-endian numbers, and bytes after their length.

use std::ops::Range;

use rustix::io::Errno;

/// The length of a message's header: its size, its type and its tag.
pub const HEADER: usize = 7;

/// The smallest limit for messages that a client can ask for, as in Linux.
pub const MIN_SIZE: u32 = 4096;

/// The longest name of a file.
const MAX_NAME: usize = 255;

/// A name of a directory's entry: not empty, neither `.` nor `..`, without slash and NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a>(&'a [u8]);

/// Bytes after their length in two bytes: a version, the target of a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "nothing but its bytes")]
pub struct Text<'a>(pub &'a [u8]);

/// Bytes after their length in four bytes: what is written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "nothing but its bytes")]
pub struct Data<'a>(pub &'a [u8]);

/// Identifies a file: its kind, a version that changes with its contents, and a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Qid {
    /// A bit for directories, or for symbolic links.
    pub kind: u8,
    /// Another one when the file has changed.
    pub version: u32,
    /// The same as long as the file exists.
    pub path: u64,
}

/// A field of a message.
pub(super) trait Field<'a>: Sized {
    /// Takes it from the front.
    fn get(reader: &mut Reader<'a>) -> Result<Self, Errno>;
    /// Appends it.
    fn put(&self, writer: &mut Writer<'_>) -> Result<(), Errno>;
}

/// The part of a message that has not been read.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

/// The part of a buffer that has been written.
#[derive(Debug)]
pub(super) struct Writer<'b> {
    buffer: &'b mut [u8],
    len: usize,
}

impl<'a> Name<'a> {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// `ENAMETOOLONG`, or `EINVAL` for one that leads elsewhere.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Errno> {
        match bytes {
            _ if bytes.len() > MAX_NAME => Err(Errno::NAMETOOLONG),
            b"" | b"." | b".." => Err(Errno::INVAL),
            _ if bytes.iter().any(|byte| matches!(byte, 0 | b'/')) => Err(Errno::INVAL),
            _ => Ok(Self(bytes)),
        }
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Nothing is left to be read.
    pub(super) fn end(&self) -> Result<(), Errno> {
        self.0.is_empty().then_some(()).ok_or(Errno::INVAL)
    }

    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*bytes)
    }
}

impl<'b> Writer<'b> {
    /// Writes to the front of this buffer.
    pub(super) const fn new(buffer: &'b mut [u8]) -> Self {
        Self { buffer, len: 0 }
    }

    /// How many bytes have been written.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Begins a message, in place of whatever has been written.
    pub(super) fn begin(&mut self) -> Result<(), Errno> {
        self.len = 0;
        self.bytes(&[0; HEADER])
    }

    /// Completes the header of the message. Returns the length.
    pub(super) fn finish(&mut self, number: u8, tag: u16) -> Result<usize, Errno> {
        let size = u32::try_from(self.len).or(Err(Errno::MSGSIZE))?;
        self.patch(0..4, &size.to_le_bytes())?;
        self.patch(4..5, &[number])?;
        self.patch(5..HEADER, &tag.to_le_bytes())?;
        Ok(self.len)
    }

    pub(super) fn put<'a>(&mut self, field: &impl Field<'a>) -> Result<(), Errno> {
        field.put(self)
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let to = self.room().get_mut(..bytes.len()).ok_or(Errno::MSGSIZE)?;
        to.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// Appends what `fill` puts into the room that is left, at most `max` bytes, after its length in
    /// four bytes.
    pub(super) fn data(
        &mut self,
        max: u32,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let (count, room) = (self.room().split_at_mut_checked(4)).ok_or(Errno::MSGSIZE)?;
        let max = room.len().min(usize::try_from(max).unwrap_or(usize::MAX));
        let filled = fill(&mut room[..max])?.min(max);
        count.copy_from_slice(&u32::try_from(filled).or(Err(Errno::MSGSIZE))?.to_le_bytes());
        self.len += 4 + filled;
        Ok(())
    }

    /// Writes over what was written there.
    pub(super) fn patch(&mut self, at: Range<usize>, bytes: &[u8]) -> Result<(), Errno> {
        let written = self.buffer.get_mut(..self.len);
        let to = written.and_then(|written| written.get_mut(at));
        let to = to.filter(|to| to.len() == bytes.len());
        to.ok_or(Errno::MSGSIZE)?.copy_from_slice(bytes);
        Ok(())
    }

    fn room(&mut self) -> &mut [u8] {
        self.buffer.get_mut(self.len..).unwrap_or_default()
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Field<'_> for $number {
            fn get(reader: &mut Reader<'_>) -> Result<Self, Errno> {
                reader.array().map(Self::from_le_bytes)
            }

            fn put(&self, writer: &mut Writer<'_>) -> Result<(), Errno> {
                writer.bytes(&self.to_le_bytes())
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64);

impl<'a> Field<'a> for Text<'a> {
    fn get(reader: &mut Reader<'a>) -> Result<Self, Errno> {
        let len = u16::get(reader)?;
        reader.bytes(len.into()).map(Self)
    }

    fn put(&self, writer: &mut Writer<'_>) -> Result<(), Errno> {
        u16::try_from(self.0.len())
            .or(Err(Errno::NAMETOOLONG))?
            .put(writer)?;
        writer.bytes(self.0)
    }
}

impl<'a> Field<'a> for Data<'a> {
    fn get(reader: &mut Reader<'a>) -> Result<Self, Errno> {
        let len = u32::get(reader)?;
        let len = usize::try_from(len).or(Err(Errno::INVAL))?;
        reader.bytes(len).map(Self)
    }

    fn put(&self, writer: &mut Writer<'_>) -> Result<(), Errno> {
        u32::try_from(self.0.len())
            .or(Err(Errno::MSGSIZE))?
            .put(writer)?;
        writer.bytes(self.0)
    }
}

impl<'a> Field<'a> for Name<'a> {
    fn get(reader: &mut Reader<'a>) -> Result<Self, Errno> {
        Self::new(Text::get(reader)?.0)
    }

    fn put(&self, writer: &mut Writer<'_>) -> Result<(), Errno> {
        Text(self.0).put(writer)
    }
}

impl<'a> Field<'a> for Qid {
    fn get(reader: &mut Reader<'a>) -> Result<Self, Errno> {
        Ok(Self {
            kind: Field::get(reader)?,
            version: Field::get(reader)?,
            path: Field::get(reader)?,
        })
    }

    fn put(&self, writer: &mut Writer<'_>) -> Result<(), Errno> {
        self.kind.put(writer)?;
        self.version.put(writer)?;
        self.path.put(writer)
    }
}
