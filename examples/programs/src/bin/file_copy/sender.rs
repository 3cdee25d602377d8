//! The sending side: reads blocks into a window of loans, and writes each to its place.
//!
//! The file is read into registered memory, which is lent to the device until it has written it, comes
//! back, and is read into again: nothing is copied on the way.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::Instant;

use programs::{Context as _, Failure, Frames, Measured, Peer, say};
use verbs_channel::{Incoming, Outgoing, ScopeError};

use crate::digest::Digest;
use crate::protocol::{Blocks, Message, Offer, hello, out_of_order, receive_message};
use crate::watch::Watch;
use crate::{Options, bar};

/// The length of a receive for a credit, as at the receiver.
const MARK: usize = 8;

/// Sends one file.
pub(crate) fn send(options: &Options, host: &str, path: &Path) -> Result<(), Failure> {
    let common = &options.common;
    let doing = || format!("cannot read {}", path.display());
    let mut file = File::open(path).context(doing)?;
    let metadata = file.metadata().context(doing)?;
    if !metadata.is_file() {
        return Err(Failure::new("it is no regular file")).context(doing);
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Failure::new("its name is no UTF-8"));
    let offer = Offer {
        name: name.context(doing)?.to_owned(),
        size: metadata.len(),
        resume: options.resume,
        block: options.block,
        window: options.window,
    };
    let peer = Peer::connect(host, common.port, common.limit())?;
    let frames = Frames::greet(peer, &hello())?;
    frames.send(&Message::Offer(offer.clone()))?;
    let Message::Have {
        bytes,
        digest: theirs,
    } = receive_message(&frames)?
    else {
        return Err(out_of_order());
    };
    let keep_alive = || frames.send(&Message::Looking);
    let mut digest =
        Digest::of_start(&mut file, bytes.min(offer.size), keep_alive).context(doing)?;
    if bytes > 0 {
        if bytes == digest.bytes() && theirs == digest.hex() {
            say(format_args!("resuming at byte {bytes}"))?;
        } else {
            digest = Digest::default();
            say("the receiver has a part of something else: beginning anew")?;
        }
    }
    let from = digest.bytes();
    file.seek(SeekFrom::Start(from)).context(doing)?;
    let start = Instant::now();
    if let Err(why) = give(options, &offer, &frames, &mut file, &mut digest) {
        // The peer may be gone: then it needs no message.
        drop(frames.send(&Message::Failed(why.to_string())));
        return Err(why).context(|| {
            let there = digest.bytes();
            format!("the copy ended around byte {there} (--resume goes on with it)")
        });
    }
    frames.send(&Message::Sent {
        digest: digest.hex(),
    })?;
    let Message::Verified = receive_message(&frames)? else {
        return Err(out_of_order());
    };
    let (took, moved) = (start.elapsed(), offer.size - from);
    let (name, digest, seconds) = (&offer.name, digest.hex(), took.as_secs_f64());
    say(format_args!(
        "{name}: {moved} bytes sent in {seconds:.2} seconds, SHA-256 {digest}"
    ))?;
    Measured::new("file_copy", moved, 1, took, true).print()
}

/// Sends all blocks; afterwards `digest` covers what was read.
fn give(
    options: &Options,
    offer: &Offer,
    frames: &Frames,
    file: &mut File,
    digest: &mut Digest,
) -> Result<(), Failure> {
    let common = &options.common;
    let from = digest.bytes();
    let blocks = Blocks::new(offer, from)?;
    let context = programs::open(common)?;
    let pd = context.alloc_pd()?;
    let mut staging = pd.reg_mr(programs::memory(0_u8, offer.window_len()?)?)?;
    let mut marks = pd.reg_mr(vec![0_u8; MARK * usize::from(offer.window)])?;
    let prepared = options.prepare(&pd, offer.window)?;
    let endpoint = prepared.endpoint();
    programs::check_size(&context, endpoint.port_num(), offer.block.into())?;
    frames.send(&Message::Start { from, endpoint })?;
    let Message::Ready { endpoint, window } = receive_message(frames)? else {
        return Err(out_of_order());
    };
    let mut channel = prepared.handshake(&endpoint)?;
    let watch = Watch::new(frames, common.limit());
    let bar = bar(offer.size, from);

    channel
        .scope(|scope| {
            let mut credits = VecDeque::new();
            let mut writes = VecDeque::new();
            let posted = blocks.window().min(blocks.count());
            let marks = marks.scatter_element(..)?.chunks_mut(MARK)?;
            for mark in marks.take(usize::try_from(posted)?) {
                credits.push_back(watch.posted(scope.lend(Incoming::receive(mark)))?);
            }
            let block = usize::try_from(offer.block)?;
            let mut free = staging.scatter_element(..)?.chunks_mut(block)?;
            // At most a window of blocks is sent ahead of the credits.
            for index in 0..blocks.count() + blocks.window() {
                let mut returned = None;
                if let Some(credited) = index.checked_sub(blocks.window()) {
                    let (Some(credit), Some(write)) = (credits.pop_front(), writes.pop_front())
                    else {
                        break;
                    };
                    let (success, mark) = watch.wait(credit)?;
                    if success.imm_data() != Some(Blocks::mark(credited)) {
                        let came = success.imm_data();
                        return Err(Failure::new(format!(
                            "credit for block {credited} was due, and {came:?} came"
                        )));
                    }
                    let (_success, block) = watch.wait(write)?;
                    returned = Some(block);
                    bar.inc(blocks.len(credited)? as u64);
                    if index < blocks.count() {
                        credits.push_back(watch.posted(scope.lend(Incoming::receive(mark)))?);
                    }
                }
                if index < blocks.count() {
                    let block = returned.or_else(|| free.next());
                    let block = block.ok_or_else(|| Failure::new("no block is left"))?;
                    // Only the last is shorter.
                    let (mut block, _rest) = block.split_at_mut(blocks.len(index)?)?;
                    file.read_exact(&mut block).context(|| "cannot read on")?;
                    digest.add(&block);
                    let there = window.slice(blocks.place(index)? as u64..)?;
                    let write = Outgoing::write(block, there).immediate(Blocks::mark(index));
                    writes.push_back(watch.posted(scope.lend(write))?);
                }
            }
            Ok(())
        })
        .map_err(ScopeError::flatten)
}
