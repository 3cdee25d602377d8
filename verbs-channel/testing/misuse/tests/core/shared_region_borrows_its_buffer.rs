//! Memory that a peer may write to is owned: a borrow can end while the peer still writes.

use verbs_core::{AccessFlags, ProtectionDomain};

fn lend(pd: &ProtectionDomain) {
    let mut buffer = [0_u8; 8];
    let region = pd.reg_shared(&mut buffer, AccessFlags::REMOTE_WRITE);
    drop(region);
}

fn main() {}
