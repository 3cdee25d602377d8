//! Loans return their elements once, when they end.

use verbs_channel::verbs_core::MemoryRegion;
use verbs_channel::{Channel, Incoming};

/// Lent elements are not read before the loan ends.
fn lent_bytes_read_before_they_are_back(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let element = region.scatter_element(..).unwrap();
    let ended = channel.scope(|scope| {
        let loan = scope.lend(Incoming::receive(element)).unwrap();
        println!("{}", element[0]);
        let (_result, element) = loan.spin_poll();
        println!("{}", element[0]);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

/// A loan returns its elements once.
fn loan_ends_twice(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let loan = scope
            .lend(Incoming::receive(region.scatter_element(..).unwrap()))
            .unwrap();
        let (_result, first) = loan.spin_poll();
        let (_result, second) = loan.spin_poll();
        drop((first, second));
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

/// The list of a loan is not accessible before the loan ends.
fn list_of_a_loan_taken_out(channel: &mut Channel, mut region: MemoryRegion<Vec<u8>>) {
    let ended = channel.scope(|scope| {
        let loan = scope
            .lend(Incoming::receive(region.scatter_element(..).unwrap()))
            .unwrap();
        drop(loan.list);
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
