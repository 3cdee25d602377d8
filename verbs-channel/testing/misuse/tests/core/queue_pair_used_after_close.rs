//! A queue pair that was closed is not used.

use verbs_core::{QueuePair, Result};

fn close(qp: QueuePair) -> Result<u32> {
    qp.close()?;
    Ok(qp.qp_num())
}

fn main() {}
