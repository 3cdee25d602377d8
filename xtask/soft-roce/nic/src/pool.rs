//! Objects under numbers: a number that was given back rests before it is given out again.

use std::collections::VecDeque;

/// This many numbers rest before the first of them is given out again, so that a packet that comes late
/// finds no stranger.
const RESTING: usize = 256;

/// Objects under numbers from `first` on.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    first: u32,
    slots: Vec<Option<T>>,
    free: VecDeque<u32>,
}

impl<T> Pool<T> {
    pub(crate) const fn new(first: u32) -> Self {
        Self {
            first,
            slots: Vec::new(),
            free: VecDeque::new(),
        }
    }

    /// How many objects there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts an object under a number of its own, unless there are `max` already.
    pub(crate) fn insert(&mut self, max: u32, make: impl FnOnce(u32) -> T) -> Option<u32> {
        if u32::try_from(self.len()).is_ok_and(|len| len >= max) {
            return None;
        }
        let reuse = match self.free.len() > RESTING {
            true => self.free.pop_front(),
            false => None,
        };
        let number = match reuse {
            Some(number) => number,
            None => {
                let number = self
                    .first
                    .checked_add(u32::try_from(self.slots.len()).ok()?)?;
                self.slots.push(None);
                number
            }
        };
        let index = self.index(number)?;
        *self.slots.get_mut(index)? = Some(make(number));
        Some(number)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(self.index(number)?)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let index = self.index(number)?;
        self.slots.get_mut(index)?.as_mut()
    }

    /// The numbers that have objects, in order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        let used = self.slots.iter().zip(self.first..);
        used.filter_map(|(slot, number)| slot.is_some().then_some(number))
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.index(number)?;
        let removed = self.slots.get_mut(index)?.take()?;
        self.free.push_back(number);
        Some(removed)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    fn index(&self, number: u32) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{Pool, RESTING};

    #[test]
    fn a_number_rests_before_it_is_given_out_again() {
        let mut pool = Pool::new(16);
        let first = pool.insert(10, |number| number).unwrap();
        assert_eq!(first, 16);
        assert_eq!(pool.remove(first), Some(16));
        assert_eq!(pool.remove(first), None);
        let mut reused = 0;
        for _ in 0..RESTING {
            let number = pool.insert(10, |number| number).unwrap();
            reused += u32::from(number == first);
            pool.remove(number);
        }
        assert_eq!(reused, 0);
        assert_eq!(pool.insert(10, |number| number), Some(first));
    }

    #[test]
    fn there_are_no_more_than_the_limit() {
        let mut pool = Pool::new(0);
        assert_eq!(pool.insert(1, |_| ()), Some(0));
        assert_eq!(pool.insert(1, |_| ()), None);
        assert_eq!(pool.len(), 1);
    }
}
