//! Only plain numbers are registered: a device could write an invalid reference.

use verbs_core::ProtectionDomain;

fn register(pd: &ProtectionDomain, names: Vec<&'static str>) {
    drop(pd.reg_mr(names));
}

fn main() {}
