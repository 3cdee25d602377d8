//! Registered ranges of several memories: which one contains a range, and which was used last.

use std::ops::Range;

/// Values for ranges of several memories. Ranges may overlap.
pub(super) struct Regions<T> {
    // Sorted by memory and start.
    sorted: Vec<Region<T>>,
    /// How often a value was inserted or found.
    uses: u64,
}

struct Region<T> {
    memory: u64,
    range: Range<usize>,
    last_use: u64,
    value: T,
}

impl<T> Regions<T> {
    pub(super) const fn new() -> Self {
        Self {
            sorted: Vec::new(),
            uses: 0,
        }
    }

    /// The value of a range that contains this one, and where that range starts.
    pub(super) fn find(&mut self, memory: u64, range: &Range<usize>) -> Option<(&T, usize)> {
        let behind = self.place(memory, range.start);
        let before = self.sorted[..behind].iter_mut().rev();
        // The nearest start, unless that range is short: then one of those further away may be longer.
        let region = before
            .take_while(|region| region.memory == memory)
            .find(|region| region.range.end >= range.end)?;
        self.uses += 1;
        region.last_use = self.uses;
        Some((&region.value, region.range.start))
    }

    /// Adds a range, which is used now.
    pub(super) fn insert(&mut self, memory: u64, range: Range<usize>, value: T) {
        self.uses += 1;
        let region = Region {
            memory,
            last_use: self.uses,
            value,
            range,
        };
        let place = self.place(memory, region.range.start);
        self.sorted.insert(place, region);
    }

    /// Removes the range of those with such a value that has not been used for longest.
    pub(super) fn remove_oldest(
        &mut self,
        is_removable: impl Fn(&T) -> bool,
    ) -> Option<(Range<usize>, T)> {
        let regions = self.sorted.iter().enumerate();
        let oldest = regions
            .filter(|(_, region)| is_removable(&region.value))
            .min_by_key(|(_, region)| region.last_use);
        let (place, _) = oldest?;
        let region = self.sorted.remove(place);
        Some((region.range, region.value))
    }

    /// How many bytes and ranges there are with such a value.
    pub(super) fn count(&self, is_counted: impl Fn(&T) -> bool) -> (usize, usize) {
        let regions = self.sorted.iter();
        let counted = regions.filter(|region| is_counted(&region.value));
        counted.fold((0, 0), |(bytes, regions), region| {
            (bytes + region.range.len(), regions + 1)
        })
    }

    /// Removes all ranges of a memory.
    pub(super) fn remove_all(&mut self, memory: u64) -> Vec<T> {
        let removed = self.sorted.extract_if(.., |region| region.memory == memory);
        removed.map(|region| region.value).collect()
    }

    /// The place behind all ranges of the memory that start here or before.
    fn place(&self, memory: u64, start: usize) -> usize {
        self.sorted
            .partition_point(|region| (region.memory, region.range.start) <= (memory, start))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Find(u64, Range<usize>),
        Insert(u64, Range<usize>),
        RemoveOldest { odd: bool },
        RemoveAll(u64),
    }

    fn ranges() -> impl Strategy<Value = (u64, Range<usize>)> {
        (0..3_u64, 0..16_usize, 0..16_usize)
            .prop_map(|(memory, start, len)| (memory, start..start + len))
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => ranges().prop_map(|(memory, range)| Step::Find(memory, range)),
            4 => ranges().prop_map(|(memory, range)| Step::Insert(memory, range)),
            2 => any::<bool>().prop_map(|odd| Step::RemoveOldest { odd }),
            1 => (0..3_u64).prop_map(Step::RemoveAll),
        ];
        prop::collection::vec(step, 0..64)
    }

    proptest! {
        /// As a list in the order of the last uses, which is searched from end to end.
        #[test]
        fn ranges_are_found_and_removed_as_in_a_plain_list(steps in steps()) {
            let mut regions = Regions::new();
            let mut list: Vec<(u64, Range<usize>, u32)> = Vec::new();
            for (step, value) in steps.into_iter().zip(0_u32..) {
                match step {
                    Step::Insert(memory, range) => {
                        regions.insert(memory, range.clone(), value);
                        list.push((memory, range, value));
                    }
                    Step::Find(memory, range) => {
                        let contains = |(at, have, _): &(u64, Range<usize>, u32)| {
                            *at == memory && have.start <= range.start && range.end <= have.end
                        };
                        let found = regions.find(memory, &range);
                        let found = found.map(|(value, start)| (*value, start));
                        prop_assert_eq!(found.is_some(), list.iter().any(contains));
                        if let Some((value, start)) = found {
                            let place = list.iter().position(|(_, _, at)| *at == value).unwrap();
                            let used = list.remove(place);
                            prop_assert!(contains(&used) && used.1.start == start);
                            list.push(used);
                        }
                    }
                    Step::RemoveOldest { odd } => {
                        let is_removable = |value: &u32| (value % 2 == 1) == odd;
                        let all = list.iter().filter(|(_, _, value)| is_removable(value));
                        let bytes = all.clone().map(|(_, range, _)| range.len()).sum();
                        prop_assert_eq!(regions.count(is_removable), (bytes, all.count()));
                        let removed = regions.remove_oldest(is_removable);
                        let place = list.iter().position(|(_, _, value)| is_removable(value));
                        let expected = place.map(|place| list.remove(place));
                        prop_assert_eq!(removed, expected.map(|(_, range, value)| (range, value)));
                    }
                    Step::RemoveAll(memory) => {
                        let mut removed = regions.remove_all(memory);
                        removed.sort_unstable();
                        let (all, left): (Vec<_>, Vec<_>) =
                            list.into_iter().partition(|(at, ..)| *at == memory);
                        list = left;
                        let mut all: Vec<_> = all.into_iter().map(|(.., value)| value).collect();
                        all.sort_unstable();
                        prop_assert_eq!(removed, all);
                    }
                }
            }
        }
    }
}
