//! A registered buffer is owned by the region, or borrowed mutably.

use verbs_core::ProtectionDomain;

fn register(pd: &ProtectionDomain, bytes: &[u8]) {
    drop(pd.reg_mr(bytes));
}

fn main() {}
