//! Copies between a file and blocks, with several commands in flight.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use clap::ValueEnum;
use programs::{Context as _, Failure, Progress, check};
use verbs_channel::verbs_core::AccessFlags;

use crate::queue::Queue;
use crate::wire::{Command, Namespace, READ, WRITE};

/// Blocks of a namespace, and a file.
pub(crate) struct Copy<'f> {
    pub(crate) queue: Queue,
    pub(crate) namespace: (u32, Namespace),
    /// The first block.
    pub(crate) first: u64,
    /// The length of the copy in bytes.
    pub(crate) len: u64,
    /// Bytes of a command: whole blocks.
    pub(crate) piece: usize,
    pub(crate) file: &'f File,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pass {
    /// Write the file to the blocks, the last of which ends with zeros
    Write,
    /// Read the file from the blocks
    Read,
    /// Compare the blocks with the file
    Verify,
}

impl Copy<'_> {
    pub(crate) fn run(&mut self, pass: Pass) -> Result<(), Failure> {
        let mut progress = Progress::new("bytes", self.len);
        let (mut next, mut done) = (0, 0);
        // The place in the file of each slot's piece.
        let mut places = Vec::new();
        loop {
            let idle = self.queue.idle().filter(|_| next < self.len);
            if let Some(slot) = idle {
                places.resize(places.len().max(slot + 1), 0);
                places[slot] = next;
                self.begin(pass, slot, next)?;
                next += self.used(next) as u64;
            } else if let Some((slot, _result)) = self.queue.next()? {
                self.end(pass, slot, places[slot])?;
                done += self.used(places[slot]) as u64;
                progress.at(done);
            } else {
                break;
            }
        }
        if pass == Pass::Write {
            self.queue.run(Command::flush(self.namespace.0), None)?;
        }
        Ok(())
    }

    /// Bytes of the file in the piece at this place.
    fn used(&self, place: u64) -> usize {
        usize::try_from(self.len - place).map_or(self.piece, |left| left.min(self.piece))
    }

    /// Sends the command for the piece at this place of the file.
    fn begin(&mut self, pass: Pass, slot: usize, place: u64) -> Result<(), Failure> {
        let (number, namespace) = self.namespace;
        let (used, block_len) = (self.used(place), namespace.block_len);
        let blocks = used.div_ceil(block_len);
        let mut bytes = vec![0; blocks * block_len];
        if pass != Pass::Read {
            let read = self.file.read_exact_at(&mut bytes[..used], place);
            read.context(|| "reading the file")?;
        }
        if pass == Pass::Verify {
            // Bytes that the target does not write are wrong then.
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
        }
        self.queue.fill(slot, &bytes)?;
        let (opcode, access) = match pass {
            Pass::Write => (WRITE, AccessFlags::REMOTE_READ),
            _ => (READ, AccessFlags::REMOTE_WRITE),
        };
        let first = self.first + place / block_len as u64;
        let command = Command::transfer(opcode, number, first, u16::try_from(blocks)?);
        self.queue
            .submit(slot, command, Some((bytes.len(), access)))
    }

    /// The command of the piece at this place has succeeded.
    fn end(&mut self, pass: Pass, slot: usize, place: u64) -> Result<(), Failure> {
        if pass == Pass::Write {
            return Ok(());
        }
        let mut bytes = vec![0; self.used(place)];
        self.queue.read(slot, &mut bytes)?;
        if pass == Pass::Read {
            let written = self.file.write_all_at(&bytes, place);
            return written.context(|| "writing the file");
        }
        let mut right = vec![0; bytes.len()];
        let read = self.file.read_exact_at(&mut right, place);
        read.context(|| "reading the file")?;
        let checked = check(usize::try_from(place)?, &bytes, &right);
        checked.context(|| "the blocks differ from the file")
    }
}
