//! What decode and prefill exchange over TCP, and what both derive from it.

use std::time::Duration;

use examples::{Failure, Hello, Pattern};
use serde::{Deserialize, Serialize};
use verbs_core::{QueuePairEndpoint, RemoteMemoryRegion};

/// Decode's first message: its cache, and how each rail reaches it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cache {
    pub(crate) layers: usize,
    pub(crate) pages: usize,
    pub(crate) page_len: usize,
    pub(crate) rails: Vec<RemoteMemoryRegion>,
}

/// What decode asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Connect this rail, anew if it was.
    Join(usize, QueuePairEndpoint),
    /// Make the pages of this generation.
    Make(u64),
    /// Write them. The last answer is `Written` or `Quiesced`.
    Write(Vec<Share>, Duration),
    /// The shares of a rail that failed, for another one; none if they are not needed.
    Again(Vec<Share>),
    /// End early.
    Abort,
    Bye,
}

/// What prefill answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Joined(Result<QueuePairEndpoint, String>),
    Made,
    /// This rail failed, and why. Its device is done with prefill's pages.
    RailFailed(usize, String),
    /// All shares have been written.
    Written,
    /// They have not, and no device uses prefill's pages any more: so long after the abort.
    Quiesced(Duration),
}

/// The pages that one rail writes, and what decode counts them by.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) rail: usize,
    /// The first page of prefill's, and how many.
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// How far from there decode's page is: it differs from generation to generation.
    pub(crate) turn: usize,
    pub(crate) immediate: u32,
    /// The immediate comes with each page; else with the last.
    pub(crate) counts_pages: bool,
}

impl Share {
    /// How many immediates arrive when all of it has.
    pub(crate) fn expected(&self) -> u32 {
        let pages = if self.counts_pages {
            self.count
        } else {
            self.count.min(1)
        };
        u32::try_from(pages).unwrap_or(u32::MAX)
    }
}

impl Cache {
    /// Rejects what no decode asks for: numbers of a peer are not to be calculated with unseen.
    pub(crate) fn checked(self) -> Result<Self, Failure> {
        let is_possible = (1..=1024).contains(&self.layers)
            && (1..=65_535).contains(&self.pages)
            && (1..=8192 << 10).contains(&self.page_len);
        is_possible.then_some(self).ok_or_else(out_of_order)
    }

    /// The number of all pages.
    pub(crate) const fn len(&self) -> usize {
        self.layers * self.pages
    }

    /// The bytes of a page of prefill's.
    pub(crate) const fn bytes(&self, generation: u64, page: usize) -> Pattern {
        let (layer, page) = ((page / self.pages) as u64, (page % self.pages) as u64);
        Pattern::new(generation << 26 ^ layer << 16 ^ page)
    }

    /// The page of decode's that it goes to.
    pub(crate) const fn place(&self, page: usize, turn: usize) -> usize {
        (page + turn % self.len()) % self.len()
    }
}

pub(crate) fn hello() -> Hello {
    Hello::new("kv_transfer", 1)
}

pub(crate) fn out_of_order() -> Failure {
    Failure::new("the peer's message is out of order")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(layers: usize, pages: usize, page_len: usize) -> Cache {
        let rails = Vec::new();
        Cache {
            layers,
            pages,
            page_len,
            rails,
        }
    }

    #[test]
    fn cache_that_no_decode_has_is_rejected() {
        for good in [cache(1, 1, 1), cache(1024, 65_535, 8 << 20)] {
            assert!(good.checked().is_ok());
        }
        for bad in [
            cache(0, 1, 1),
            cache(1, 0, 1),
            cache(1, 1, 0),
            cache(usize::MAX, usize::MAX, 1),
        ] {
            assert!(bad.checked().is_err());
        }
    }

    #[test]
    fn each_page_has_a_place_of_its_own_at_every_turn() {
        let cache = cache(2, 3, 1);
        for turn in [0, 1, 7, usize::MAX] {
            let mut places: Vec<_> = (0..6).map(|page| cache.place(page, turn)).collect();
            places.sort_unstable();
            assert_eq!(places, [0, 1, 2, 3, 4, 5]);
        }
    }
}
