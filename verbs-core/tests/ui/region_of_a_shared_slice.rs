//! A buffer that is registered belongs to the region, or is borrowed mutably.

use verbs_core::ProtectionDomain;

fn register(pd: &ProtectionDomain, bytes: &[u8]) {
    drop(pd.reg_mr(bytes));
}

fn main() {}
