//! Lines: first in, first out, and each item can leave earlier.

use std::collections::VecDeque;
use std::mem;

/// Items in the order in which they came. Nothing is allocated while there are no more than ever before.
#[derive(Debug)]
pub(crate) struct Line<T> {
    // With their numbers, which ascend.
    items: VecDeque<(u64, T)>,
    last: u64,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            items: VecDeque::new(),
            last: 0,
        }
    }
}

impl<T> Line<T> {
    /// Adds an item at the end. Returns its number.
    pub(crate) fn push(&mut self, item: T) -> u64 {
        self.last += 1;
        self.items.push_back((self.last, item));
        self.last
    }

    /// Takes the item with this number out, if it is in the line.
    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.place(number).ok()?;
        self.items.remove(place).map(|(_, item)| item)
    }

    /// Takes the first item out.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.items.pop_front().map(|(_, item)| item)
    }

    /// Puts an item where the one with this number is, or was. Returns the one that is there.
    pub(crate) fn put(&mut self, number: u64, item: T) -> Option<T> {
        match self.place(number) {
            Ok(place) => Some(mem::replace(&mut self.items.get_mut(place)?.1, item)),
            Err(place) => {
                self.items.insert(place, (number, item));
                None
            }
        }
    }

    fn place(&self, number: u64) -> Result<usize, usize> {
        self.items.binary_search_by_key(&number, |(of, _)| *of)
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.items.front().map(|(_, item)| item)
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn item_that_leaves_from_the_middle_or_the_end_leaves_the_others_in_order() {
        let mut line = Line::default();
        let numbers = ['a', 'b', 'c', 'd'].map(|item| line.push(item));
        assert_eq!(line.remove(numbers[1]), Some('b'));
        assert_eq!(line.remove(numbers[3]), Some('d'));
        assert_eq!(line.remove(numbers[1]), None);
        assert_eq!(line.put(numbers[1], 'x'), None, "at its old place");
        assert_eq!(line.put(numbers[1], 'b'), Some('x'));
        line.push('e');
        assert_eq!((line.len(), line.first()), (4, Some(&'a')));
        let left = line.items.into_iter().map(|(_, item)| item);
        assert_eq!(left.collect::<String>(), "abce");
    }
}
