//! One file of the project as the rules see it.

use std::path::PathBuf;

/// A file to judge.
#[derive(Debug)]
pub(super) struct Source {
    /// Its place below the workspace's root.
    pub(super) path: PathBuf,
    /// All of it.
    pub(super) text: String,
}

/// Something that breaks a rule.
#[derive(Debug, PartialEq)]
pub(super) struct Finding {
    /// The line, from 1; 0 if it is about the whole file.
    pub(super) line: usize,
    /// The rule's name, as `allow` comments spell it.
    pub(super) rule: &'static str,
    /// The complaint.
    pub(super) message: String,
}

impl Finding {
    pub(super) fn new(line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            line,
            rule,
            message,
        }
    }
}

impl Source {
    pub(super) fn new(path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        Self { path, text }
    }

    pub(super) fn is(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|ext| ext == extension)
    }

    /// Whether a comment `tidy: allow(RULE): REASON` stands on the finding's line or the one
    /// above; anywhere in the file, if the finding is about the whole file.
    pub(super) fn allows(&self, finding: &Finding) -> bool {
        let mut lines = self.text.lines().enumerate();
        let allow = format!("tidy: allow({}): ", finding.rule);
        lines.any(|(index, line)| {
            let near = finding.line == 0 || index + 1 == finding.line || index + 2 == finding.line;
            let reason = line.split_once(&allow).map_or("", |(_, reason)| reason);
            near && !reason.trim_end_matches("-->").trim().is_empty()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Finding, Source};

    #[test]
    fn an_exception_needs_its_rule_its_place_and_a_reason() {
        let finding = |line| Finding::new(line, "links", "");
        let source = Source::new(
            "a.rs",
            "//!\n// tidy: allow(links): it will be there\n[a](b)\n",
        );
        assert!(source.allows(&finding(3)));
        assert!(!source.allows(&finding(5)));
        let source = Source::new("a.rs", "//!\n// tidy: allow(links): \n[a](b)\n");
        assert!(!source.allows(&finding(3)));
    }
}
