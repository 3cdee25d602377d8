//! Drops of a test's objects, in every order.

use std::any::Any;

/// Every order of the numbers below `count`.
pub fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let with_last = |order: Vec<usize>| {
        (0..count).map(move |at| {
            let mut order = order.clone();
            order.insert(at, count - 1);
            order
        })
    };
    orders(count - 1).into_iter().flat_map(with_last).collect()
}

/// Drops the objects in one of these orders.
pub fn drop_in<const N: usize>(order: Vec<usize>, objects: [Box<dyn Any>; N]) {
    let mut objects = objects.map(Some);
    for index in order {
        drop(objects[index].take());
    }
}
