//! A stream of blocks through a few buffers that are used again and again: loans.
//!
//! Buffers posted in a scope are borrowed until the scope ends. A loan comes back earlier: when its
//! operation has completed, its element is handed back, to be filled and lent again. Here 100
//! blocks are written to the peer through two elements: one is in flight while the other is filled.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::collections::VecDeque;
use std::error::Error;
use std::time::Duration;

use verbs_channel::verbs_core::{AccessFlags, Context};
use verbs_channel::{Channel, Outgoing};

const BLOCKS: u8 = 100;
const LEN: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Context::first_active()?.alloc_pd()?;
    let (mut left, _right) = Channel::loopback(&pd)?;
    left.set_timeout(Duration::from_secs(5));

    // Where the blocks go: memory of the peer's that this side may write to.
    let target = pd.reg_shared(vec![0_u8; LEN * 100], AccessFlags::REMOTE_WRITE)?;
    let window = target.remote();
    let mut outbox = pd.reg_mr(vec![0_u8; 2 * LEN])?;

    left.scope(|scope| {
        let mut blocks = 0..BLOCKS;
        let mut loans = VecDeque::new();
        // Lends both elements, each with a block.
        for (mut element, block) in outbox
            .scatter_element(..)?
            .chunks_mut(LEN)?
            .zip(&mut blocks)
        {
            element.fill(block);
            let place = window.slice(u64::from(block) * LEN as u64..)?;
            loans.push_back(scope.lend(Outgoing::write(element, place))?);
        }
        while let Some(loan) = loans.pop_front() {
            // Waits for the older loan. Its element can be filled now, while the other is in flight.
            let (result, mut element) = loan.spin_poll();
            result?;
            if let Some(block) = blocks.next() {
                element.fill(block);
                let place = window.slice(u64::from(block) * LEN as u64..)?;
                loans.push_back(scope.lend(Outgoing::write(element, place))?);
            }
        }
        Ok::<_, verbs_channel::Error>(())
    })?;

    let mut bytes = [0_u8; LEN];
    for block in 0..BLOCKS {
        target.read(usize::from(block) * LEN, &mut bytes)?;
        assert_eq!(bytes, [block; LEN]);
    }
    println!("{BLOCKS} blocks of {LEN} bytes were written through two elements");
    Ok(())
}
