//! `cargo xtask from-c`: pages for those who come from C, with every name of its headers.

mod items;
mod reasons;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::args::Args;
use crate::error::{Context as _, Error};
use crate::process::output;
use crate::progress::Progress;
use crate::workspace;
use items::Items;
use reasons::Group;

const HELP: &str = "\
Writes the pages of verbs-core's docs that have, for each name of libibverbs' and librdmacm's
headers, its Rust name, or why there is none. `cargo xtask tidy` checks that they are those of
the code, on a machine with the same version of the headers.

Usage: cargo xtask from-c";

/// On a narrow screen, two columns of long names would be broken within the names.
const NARROW: &str = "\n<style>@media (max-width: 700px) { .docblock table :is(td, th) { display: block } }</style>\n";

/// One header, and its page.
struct Page {
    library: &'static str,
    header: &'static str,
    path: &'static str,
    /// How its names begin.
    prefixes: [&'static str; 2],
    /// The public module of the types that it has.
    module: &'static str,
    groups: &'static [Group],
}

const PAGES: [Page; 2] = [
    Page {
        library: "libibverbs",
        header: "infiniband/verbs.h",
        path: "verbs-core/src/from_c.md",
        prefixes: ["ibv_", "IBV_"],
        module: "crate",
        groups: reasons::VERBS,
    },
    Page {
        library: "librdmacm",
        header: "rdma/rdma_cma.h",
        path: "verbs-core/src/rdmacm/from_c.md",
        prefixes: ["rdma_", "RDMA_"],
        module: "crate::rdmacm",
        groups: reasons::MANAGER,
    },
];

/// Runs the subcommand.
pub(crate) fn main(args: Vec<OsString>) -> Result<ExitCode, Error> {
    let mut args = Args::new(HELP, args)?;
    if args.help() {
        return Ok(ExitCode::SUCCESS);
    }
    args.finish()?;
    let shown = Progress::of("from-c");
    let items = items()?;
    drop(shown);
    for page in PAGES {
        let text = page.text(&page.version()?, &items)?;
        fs::write(page.file(), text).context(|| format!("cannot write {}", page.path))?;
        println!("from-c: {}", page.path);
    }
    Ok(ExitCode::SUCCESS)
}

/// What is wrong with the pages, one line each. A page of other headers than this machine's is skipped,
/// and so is one without headers; that is printed.
pub(crate) fn complaints() -> Result<Vec<String>, Error> {
    let items = items()?;
    let mut complaints = Vec::new();
    for page in PAGES {
        let found = fs::read_to_string(page.file()).unwrap_or_default();
        let Ok(version) = page.version() else {
            println!("tidy: {} is not checked: no {}", page.path, page.library);
            continue;
        };
        if !found.is_empty() && !found.contains(&page.origin(&version)) {
            println!(
                "tidy: {} is not checked: it is not of {} {version}, which is installed",
                page.path, page.library
            );
            continue;
        }
        match page.text(&version, &items) {
            Ok(text) if text == found => {}
            Ok(_) => complaints.push(format!(
                "{}: is not that of the code: run `cargo xtask from-c`",
                page.path
            )),
            Err(error) => complaints.push(error.to_string()),
        }
    }
    Ok(complaints)
}

impl Page {
    fn file(&self) -> PathBuf {
        workspace::root().join(self.path)
    }

    /// The version of the installed library.
    fn version(&self) -> Result<String, Error> {
        let version = output(Command::new("pkg-config").args(["--modversion", self.library]))?;
        Ok(version.trim().to_owned())
    }

    /// How a page names its headers.
    fn origin(&self, version: &str) -> String {
        format!("`{}` of {} {version}", self.header, self.library)
    }

    fn header(&self) -> Result<String, Error> {
        let dir = output(Command::new("pkg-config").args(["--variable=includedir", self.library]))?;
        let path = Path::new(dir.trim()).join(self.header);
        fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))
    }

    fn text(&self, version: &str, items: &Items) -> Result<String, Error> {
        let header = self.header()?;
        let mut names = names(&header);
        let of_page = |name: &str| self.prefixes.iter().any(|prefix| name.starts_with(prefix));
        names.retain(|name| of_page(name));
        self.page(&names, &self.origin(version), items)
    }

    /// The page for these names.
    fn page(&self, names: &BTreeSet<&str>, origin: &str, items: &Items) -> Result<String, Error> {
        let (mut table, mut others) = (String::new(), BTreeMap::<usize, Vec<&str>>::new());
        let mut unknown = Vec::new();
        for name in names {
            let paths = items.get(*name).into_iter().flatten();
            let links: Vec<String> = paths.filter_map(|path| self.link(path)).collect();
            if !links.is_empty() {
                writeln!(table, "| `{name}` | {} |", links.join(", ")).ok();
            } else if let Some(group) = self.groups.iter().position(|group| group.fits(name)) {
                others.entry(group).or_default().push(name);
            } else {
                unknown.push(*name);
            }
        }
        if !unknown.is_empty() {
            return Err(Error::new(format!(
                "names of {origin} that are nothing's `doc(alias)`, and have no reason in \
                 xtask/src/from_c/reasons.rs: {}",
                unknown.join(", ")
            )));
        }
        let mut page = format!(
            "<!-- Written by `cargo xtask from-c`. -->\n\
             Every name of {origin}, and what it is called here.\n\n\
             | C | Rust |\n|---|---|\n{table}\n\
             # Names without a Rust name of their own\n\n\
             They are in [`verbs_sys`](crate::verbs_sys), by the same names; each object has an `as_ptr()`.\n"
        );
        for (group, names) in others {
            let reason = self.groups.get(group).map_or("", |group| group.reason);
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            write!(page, "\n- {reason}\n\n  {}\n", names.join(", ")).ok();
        }
        page.push_str(NARROW);
        Ok(page)
    }

    /// A link to an item, if it is there whenever the page is.
    fn link(&self, path: &str) -> Option<String> {
        let name = path.strip_prefix(self.module)?.strip_prefix("::")?;
        let is_here = !name.starts_with("rdmacm::");
        is_here.then(|| format!("[`{name}`]({path})"))
    }
}

/// The C names of all items of verbs-core.
fn items() -> Result<Items, Error> {
    let mut items = Items::new();
    for path in workspace::files()? {
        if !path.starts_with("verbs-core/src") || path.extension().is_none_or(|ext| ext != "rs") {
            continue;
        }
        let [verbs, manager] = &PAGES;
        let module = if path.starts_with("verbs-core/src/rdmacm") {
            manager.module
        } else {
            verbs.module
        };
        let text = fs::read_to_string(workspace::root().join(&path));
        let text = text.context(|| format!("cannot read {}", path.display()))?;
        items::add(&mut items, module, &text);
    }
    Ok(items)
}

/// Whether this is a name of the headers.
fn is_c_name(name: &str) -> bool {
    let prefixes = ["ibv_", "IBV_", "rdma_", "RDMA_"];
    prefixes.iter().any(|prefix| name.starts_with(prefix)) && !name.ends_with("_H")
}

/// The names in a header, outside of comments.
fn names(header: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut rest = header;
    while !rest.is_empty() {
        let (code, comment) = rest.split_once("/*").unwrap_or((rest, ""));
        for line in code.lines() {
            let line = line.split("//").next().unwrap_or_default();
            let words = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            names.extend(words.filter(|word| is_c_name(word)));
        }
        rest = comment.split_once("*/").map_or("", |(_, rest)| rest);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_header_are_found_outside_of_comments() {
        let header = "#ifndef RDMA_CMA_H\n/* ibv_none: rdma_none */ int ibv_open(struct ibv_x *x);\n\
                      enum { IBV_A = 1, // IBV_NONE\n IBV_B };\n";
        let expected = ["IBV_A", "IBV_B", "ibv_open", "ibv_x"];
        assert!(names(header).into_iter().eq(expected));
    }

    #[test]
    fn every_name_has_an_item_or_a_reason() {
        let [page, _] = PAGES;
        let mut items = Items::new();
        items.insert("ibv_open".into(), vec!["crate::Device::open".into()]);
        let origin = page.origin("1");
        let names = BTreeSet::from(["ibv_open", "ibv_mw_bind"]);
        let text = page.page(&names, &origin, &items).unwrap();
        assert!(text.contains("| `ibv_open` | [`Device::open`](crate::Device::open) |"));
        let memory_windows = "- Memory windows and the invalidation of keys.\n\n  `ibv_mw_bind`\n";
        assert!(text.contains(memory_windows), "{text}");
        let names = BTreeSet::from(["ibv_open", "ibv_unheard_of"]);
        let error = page.page(&names, &origin, &items).unwrap_err();
        assert!(error.to_string().contains("ibv_unheard_of"));
    }
}
