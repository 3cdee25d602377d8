//! What some operations have, in a table beside theirs.

/// Values by the operations' keys.
pub(super) struct Beside<T> {
    values: Vec<Option<T>>,
}

impl<T> Beside<T> {
    pub(super) const fn new() -> Self {
        let values = Vec::new();
        Self { values }
    }

    pub(super) fn put(&mut self, key: usize, value: T) {
        if key >= self.values.len() {
            self.values.resize_with(key + 1, || None);
        }
        self.values[key] = Some(value);
    }

    pub(super) fn take(&mut self, key: usize) -> Option<T> {
        self.values.get_mut(key)?.take()
    }
}
