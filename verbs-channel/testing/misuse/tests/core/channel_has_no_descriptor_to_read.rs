//! Descriptors whose events must be acknowledged are not accessible, so they are not read.

use std::os::fd::AsFd;

use verbs_core::completion::CompletionChannel;

fn main() -> verbs_core::Result<()> {
    let context = verbs_core::Context::first_active()?;
    let channel = CompletionChannel::create(&context)?;
    let _readable = channel.as_fd();
    let _readable_too = context.async_fd();
    Ok(())
}
