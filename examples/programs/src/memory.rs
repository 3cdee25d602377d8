//! Large allocations, which may fail.

use crate::{Context as _, Failure};

/// Allocates a vector of `len` equal items.
///
/// # Errors
///
/// There is not enough memory.
pub fn memory<T: Copy>(each: T, len: usize) -> Result<Vec<T>, Failure> {
    let mut memory = Vec::new();
    let bytes = len.saturating_mul(size_of::<T>());
    let reserved = memory.try_reserve_exact(len);
    reserved.context(|| format!("there is no room for {bytes} bytes"))?;
    memory.resize(len, each);
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_an_error() {
        assert_eq!(memory(7_u32, 3).unwrap(), [7; 3]);
        for len in [usize::MAX / 8, usize::MAX] {
            let why = memory(0_u64, len).unwrap_err().to_string();
            assert!(why.starts_with("there is no room"), "{why}");
        }
    }
}
