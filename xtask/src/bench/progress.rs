//! How far a part is.

use crate::progress;

/// The steps of one part, shown until this is dropped.
#[derive(Debug)]
pub(super) struct Progress {
    shown: progress::Progress,
    steps: usize,
    done: usize,
}

impl Progress {
    pub(super) fn new(part: &str, steps: usize) -> Self {
        Self {
            shown: progress::Progress::of(part),
            steps,
            done: 0,
        }
    }

    /// The next step begins.
    pub(super) fn next(&mut self, step: &str) {
        self.done += 1;
        self.shown.doing(&self.text(step));
    }

    fn text(&self, step: &str) -> String {
        format!("{} of {}, {step}", self.done, self.steps)
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn the_line_says_how_far_it_is() {
        let mut progress = Progress::new("pairs", 9);
        progress.next("first");
        assert_eq!(progress.text("x y"), "1 of 9, x y");
    }
}
