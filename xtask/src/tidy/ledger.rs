//! The ledger of unsafe code: how much of it is in which file.

use super::source::Source;

/// One file's unsafe code by its kind.
#[derive(Debug, Default, PartialEq)]
struct Entry {
    blocks: usize,
    functions: usize,
    impls: usize,
    others: usize,
}

/// The ledger as a table, with one line for each file that has unsafe code.
pub(super) fn table(sources: &[Source]) -> String {
    let mut text = format!(
        "{:<50}{:>7}{:>6}{:>7}{:>7}\n",
        "file", "blocks", "fns", "impls", "other"
    );
    let mut total = Entry::default();
    for source in sources {
        let entry = entry(source);
        if entry != Entry::default() {
            text.push_str(&line(&source.path.display().to_string(), &entry));
            total.blocks += entry.blocks;
            total.functions += entry.functions;
            total.impls += entry.impls;
            total.others += entry.others;
        }
    }
    text + &line("total", &total)
}

fn line(name: &str, entry: &Entry) -> String {
    let Entry {
        blocks,
        functions,
        impls,
        others,
    } = entry;
    format!("{name:<50}{blocks:>7}{functions:>6}{impls:>7}{others:>7}\n")
}

fn entry(source: &Source) -> Entry {
    let mut entry = Entry::default();
    for at in source.words("unsafe") {
        let after = source.code[at + "unsafe".len()..].trim_start();
        let next = after.split(|c: char| c.is_whitespace() || c == '<').next();
        let count = match next.unwrap_or_default() {
            word if word.starts_with('{') => &mut entry.blocks,
            "impl" => &mut entry.impls,
            // A function's definition, or its type.
            word if word == "fn" || word.starts_with("fn(") => &mut entry.functions,
            "extern" if after.split('{').next().unwrap_or_default().contains("fn") => {
                &mut entry.functions
            }
            _ => &mut entry.others,
        };
        *count += 1;
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::{Entry, entry, table};
    use crate::tidy::source::Source;

    #[test]
    fn each_kind_is_counted_where_it_stands() {
        let text = "unsafe fn f() { unsafe { g() } }\nunsafe impl Send for X {}\n\
                    pub unsafe extern \"C\" fn h() {}\nunsafe extern \"C\" { }\n// unsafe {\n\
                    #[unsafe(no_mangle)]\nunsafe impl<T> Sync for Y<T> {}\n";
        let source = Source::new("a.rs", text);
        let expected = Entry {
            blocks: 1,
            functions: 2,
            impls: 2,
            others: 2,
        };
        assert_eq!(entry(&source), expected);
        let table = table(&[source, Source::new("safe.rs", "fn f() {}")]);
        assert_eq!(table.lines().count(), 3, "{table}");
    }
}
