//! The descriptors whose events must be acknowledged can't be had, so they can't be read.

use std::os::fd::AsFd;

use verbs_core::CompletionChannel;

fn main() -> verbs_core::Result<()> {
    let context = verbs_core::Context::first_active()?;
    let channel = CompletionChannel::create(&context)?;
    let _readable = channel.as_fd();
    let _readable_too = context.async_fd();
    Ok(())
}
