//! Messages that are sent on helper threads.

use verbs_channel::verbs_core::rdmacm::Message;

/// A message with its bytes.
pub(super) struct OwnedMessage {
    bytes: Vec<u8>,
    is_raw: bool,
}

impl OwnedMessage {
    pub(super) fn of(message: Message<'_>) -> Self {
        Self {
            bytes: message.as_bytes().to_vec(),
            is_raw: message.is_raw(),
        }
    }

    pub(super) fn get(&self) -> Message<'_> {
        if self.is_raw {
            Message::raw(&self.bytes)
        } else {
            self.bytes[..].into()
        }
    }
}
