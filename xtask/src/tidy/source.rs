//! One file of the project as the rules see it: its text, and its code without comments and
//! strings.

use std::path::PathBuf;

/// A file to judge.
#[derive(Debug)]
pub(super) struct Source {
    /// Its place below the workspace's root.
    pub(super) path: PathBuf,
    /// All of it.
    pub(super) text: String,
    /// For Rust, the text with the insides of comments and strings blanked out; every line and
    /// column stays where it was.
    pub(super) code: String,
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
        let is_rust = path.extension().is_some_and(|ext| ext == "rs");
        let code = if is_rust { blank(&text) } else { String::new() };
        Self { path, text, code }
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

/// Blanks the insides of comments, strings and characters.
fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word_before = out
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '_');
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if first == '"' {
            quoted(rest)
        } else if first == '\'' {
            character(rest)
        } else if !word_before && (first == 'r' || rest.starts_with("br") || rest.starts_with("cr"))
        {
            raw_string(rest)
        } else {
            0
        };
        if length == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let (blanked, after) = rest.split_at(length);
            // The number of bytes stays, so that places in text and code agree.
            out.extend(
                blanked
                    .bytes()
                    .map(|byte| if byte == b'\n' { '\n' } else { ' ' }),
            );
            rest = after;
        }
    }
    out
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of a string that starts here with its quote.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a character that starts here; 0 for a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            // The escaped character may be a quote itself.
            let after = chars.nth(1).map_or(text.len(), |(at, _)| at);
            text[after..].find('\'').map_or(0, |end| after + end + 1)
        }
        Some((_, _)) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

/// The length of a raw string that starts here with its prefix; 0 for anything else.
fn raw_string(text: &str) -> usize {
    let body = text.trim_start_matches(['b', 'c']);
    let Some(body) = body.strip_prefix('r') else {
        return 0;
    };
    let hashes = body.len() - body.trim_start_matches('#').len();
    let prefix = text.len() - body.len() + hashes;
    if !text[prefix..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let found = text[prefix + 1..].find(&end);
    found.map_or(text.len(), |at| prefix + 1 + at + end.len())
}

#[cfg(test)]
mod tests {
    use super::{Finding, Source, blank};

    #[test]
    fn comments_and_strings_are_blanked_and_code_stays() {
        for (text, code) in [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* y */ z */ b", &format!("a {} b", " ".repeat(17))),
            ("f(\"un\\\"safe\") + 1", "f(          ) + 1"),
            ("r#\"a\"b\"# + br\"x\"", "         +      "),
            ("'\\'' + '\"' + 'x'", "     +     +    "),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("r#type + bar", "r#type + bar"),
            ("\"é\" x", "     x"),
        ] {
            assert_eq!(blank(text), code, "{text}");
        }
    }

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
