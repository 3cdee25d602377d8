//! A queue pair that was reset is not connected any more.

use verbs_core::{QueuePair, Result};

fn reset(qp: QueuePair) -> Result<()> {
    let _prepared = qp.reset()?;
    qp.to_error()
}

fn main() {}
