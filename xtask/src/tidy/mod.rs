//! `cargo xtask tidy`: the project's own rules, those that clippy can't see.

mod imports;
mod prose;
mod rust;
mod source;

use std::fs;
use std::process::ExitCode;

use crate::error::{Context as _, Error};
use crate::from_c;
use crate::progress::Progress;
use crate::workspace;
use source::{Finding, Source};

/// The project's own rules, those that clippy can't see
#[derive(Debug, clap::Args)]
#[command(after_long_help = RULES, after_help = RULES)]
pub(crate) struct Args {}

const RULES: &str = "\
The rules, by the names that exceptions use:
  first-line  a Rust file's first line is a `//!` sentence
  length      no Rust file is longer than 500 lines
  test-name   no test's name begins with `what_`, or has `as_many_` or `so_many_`
  unique      no two public types of the libraries have one name, but for `Error`
  circle      no files or folders of a library import one another in a circle
  words       docs and comments have none of the phrases in `tidy/prose.rs`
  machine     no path of one machine, no issue by its number
  links       links between the project's files lead somewhere
  from-c      the pages with C's names are those of the code: see `cargo xtask from-c`
  commands    every `cargo xtask` command in the docs exists; the README has the two main ones

An exception is a comment on the line or the one above (for `length` and `circle`: anywhere in the file):
  // tidy: allow(RULE): REASON";

const TEXTS: [&str; 9] = ["rs", "md", "toml", "yml", "c", "h", "map", "sh", "stderr"];

/// Runs the subcommand.
pub(crate) fn main(_: Args) -> Result<ExitCode, Error> {
    let shown = Progress::of("tidy");
    let [complaints, unchecked] = complaints()?;
    drop(shown);
    for unchecked in unchecked {
        println!("tidy: not checked: {unchecked}");
    }
    if complaints.is_empty() {
        println!("tidy: nothing to complain about");
        return Ok(ExitCode::SUCCESS);
    }
    Err(Error::new(report(&complaints)))
}

/// The complaints as one message.
pub(crate) fn report(complaints: &[String]) -> String {
    let count = complaints.len();
    let s = if count == 1 { "" } else { "s" };
    format!(
        "tidy has {count} complaint{s}:\n  {}",
        complaints.join("\n  ")
    )
}

/// Everything in the project that breaks a rule, one line each; and the checks that cannot be made here.
pub(crate) fn complaints() -> Result<[Vec<String>; 2], Error> {
    let sources = sources()?;
    let commands = crate::commands();
    let exists = |path: &std::path::Path| workspace::root().join(path).exists();
    let mut found: Vec<(&Source, Finding)> = Vec::new();
    for source in &sources {
        let mut findings = prose::check(source, &commands, exists);
        if source.is("rs") {
            findings.extend(rust::check(source));
        }
        found.extend(findings.into_iter().map(|finding| (source, finding)));
    }
    found.extend(rust::type_names(&sources));
    found.extend(imports::circles(&sources));
    let [mut complaints, unchecked] = from_c::complaints()?;
    if !sources
        .iter()
        .any(|source| source.path.as_os_str() == "README.md")
    {
        complaints.push("README.md: missing".into());
    }
    for (source, finding) in found {
        if !source.allows(&finding) {
            let Finding {
                line,
                rule,
                message,
            } = finding;
            let path = source.path.display();
            complaints.push(format!("{path}:{}: {message} [{rule}]", line.max(1)));
        }
    }
    Ok([complaints, unchecked])
}

fn sources() -> Result<Vec<Source>, Error> {
    let mut sources = Vec::new();
    for path in workspace::files()? {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        if TEXTS.contains(&&*extension) || path.starts_with(".ci") {
            let text = fs::read_to_string(workspace::root().join(&path));
            let text = text.context(|| format!("cannot read {}", path.display()))?;
            sources.push(Source::new(path, text));
        }
    }
    Ok(sources)
}
