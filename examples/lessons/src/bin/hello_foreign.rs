//! Memory that another library allocated: of `mmap`, of a page cache, of a GPU.
//!
//! Its registration is the one `unsafe`: it promises who accesses the memory, and takes what keeps it
//! alive. After that, slices of the memory are sent and received into like any other buffer. The cache
//! registers each part of the memory when it is used, and bounds how much is registered.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::iter;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use verbs_channel::verbs_core::memory::RawRegion;
use verbs_channel::verbs_core::{self, AccessFlags, Context, ProtectionDomain};
use verbs_channel::{Channel, RegistrationCache};

/// It stands for the other library's type: freed when it is dropped, and never borrowed as `&[u8]`.
type Foreign = Arc<[AtomicU8]>;

const PART: usize = 64 << 10;
const PARTS: usize = 8;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(5));

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Context::first_active()?.alloc_pd()?;
    let (mut left, mut right) = Channel::loopback(&pd)?;

    let zeros = iter::repeat_with(AtomicU8::default);
    let foreign: Foreign = zeros.take(2 * PARTS * PART).collect();
    // At most four parts are registered: the others are when they are used again.
    let cache = RegistrationCache::builder(&pd, 4 * PART).part_len(PART);
    let cache = cache.build();
    let memory = cache.memory(foreign.len(), {
        let foreign = Arc::clone(&foreign);
        move |pd, part| register(pd, part, &foreign)
    });

    // From each part of the first half to one of the second half.
    for (from, number) in (0..PARTS).map(|part| part * PART).zip(1..) {
        let to = from + PARTS * PART;
        foreign[from].store(number, Ordering::Relaxed);
        let receive = right.start_receive(memory.slice(to..to + PART)?)?;
        let send = left.start_send(memory.slice(from..from + PART)?)?;
        // A slice keeps its part registered until its operation has ended.
        left.wait(send, TIMEOUT)?.ok_or("no send")?.result?;
        right.wait(receive, TIMEOUT)?.ok_or("no message")?.result?;
        assert_eq!(foreign[to].load(Ordering::Relaxed), number);
    }
    println!(
        "{PARTS} messages of foreign memory, {} of its {} parts are registered",
        cache.registered_regions(),
        2 * PARTS
    );
    Ok(())
}

/// Registers a part of the memory, which the region keeps from now on.
#[expect(unsafe_code, reason = "promises that the memory stays")]
fn register(
    pd: &ProtectionDomain,
    part: Range<usize>,
    foreign: &Foreign,
) -> verbs_core::Result<RawRegion<Foreign>> {
    let bytes = &foreign[part];
    let start = NonNull::from(bytes).cast();
    let access = AccessFlags::LOCAL_WRITE;
    // SAFETY: the region keeps the memory, which nothing frees before; it is writable, and all access to it
    // is by atomics, for which all bytes are valid.
    unsafe { pd.register_raw(start, bytes.len(), access, Arc::clone(foreign)) }
}
