//! Texts of status codes.

use std::fmt;

/// The status of an answer: its type, its code, and whether to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u16);

impl Status {
    pub(crate) const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, code) = (self.0 >> 8 & 7, self.0 & 0xff);
        let text = match (kind, code) {
            (0, 0x00) => "success",
            (0, 0x01) => "invalid opcode",
            (0, 0x02) => "invalid field in the command",
            (0, 0x03) => "the command's number is in use",
            (0, 0x04) => "the data could not be transferred",
            (0, 0x06) => "internal error",
            (0, 0x07) => "aborted, as was asked for",
            (0, 0x08) => "aborted, since its queue was deleted",
            (0, 0x0b) => "no such namespace",
            (0, 0x0c) => "commands in the wrong order",
            (0, 0x0d) => "invalid descriptor of the data",
            (0, 0x0f) => "the data's length is wrong",
            (0, 0x11) => "a descriptor of the data has a type that the target lacks",
            (0, 0x19) => "the target has waited too long for the host",
            (0, 0x20) => "the namespace is write-protected",
            (0, 0x80) => "a block is out of range",
            (0, 0x81) => "the capacity is exceeded",
            (0, 0x82) => "the namespace is not ready",
            (0, 0x83) => "another host has reserved the namespace",
            (1, 0x80) => "the target lacks this format of Connect",
            (1, 0x81) => "the controller is in use",
            (1, 0x82) => "invalid parameter of Connect, such as the name of the subsystem",
            (1, 0x84) => "the target does not admit this host",
            (1, 0x91) => "the target requires authentication",
            (2, 0x80) => "the target could not write",
            (2, 0x81) => "the target could not read",
            (2, 0x86) => "access denied",
            (3, _) => "the target has no path to the namespace",
            (7, _) => "an error of its vendor",
            _ => "unknown status",
        };
        write!(f, "{text} ({kind:x}h/{code:02x}h")?;
        // DNR: do not retry.
        f.write_str(if self.0 & 0x4000 != 0 || self.is_success() {
            ")"
        } else {
            "; may be tried again)"
        })
    }
}

/// Why a target rejects a connection: the private data of its rejection.
pub(crate) fn rejection(bytes: &[u8]) -> Option<&'static str> {
    let [0, 0, code, 0, ..] = bytes else {
        return None;
    };
    Some(match code {
        1 => "the private data has another length than it expects",
        2 => "it lacks this format of private data",
        3 => "invalid number of the queue",
        4 => "it lacks queues of this depth",
        5 => "too few receives for its answers",
        6 => "it has no resources left",
        7 | 8 => "the numbers of reads in flight do not match",
        9 => "it has no such controller",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_and_rejection_has_a_text() {
        assert_eq!(
            Status(0x4080).to_string(),
            "a block is out of range (0h/80h)"
        );
        let may = "the target could not read (2h/81h; may be tried again)";
        assert_eq!(Status(0x0281).to_string(), may);
        for status in 0..=u16::MAX {
            let text = Status(status).to_string();
            let is_success = text.starts_with("success");
            assert_eq!(is_success, Status(status).is_success(), "{text}");
        }
        assert_eq!(
            rejection(&[0, 0, 6, 0, 0]),
            Some("it has no resources left")
        );
        for odd in [
            &[][..],
            &[0, 0, 6],
            &[0, 0, 0, 0],
            &[0, 0, 10, 0],
            &[1, 0, 6, 0],
        ] {
            assert_eq!(rejection(odd), None);
        }
    }
}
