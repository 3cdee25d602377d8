//! The receiving side: takes blocks from its window, and returns credits for more.

use std::collections::VecDeque;

use programs::{Context as _, Failure, Frames, Listener, say};
use verbs_channel::verbs_core::{AccessFlags, Context, GatherElement};
use verbs_channel::{Incoming, Outgoing, ScopeError};

use crate::partial::Partial;
use crate::protocol::{Blocks, Message, Offer, hello, out_of_order, receive_message};
use crate::watch::Watch;
use crate::{Options, bar};

/// The length of a receive for an immediate. It needs no memory, but some drivers reject a receive
/// without any.
const MARK: usize = 8;

/// Receives one file.
pub(crate) fn receive(options: &Options) -> Result<(), Failure> {
    let common = &options.common;
    if !options.dir.is_dir() {
        let dir = options.dir.display();
        return Err(Failure::new(format!("{dir} is no directory")));
    }
    let context = programs::open(common)?;
    let listener = Listener::bind(common.port)?;
    let (device, port) = (context.device().name(), listener.port());
    say(format_args!("waiting on {device}, TCP port {port}"))?;
    let peer = listener.accept(common.wait(), common.limit())?;
    let frames = Frames::greet(peer, &hello())?;
    let Message::Offer(offer) = receive_message(&frames)? else {
        return Err(out_of_order());
    };
    let ended = look(options, &offer, &frames).and_then(|mut partial| {
        let took = take(options, &context, &offer, &frames, &mut partial);
        let kept = partial.stays().then(|| partial.digest().bytes());
        let stays = kept.map_or(String::new(), |kept| {
            format!(" ({kept} bytes stay for --resume)")
        });
        let digest = took.context(|| format!("{} is not complete{stays}", offer.name))?;
        partial.finish(&digest).map(|()| digest)
    });
    match ended {
        Ok(digest) => {
            frames.send(&Message::Verified)?;
            let Offer { name, size, .. } = offer;
            say(format_args!("{name}: {size} bytes, SHA-256 {digest}"))
        }
        Err(why) => {
            // The peer may be gone: then it needs no message.
            drop(frames.send(&Message::Failed(why.to_string())));
            Err(why)
        }
    }
}

/// Checks the offer, and what an earlier copy left of it.
fn look(options: &Options, offer: &Offer, frames: &Frames) -> Result<Partial, Failure> {
    offer.check()?;
    let Offer { name, size, .. } = offer;
    let partial = if options.discard {
        Partial::nowhere()
    } else {
        let limit = if offer.resume { *size } else { 0 };
        let keep_alive = || frames.send(&Message::Looking);
        Partial::open(&options.dir, name, limit, options.force, keep_alive)?
    };
    let digest = partial.digest();
    frames.send(&Message::Have {
        bytes: digest.bytes(),
        digest: digest.hex(),
    })?;
    Ok(partial)
}

/// Takes all blocks, and then the sender's digest of the file.
fn take(
    options: &Options,
    context: &Context,
    offer: &Offer,
    frames: &Frames,
    partial: &mut Partial,
) -> Result<String, Failure> {
    let Message::Start { from, endpoint } = receive_message(frames)? else {
        return Err(out_of_order());
    };
    partial.begin_at(from)?;
    let blocks = Blocks::new(offer, from)?;

    let pd = context.alloc_pd()?;
    let window = programs::memory(0_u8, offer.window_len()?)?;
    let window = pd.reg_shared(window, AccessFlags::REMOTE_WRITE)?;
    let mut marks = pd.reg_mr(vec![0_u8; MARK * usize::from(offer.window)])?;
    let prepared = options.prepare(&pd, offer.window)?;
    let ready = Message::Ready {
        endpoint: prepared.endpoint(),
        window: window.remote(),
    };
    let mut channel = prepared.handshake(&endpoint)?;
    let watch = Watch::new(frames, options.common.limit());
    let bar = bar(offer.size, from);
    let mut block = vec![0; usize::try_from(offer.block)?];

    channel
        .scope(|scope| {
            let mut receives = VecDeque::new();
            let mut credits = VecDeque::new();
            let posted = blocks.window().min(blocks.count());
            let marks = marks.scatter_element(..)?.chunks_mut(MARK)?;
            for mark in marks.take(usize::try_from(posted)?) {
                receives.push_back(watch.posted(scope.lend(Incoming::receive(mark)))?);
            }
            frames.send(&ready)?;
            let mut index = 0;
            while let Some(receive) = receives.pop_front() {
                let (success, mark) = watch.wait(receive)?;
                let len = blocks.len(index)?;
                let came = (success.imm_data(), usize::try_from(success.byte_len())?);
                if came != (Some(Blocks::mark(index)), len) {
                    return Err(Failure::new(format!(
                        "block {index} of {len} bytes was due, and {came:?} came"
                    )));
                }
                let block = block.get_mut(..len).unwrap_or_default();
                window.read(blocks.place(index)?, block)?;
                partial.append(block)?;
                bar.inc(success.byte_len().into());
                // Its place in the window is free, and a receive is posted for what goes there.
                if index + blocks.window() < blocks.count() {
                    receives.push_back(watch.posted(scope.lend(Incoming::receive(mark)))?);
                }
                if credits.len() as u64 == blocks.window() {
                    let oldest = credits.pop_front();
                    oldest.map(|credit| watch.wait(credit)).transpose()?;
                }
                let nothing: [GatherElement<'_>; 0] = [];
                let credit = Outgoing::send(nothing).immediate(Blocks::mark(index));
                credits.push_back(watch.posted(scope.lend(credit))?);
                index += 1;
            }
            for credit in credits {
                watch.wait(credit)?;
            }
            Ok(())
        })
        .map_err(ScopeError::<Failure>::flatten)?;
    match receive_message(frames)? {
        Message::Sent { digest } => Ok(digest),
        _ => Err(out_of_order()),
    }
}
