//! What decode and prefill exchange: the cache when a rail connects, and then orders on the rail itself.

use std::time::Duration;

use examples::Failure;
use serde::{Deserialize, Serialize};
use verbs_core::RemoteMemoryRegion;

use crate::Options;

/// Decode's cache, and how a rail reaches it: the private data of the rail's connection.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cache {
    pub(crate) pages: usize,
    pub(crate) page_len: usize,
    pub(crate) memory: RemoteMemoryRegion,
}

/// The pages that decode asks a rail for. No order at all is a goodbye.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) generation: u64,
    /// The first page, and the first after them.
    pub(crate) first: usize,
    pub(crate) end: usize,
    pub(crate) immediate: u32,
    /// The immediate comes with each page; else with the last.
    pub(crate) counts_pages: bool,
    pub(crate) timeout: Duration,
}

/// An order is no longer than this.
pub(crate) const ORDER_LEN: usize = 256;

impl Cache {
    /// How a rail reaches it, if its pages are those of this side.
    pub(crate) fn memory_for(&self, options: &Options) -> Result<RemoteMemoryRegion, Failure> {
        if (self.pages, self.page_len) == (options.all_pages(), options.page_len()) {
            return Ok(self.memory);
        }
        Err(Failure::new(
            "decode's cache has another number or length of pages",
        ))
    }
}

impl Order {
    /// How many immediates come with its pages.
    pub(crate) fn immediates(&self) -> u32 {
        let pages = if self.counts_pages {
            self.end - self.first
        } else {
            1
        };
        u32::try_from(pages).unwrap_or(u32::MAX)
    }
}

impl Options {
    /// The number of all pages.
    pub(crate) const fn all_pages(&self) -> usize {
        self.layers * self.pages
    }

    /// The length of a page.
    pub(crate) const fn page_len(&self) -> usize {
        self.page << 10
    }

    /// Where decode puts a page of prefill's: elsewhere in each generation.
    pub(crate) fn place(&self, page: usize, generation: u64) -> usize {
        let all = self.all_pages();
        let turn = usize::try_from(generation).unwrap_or_default() % all;
        (page + turn) % all
    }
}
