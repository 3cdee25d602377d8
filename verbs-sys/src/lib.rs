//! Bindings to libibverbs, every inline verb included.
