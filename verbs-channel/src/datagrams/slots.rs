//! Operations in flight, each in a slot found by its number and its generation.

/// Operations of one queue.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    kind: u64,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    held: Option<T>,
}

/// Where the generation begins in a `wr_id`, and the kind in the number.
const GENERATION: u32 = 32;
const KIND: u32 = 31;

impl<T> Slots<T> {
    /// `kind` is 0 or 1: the numbers of two queues of different kinds differ.
    pub(super) fn new(capacity: u32, kind: u64) -> Self {
        let slot = || Slot {
            generation: 0,
            held: None,
        };
        Self {
            slots: (0..capacity).map(|_| slot()).collect(),
            free: (0..capacity).rev().collect(),
            kind: kind << KIND,
        }
    }

    /// Puts it into a free slot; `Err` if there is none.
    pub(super) fn put(&mut self, held: T) -> Result<u64, T> {
        let Some(index) = self.free.pop() else {
            return Err(held);
        };
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return Err(held);
        };
        slot.held = Some(held);
        Ok(u64::from(slot.generation) << GENERATION | self.kind | u64::from(index))
    }

    pub(super) fn get(&self, wr_id: u64) -> Option<&T> {
        let index = self.index(wr_id)?;
        self.slots.get(index)?.held.as_ref()
    }

    /// Takes it out; `None` if nothing of this number is there.
    pub(super) fn take(&mut self, wr_id: u64) -> Option<T> {
        self.take_at(self.index(wr_id)?)
    }

    fn take_at(&mut self, index: usize) -> Option<T> {
        let slot = self.slots.get_mut(index)?;
        let held = slot.held.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(u32::try_from(index).ok()?);
        Some(held)
    }

    /// Takes all out.
    pub(super) fn take_all(&mut self) -> Vec<T> {
        let all = 0..self.slots.len();
        all.filter_map(|index| self.take_at(index)).collect()
    }

    /// The place of an operation among what [`take_all`](Self::take_all) returns.
    pub(super) fn position(&self, wr_id: u64) -> Option<usize> {
        let index = self.index(wr_id)?;
        let before = self.slots.get(..index)?.iter();
        Some(before.filter(|slot| slot.held.is_some()).count())
    }

    pub(super) const fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// How many are free.
    pub(super) const fn room(&self) -> usize {
        self.free.len()
    }

    pub(super) const fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub(super) const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The place of an operation that is there now.
    fn index(&self, wr_id: u64) -> Option<usize> {
        let low = wr_id & u64::from(u32::MAX);
        let index = usize::try_from(low.checked_sub(self.kind)?).ok()?;
        let slot = self.slots.get(index)?;
        (u64::from(slot.generation) == wr_id >> GENERATION).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_number_finds_nothing() {
        let mut slots = Slots::new(2, 1);
        let first = slots.put('a').unwrap();
        let second = slots.put('b').unwrap();
        assert_eq!(slots.put('c'), Err('c'));
        assert_eq!(slots.take(first), Some('a'));
        assert_eq!(slots.take(first), None);
        let again = slots.put('d').unwrap();
        assert_ne!(again, first);
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.len(), 2);
        assert_eq!(slots.take(second), Some('b'));
        assert_eq!(slots.position(again), Some(0));
        assert_eq!(slots.take_all(), ['d']);
        assert_eq!(slots.room(), 2);
        assert_eq!(slots.take(again), None);
        assert_eq!(slots.len(), 0);
    }

    #[test]
    fn numbers_of_the_two_queues_differ() {
        let (mut sends, mut receives) = (Slots::new(3, 0), Slots::new(3, 1));
        let (send, receive) = (sends.put(1).unwrap(), receives.put(2).unwrap());
        assert_ne!(send, receive);
        assert_eq!((sends.take(receive), receives.take(send)), (None, None));
        for wr_id in [u64::MAX, 1 << 31 | 3, 3, 1 << 32] {
            assert_eq!((sends.take(wr_id), receives.take(wr_id)), (None, None));
        }
    }
}
