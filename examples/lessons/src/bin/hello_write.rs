//! A write into the peer's memory, and 32 bits that announce it: one-sided write with immediate.
//!
//! The peer registers memory for others to write to and gives away its address and key. From then
//! on its processor has no part in a write, and is not informed of it. A write with an immediate
//! uses up one of its receives as well, whose completion means that the bytes are there.
#![expect(clippy::print_stdout, reason = "a lesson prints what it did")]

use std::error::Error;
use std::time::Duration;

use verbs_channel::verbs_core::{AccessFlags, Context, RemoteMemoryRegion, ScatterElement};
use verbs_channel::{Channel, Outgoing};

fn main() -> Result<(), Box<dyn Error>> {
    let pd = Context::first_active()?.alloc_pd()?;
    let (mut left, mut right) = Channel::loopback(&pd)?;
    left.set_timeout(Duration::from_secs(5));
    right.set_timeout(Duration::from_secs(5));

    // The peer may write to it at any moment, so it has no `&[u8]`: bytes are copied out and in.
    let board = pd.reg_shared(vec![0_u8; 4096], AccessFlags::REMOTE_WRITE)?;
    // Address, length and key, as bytes that can be sent to the peer by any means.
    let address = board.remote().to_bytes();

    // On the other side.
    let remote = RemoteMemoryRegion::from_bytes(&address)?;

    let note = pd.reg_mr(b"here I was".to_vec())?;
    let notice = right.scope(|scope| {
        // The receive needs no buffer: the bytes go to `board`, and the immediate to the completion.
        let notice = scope.post_receive(ScatterElement::empty())?;
        // A plain write first, which has no completion at the peer.
        left.write(note.gather_element(..4)?, remote.slice(100..)?)?;
        // Writes posted before an immediate, on the same channel, are in place when it arrives.
        let rest = Outgoing::write(note.gather_element(4..)?, remote.slice(104..)?);
        left.run(rest.immediate(100))?;
        Ok::<_, verbs_channel::Error>(notice.spin_poll()?)
    })?;

    // The meaning of the immediate is up to the program: here it is the offset of the note.
    let offset = notice.imm_data().ok_or("no immediate came")?;
    let mut bytes = [0_u8; 10];
    board.read(offset as usize, &mut bytes)?;
    assert_eq!(&bytes, b"here I was");
    println!("a note at {offset}: {:?}", String::from_utf8_lossy(&bytes));
    Ok(())
}
