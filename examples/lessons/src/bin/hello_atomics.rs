//! A counter in a peer's memory that many add to, and an election: atomic operations.
//!
//! The device that owns the memory adds to 8 bytes, or compares and swaps them, in one step that no
//! other client's operation can come between. Each returns what the 8 bytes were before.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use verbs_channel::verbs_core::{AccessFlags, Context, RemoteMemoryRegion};
use verbs_channel::{Channel, Incoming};

const CLIENTS: u64 = 2;
const ADDITIONS: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Context::first_active()?.alloc_pd()?;
    // Two numbers: the counter, and who has been elected.
    let numbers = pd.reg_shared(vec![0_u64; 2], AccessFlags::REMOTE_ATOMIC)?;
    let (counter, elected) = (numbers.remote().slice(..8)?, numbers.remote().slice(8..)?);

    // Each client has a channel of its own. The owner's ends only have to be there.
    let mut owners = Vec::new();
    let mut clients = Vec::new();
    for id in 1..=CLIENTS {
        let (mut channel, owner) = Channel::loopback(&pd)?;
        channel.set_timeout(Duration::from_secs(10));
        owners.push(owner);
        clients.push(thread::spawn(move || {
            client(id, &mut channel, counter, elected)
        }));
    }
    let mut fetched = Vec::new();
    let mut winners = Vec::new();
    for (client, id) in clients.into_iter().zip(1..) {
        let (values, won) = client.join().map_err(|_panic| "a client panicked")??;
        fetched.extend(values);
        winners.extend(won.then_some(id));
    }

    // No addition was lost: each value was fetched by one client, once.
    fetched.sort_unstable();
    assert!(fetched.into_iter().eq(0..CLIENTS * ADDITIONS));
    let sum = numbers.atomic_u64(0)?.load(Ordering::Acquire);
    assert_eq!(sum, CLIENTS * ADDITIONS);
    // One client was the first, and all agree on which.
    assert_eq!(winners, [numbers.atomic_u64(8)?.load(Ordering::Acquire)]);
    println!("client {} was elected", winners[0]);
    println!("{CLIENTS} clients counted to {sum}");
    Ok(())
}

/// Returns the number it fetched from the counter, and whether it was elected.
fn client(
    id: u64,
    channel: &mut Channel,
    counter: RemoteMemoryRegion,
    elected: RemoteMemoryRegion,
) -> verbs_channel::Result<(Vec<u64>, bool)> {
    // The number's old value is written to a local buffer.
    let mut before = channel.pd().reg_mr(vec![0_u64])?;
    let mut fetched = Vec::new();
    for _ in 0..ADDITIONS {
        let into = before.scatter_element(..)?;
        channel.run(Incoming::fetch_and_add(into, counter, 1))?;
        fetched.push(before[0]);
    }
    // Becomes `id` if it is 0: if no other was elected before.
    let into = before.scatter_element(..)?;
    channel.run(Incoming::compare_and_swap(into, elected, 0, id))?;
    Ok((fetched, before[0] == 0))
}
