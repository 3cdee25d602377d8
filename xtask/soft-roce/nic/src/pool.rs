//! Objects under numbers: a number that was given back rests before it is given out again.

use std::collections::VecDeque;

use crate::error::{Refused, Result, busy, full, none};

/// This many numbers rest before the first of them is given out again, so that a packet that comes late
/// finds no stranger.
const RESTING: usize = 256;

const NONE: Refused = none("there is no such object");
const NO_ROOM: Refused = full("the card has no room for another object of this kind");

/// Objects under numbers from `first` on.
pub(crate) struct Pool<T> {
    first: u32,
    slots: Vec<Option<T>>,
    /// How many other objects use each.
    users: Vec<u32>,
    free: VecDeque<u32>,
}

impl<T> Pool<T> {
    pub(crate) const fn new(first: u32) -> Self {
        Self {
            first,
            slots: Vec::new(),
            users: Vec::new(),
            free: VecDeque::new(),
        }
    }

    /// How many objects there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts an object under a number of its own, unless there are `max` already.
    pub(crate) fn insert(&mut self, max: u32, make: impl FnOnce(u32) -> T) -> Result<u32> {
        if u32::try_from(self.len()).is_ok_and(|len| len >= max) {
            return Err(NO_ROOM);
        }
        let reused = (self.free.len() > RESTING).then(|| self.free.pop_front());
        let number = reused.flatten().or_else(|| {
            let new = u32::try_from(self.slots.len()).ok();
            self.slots.push(None);
            self.users.push(0);
            self.first.checked_add(new?)
        });
        let number = number.ok_or(NO_ROOM)?;
        let index = self.index(number).ok_or(NO_ROOM)?;
        self.slots[index] = Some(make(number));
        Ok(number)
    }

    /// The object under a number, or why that is refused.
    pub(crate) fn find(&self, number: u32) -> Result<&T> {
        self.get(number).ok_or(NONE)
    }

    pub(crate) fn find_mut(&mut self, number: u32) -> Result<&mut T> {
        self.get_mut(number).ok_or(NONE)
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

    /// Removes an object that nothing uses.
    pub(crate) fn destroy(&mut self, number: u32) -> Result<T> {
        if self.users(number) > 0 {
            return Err(busy("another object uses this one"));
        }
        self.remove(number).ok_or(NONE)
    }

    /// How many other objects use this one.
    pub(crate) fn users(&self, number: u32) -> u32 {
        let index = self.index(number);
        index.map_or(0, |index| self.users.get(index).copied().unwrap_or(0))
    }

    /// Changes how many other objects use this one.
    pub(crate) fn count(&mut self, number: u32, change: i32) {
        let index = self.index(number);
        if let Some(users) = index.and_then(|index| self.users.get_mut(index)) {
            *users = users.saturating_add_signed(change);
        }
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.index(number)?;
        let removed = self.slots.get_mut(index)?.take()?;
        self.free.push_back(number);
        Some(removed)
    }

    fn index(&self, number: u32) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{Pool, RESTING};
    use crate::Errno;

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
        assert_eq!(pool.insert(10, |number| number), Ok(first));
    }

    #[test]
    fn there_are_no_more_than_the_limit() {
        let mut pool = Pool::new(0);
        assert_eq!(pool.insert(1, |_| ()), Ok(0));
        let refused = pool.insert(1, |_| ()).unwrap_err();
        assert_eq!(refused.errno, Errno::ENOMEM);
        assert_eq!(pool.len(), 1);
    }
}
