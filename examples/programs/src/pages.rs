//! Pages that a device writes to, each with a canary behind it: every damaged byte is counted.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use verbs_channel::SharedMemory;
use verbs_channel::buffer::SharedSlice;
use verbs_core::memory::HugePages;
use verbs_core::{AccessFlags, ProtectionDomain, RemoteMemoryRegion, SharedRegion};

use crate::{Context as _, Failure, Pattern};

/// The length of a huge page.
const HUGE: usize = 2 << 20;
const WORD: usize = size_of::<u64>();
/// Bytes after each page that nothing writes to.
const CANARY: usize = 64;
const CANARY_WORD: u64 = 0xc5c5_c5c5_c5c5_c5c5;
const FREE_WORD: u64 = 0x3a3a_3a3a_3a3a_3a3a;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(clippy::exhaustive_enums, reason = "the values of an option")]
pub enum MemoryKind {
    /// Ordinary memory
    Heap,
    /// Huge pages of 2 MiB, which `vm.nr_hugepages` reserves
    Huge,
}

/// Pages of the same length, with a canary after each, which are filled at first.
///
/// A page that was copied to the place of another is checked against what it is a copy of. Pages of
/// different generations differ in their first words.
#[derive(Debug)]
pub struct Pages {
    memory: SharedMemory,
    page_len: usize,
}

impl Pages {
    /// Makes and fills `count` pages of `page_len` bytes each, registered in each of these domains.
    ///
    /// # Errors
    ///
    /// There is not enough memory of this kind, or it cannot be registered.
    ///
    /// # Panics
    ///
    /// If the length is not a multiple of 8.
    pub fn new(
        kind: MemoryKind,
        (count, page_len): (usize, usize),
        domains: &[ProtectionDomain],
        access: AccessFlags,
    ) -> Result<Self, Failure> {
        assert!(page_len.is_multiple_of(WORD), "a page has whole words");
        let len = count.saturating_mul(page_len + CANARY);
        let memory = match kind {
            MemoryKind::Heap => {
                let mut words: Vec<u64> = Vec::new();
                let made = words.try_reserve_exact(len / WORD);
                made.context(|| format!("no {} MiB of memory", len >> 20))?;
                words.resize(len / WORD, 0);
                SharedMemory::register(domains, words, access)?
            }
            MemoryKind::Huge => {
                let count = len.div_ceil(HUGE);
                let pages = HugePages::with_page_size(len, HUGE)
                    .context(|| format!("no {count} huge pages: vm.nr_hugepages reserves them"))?;
                SharedMemory::register(domains, pages, access)?
            }
        };
        let pages = Self { memory, page_len };
        for page in 0..count {
            let (seed, (words, canary)) = (seed(page), pages.words(page));
            for (word, at) in words.zip(0..) {
                word.store(right(seed, 0, at), Ordering::Relaxed);
            }
            for word in canary {
                word.store(CANARY_WORD, Ordering::Relaxed);
            }
        }
        Ok(pages)
    }

    /// The memory of a page, to be posted.
    ///
    /// # Errors
    ///
    /// There is no such page.
    pub fn slice(&self, page: usize) -> Result<SharedSlice, Failure> {
        Ok(self.memory.slice(self.bounds(page))?)
    }

    /// The memory that they are in, for peers.
    ///
    /// # Errors
    ///
    /// It is not registered in this domain.
    pub fn remote(&self, pd: &ProtectionDomain) -> Result<RemoteMemoryRegion, Failure> {
        Ok(self.memory.remote(pd)?)
    }

    /// Where in the memory a page begins and ends, in bytes.
    #[must_use]
    pub const fn bounds(&self, page: usize) -> Range<usize> {
        let start = page * (self.page_len + CANARY);
        start..start + self.page_len
    }

    /// Makes a page of this generation.
    pub fn stamp(&self, page: usize, generation: u64) {
        if let Some(word) = self.words(page).0.next() {
            word.store(right(seed(page), generation, 0), Ordering::Relaxed);
        }
    }

    /// How many bytes at this place differ from those of `page`.
    #[must_use]
    pub fn wrong(&self, place: usize, page: usize, generation: u64) -> u32 {
        let (words, _canary) = self.words(place);
        let (seed, words) = (seed(page), words.zip(0..));
        let differ = words.map(|(word, at)| differing(word, right(seed, generation, at)));
        differ.sum()
    }

    /// Marks a place as free: nothing writes there from now on.
    pub fn free(&self, place: usize) {
        for word in self.words(place).0 {
            word.store(FREE_WORD, Ordering::Relaxed);
        }
    }

    /// How many bytes of this place have been written since it was [freed](Self::free).
    #[must_use]
    pub fn written(&self, place: usize) -> u32 {
        let (words, _canary) = self.words(place);
        words.map(|word| differing(word, FREE_WORD)).sum()
    }

    /// How many bytes of the canary after this place are damaged.
    #[must_use]
    pub fn damaged(&self, place: usize) -> u32 {
        let (_page, canary) = self.words(place);
        let differ = canary.map(|word| differing(word, CANARY_WORD));
        differ.sum()
    }

    /// The words of a page, and those of its canary.
    fn words(
        &self,
        page: usize,
    ) -> (
        impl Iterator<Item = &AtomicU64>,
        impl Iterator<Item = &AtomicU64>,
    ) {
        let Range { start, end } = self.bounds(page);
        (self.range(start..end), self.range(end..end + CANARY))
    }

    fn range(&self, bytes: Range<usize>) -> impl Iterator<Item = &AtomicU64> {
        let heap = self.memory.region::<SharedRegion<Vec<u64>>>();
        let huge = self.memory.region::<SharedRegion<HugePages>>();
        let word = move |at| match (heap, huge) {
            (Some(region), _) => region.atomic_u64(at),
            (None, Some(region)) => region.atomic_u64(at),
            (None, None) => unreachable!("it is one of these"),
        };
        let word = move |at| word(at).expect("the caller counts the pages");
        bytes.step_by(WORD).map(word)
    }
}

/// The right word of a page with this seed: only the first differs from other generations.
const fn right(seed: u64, generation: u64, at: u64) -> u64 {
    let word = seed.wrapping_add(at);
    (if at == 0 { word ^ generation } else { word }).to_le()
}

/// How many bytes of a word are not right.
fn differing(word: &AtomicU64, right: u64) -> u32 {
    match word.load(Ordering::Relaxed) ^ right {
        // Nearly always: builds without optimisation are slow enough.
        0 => 0,
        bits => bits
            .to_ne_bytes()
            .map(|byte| u32::from(byte != 0))
            .iter()
            .sum(),
    }
}

/// A number of which the words of a page are made.
const fn seed(page: usize) -> u64 {
    Pattern::new(0).word(page as u64)
}

#[cfg(test)]
mod tests {
    use soft_verbs as _;
    use verbs_core::Context;

    use super::*;

    fn pages(size: (usize, usize)) -> Pages {
        let pd = Context::first_active().unwrap().alloc_pd().unwrap();
        Pages::new(MemoryKind::Heap, size, &[pd], AccessFlags::empty()).unwrap()
    }

    /// Changes a byte, counted from the start of the memory.
    fn damage(pages: &Pages, at: usize) {
        let word = pages.range(at / WORD * WORD..at + 1).next().unwrap();
        word.fetch_xor(0x40 << (at % WORD * 8), Ordering::Relaxed);
    }

    #[test]
    fn every_damaged_byte_is_counted_once_where_it_is() {
        let pages = pages((3, 64));
        for page in 0..3 {
            assert_eq!((pages.wrong(page, page, 0), pages.damaged(page)), (0, 0));
        }
        let Range { start, end } = pages.bounds(1);
        assert_eq!(end - start, 64);
        for at in [start, start + 1, end - 1] {
            damage(&pages, at);
        }
        damage(&pages, end);
        damage(&pages, pages.bounds(2).start - 1);
        assert_eq!((pages.wrong(1, 1, 0), pages.damaged(1)), (3, 2));
        for other in [0, 2] {
            assert_eq!((pages.wrong(other, other, 0), pages.damaged(other)), (0, 0));
        }
    }

    #[test]
    fn bytes_written_to_a_free_page_are_counted() {
        let pages = pages((2, 64));
        pages.free(1);
        assert_eq!((pages.written(1), pages.wrong(0, 0, 0)), (0, 0));
        let Range { start, end } = pages.bounds(1);
        for at in [start, end - 1, end] {
            damage(&pages, at);
        }
        assert_eq!((pages.written(1), pages.damaged(1)), (2, 1));
    }

    #[test]
    fn pages_and_their_generations_differ() {
        let pages = pages((2, 4096));
        assert!(pages.wrong(0, 1, 0) > 512);
        pages.stamp(0, 3);
        assert_eq!((pages.wrong(0, 0, 3), pages.damaged(0)), (0, 0));
        assert_eq!(pages.wrong(0, 0, 4), 1);
    }
}
