//! `cargo xtask from-c`: pages for those who come from C, with every name of its headers.

mod items;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::error::{Context as _, Error};
use crate::process::output;
use crate::progress::Progress;
use crate::workspace;
use items::Items;

/// On a narrow screen, two columns of long names would be broken within the names.
const NARROW: &str = "\n<style>@media (max-width: 700px) { .docblock table :is(td, th) { display: block } }</style>\n";

/// One header, and its page.
struct Page {
    library: &'static str,
    header: &'static str,
    path: &'static str,
    /// How its names begin.
    prefixes: &'static [&'static str],
    /// The public module of the types that it has.
    module: &'static str,
    /// How objects are passed to C.
    passing: &'static str,
    /// Reasons why names have no Rust name: see there.
    reasons: &'static str,
}

const PAGES: [Page; 2] = [
    Page {
        library: "libibverbs",
        header: "infiniband/verbs.h",
        path: "verbs-core/src/from_c.md",
        prefixes: &[
            "ibv_",
            "IBV_",
            "verbs_context",
            "verbs_get_",
            "verbs_provider_",
            "IB_",
            "ETHERNET_",
            "mbps_",
            "mult_",
            "vext_",
        ],
        module: "crate",
        passing: "the pointer of an object is its `as_ptr()`, that of a region its `as_mr_ptr()`",
        reasons: include_str!("libibverbs.txt"),
    },
    Page {
        library: "librdmacm",
        header: "rdma/rdma_cma.h",
        path: "verbs-core/src/rdmacm/from_c.md",
        prefixes: &["rdma_", "RDMA_", "RAI_"],
        module: "crate::rdmacm",
        passing: "the identifiers of these types cannot be passed to them",
        reasons: include_str!("librdmacm.txt"),
    },
];

/// The guard of a header, and a part of names.
const LEFT_OUT: [&str; 2] = ["RDMA_CMA_H", "verbs_provider_"];

/// Why names have no Rust name.
struct Group<'t> {
    reason: &'t str,
    /// Whether `verbs_sys` has the names.
    is_in_sys: bool,
    patterns: Vec<&'t str>,
}

impl<'t> Group<'t> {
    /// The groups in a text: a line with a reason, and indented lines with patterns.
    fn all(text: &'t str) -> Vec<Self> {
        let (mut groups, mut is_in_sys) = (Vec::<Self>::new(), true);
        for line in text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            match (line.strip_prefix("    "), groups.last_mut()) {
                (Some(patterns), Some(group)) => group.patterns.extend(patterns.split(' ')),
                _ if line == "[not in verbs_sys]" => is_in_sys = false,
                (_, _) => groups.push(Self {
                    reason: line,
                    is_in_sys,
                    patterns: Vec::new(),
                }),
            }
        }
        groups
    }

    fn fits(&self, name: &str) -> bool {
        self.patterns
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == *pattern,
            })
    }
}

/// Runs the subcommand.
pub(crate) fn main() -> Result<ExitCode, Error> {
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

/// Faults of the pages, one line each; and the checks that cannot be made here, and why. On a machine with other headers
/// than theirs, only that each name has an item or a reason is checked.
pub(crate) fn complaints() -> Result<[Vec<String>; 2], Error> {
    let items = items()?;
    let (mut complaints, mut unchecked) = (Vec::new(), Vec::new());
    for page in PAGES {
        let Page { library, path, .. } = page;
        let Ok(version) = page.version() else {
            unchecked.push(format!("{path}: {library} is not installed"));
            continue;
        };
        let found = fs::read_to_string(page.file()).unwrap_or_default();
        let is_of_these = found.is_empty() || found.contains(&page.origin(&version));
        if !is_of_these {
            unchecked.push(format!(
                "{path}: its text is not of {library} {version}, which is installed"
            ));
        }
        match page.text(&version, &items) {
            Ok(text) if text == found || !is_of_these => {}
            Ok(_) => complaints.push(format!(
                "{path}: is not that of the code: run `cargo xtask from-c`"
            )),
            Err(error) => complaints.push(error.to_string()),
        }
    }
    Ok([complaints, unchecked])
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
        self.page(
            &self.names(&without_comments(&header)),
            &self.origin(version),
            items,
        )
    }

    /// The names in the code of the header.
    fn names<'c>(&self, code: &'c str) -> BTreeSet<&'c str> {
        let words = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let is_ours = |name: &&str| self.prefixes.iter().any(|prefix| name.starts_with(prefix));
        words
            .filter(is_ours)
            .filter(|name| !LEFT_OUT.contains(name))
            .collect()
    }

    /// The page for these names.
    fn page(&self, names: &BTreeSet<&str>, origin: &str, items: &Items) -> Result<String, Error> {
        let groups = Group::all(self.reasons);
        let (mut table, mut others) = (String::new(), BTreeMap::<usize, Vec<&str>>::new());
        let mut unknown = Vec::new();
        for name in names {
            let paths = items.get(*name).into_iter().flatten();
            let links: Vec<String> = paths.filter_map(|path| self.link(name, path)).collect();
            if !links.is_empty() {
                writeln!(table, "| `{name}` | {} |", links.join(", ")).ok();
            } else if let Some(group) = groups.iter().position(|group| group.fits(name)) {
                others.entry(group).or_default().push(name);
            } else {
                unknown.push(*name);
            }
        }
        if !unknown.is_empty() {
            return Err(Error::new(format!(
                "names of {origin} that are nothing's `doc(alias)`, and have no reason in \
                 xtask/src/from_c/{}.txt: {}",
                self.library,
                unknown.join(", ")
            )));
        }
        let mut page = format!(
            "<!-- Written by `cargo xtask from-c`. -->\n\
             Every name of {origin}, and what it is called here.\n\n\
             | C | Rust |\n|---|---|\n{table}\n\
             # Names without a Rust name of their own\n\n\
             They are in [`verbs_sys`](crate::verbs_sys), by the same names; {}.\n",
            self.passing
        );
        let mut is_in_sys = true;
        for (group, names) in others {
            let Some(group) = groups.get(group) else {
                continue;
            };
            if is_in_sys && !group.is_in_sys {
                page.push_str("\n# Names that `verbs_sys` does not have either\n");
            }
            is_in_sys = group.is_in_sys;
            let reason = group.reason;
            // Rustdoc checks the links.
            let names = names.iter().map(|name| match group.is_in_sys {
                true => format!("[`{name}`](crate::verbs_sys::{name})"),
                false => format!("`{name}`"),
            });
            let names: Vec<String> = names.collect();
            write!(page, "\n- {reason}\n\n  {}\n", names.join(", ")).ok();
        }
        page.push_str(NARROW);
        Ok(page)
    }

    /// A link to the item of this C name, if it is there whenever the page is.
    fn link(&self, c: &str, path: &str) -> Option<String> {
        let name = path.strip_prefix(self.module)?.strip_prefix("::")?;
        let is_here = !name.starts_with("rdmacm::");
        // Without the module that it is in.
        let shown = name.trim_start_matches(|c: char| c.is_ascii_lowercase() || c == '_');
        let shown = shown.strip_prefix("::").unwrap_or(name);
        let link = format!("[`{shown}`]({path})");
        // It takes what C's function returns.
        let link = match name.ends_with("::from_raw") {
            true => format!("[`verbs_sys::{c}`](crate::verbs_sys::{c}), then {link}"),
            false => link,
        };
        is_here.then_some(link)
    }
}

/// A header without its comments.
fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut code = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        code += part.split_once("*/").map_or("", |(_, code)| code);
    }
    let lines = code.lines().filter_map(|line| line.split("//").next());
    lines.collect::<Vec<_>>().join("\n")
}

/// The C names of all items of verbs-core.
fn items() -> Result<Items, Error> {
    let mut items = Items::new();
    for path in workspace::files()? {
        if !path.starts_with("verbs-core/src") || path.extension().is_none_or(|ext| ext != "rs") {
            continue;
        }
        let [verbs, manager] = &PAGES;
        let is_event = path.ends_with("codes/cm_event_type.rs");
        let folder = path.iter().nth(2).and_then(|folder| folder.to_str());
        let module = match folder {
            _ if is_event => manager.module.to_owned(),
            Some(folder) => format!("{}::{folder}", verbs.module),
            None => continue,
        };
        let text = fs::read_to_string(workspace::root().join(&path));
        let text = text.context(|| format!("cannot read {}", path.display()))?;
        items::add(&mut items, &module, &text);
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_with_a_prefix_outside_of_comments() {
        let [verbs, manager] = PAGES;
        let header = "#ifndef RDMA_CMA_H\n#define RAI_NEW 1 /* rdma_no */ // ibv_no\n\
                      int rdma_open(struct ibv_x *x, struct rdma_y *y); /* rdma_no\n */ int unlike(void);\n";
        let code = without_comments(header);
        assert!(
            manager
                .names(&code)
                .into_iter()
                .eq(["RAI_NEW", "rdma_open", "rdma_y"])
        );
        assert!(verbs.names(&code).into_iter().eq(["ibv_x"]));
    }

    #[test]
    fn patterns_fit_whole_names_or_their_beginnings() {
        let groups =
            Group::all("# A\nb\n    ibv_mw*\n    ibv_dm x\n[not in verbs_sys]\nc\n    y\n");
        let fits = |name| groups.iter().position(|group| group.fits(name));
        assert_eq!(
            ["ibv_mw", "ibv_mw_bind", "ibv_dm", "x"].map(fits),
            [Some(0); 4]
        );
        assert_eq!(["ibv_dm_mask", "ibv_m"].map(fits), [None; 2]);
        assert_eq!(fits("y"), Some(1));
        assert!(groups[0].is_in_sys && !groups[1].is_in_sys);
    }

    #[test]
    fn every_name_has_an_item_or_a_reason() {
        let [page, _] = PAGES;
        let mut items = Items::new();
        items.insert("ibv_open".into(), vec!["crate::Device::open".into()]);
        items.insert("ibv_import".into(), vec!["crate::Pd::from_raw".into()]);
        let origin = page.origin("1");
        let names = BTreeSet::from(["ibv_import", "ibv_open", "ibv_flow_spec"]);
        let text = page.page(&names, &origin, &items).unwrap();
        assert!(text.contains("| `ibv_open` | [`Device::open`](crate::Device::open) |"));
        let import = "| `ibv_import` | [`verbs_sys::ibv_import`](crate::verbs_sys::ibv_import), \
                      then [`Pd::from_raw`](crate::Pd::from_raw) |";
        assert!(text.contains(import), "{text}");
        let raw = "offloads and pacing.\n\n  [`ibv_flow_spec`](crate::verbs_sys::ibv_flow_spec)\n";
        assert!(text.contains(raw), "{text}");
        for unknown in ["ibv_unheard_of", "UNHEARD_OF"] {
            let names = BTreeSet::from(["ibv_open", unknown]);
            let error = page.page(&names, &origin, &items).unwrap_err();
            assert!(error.to_string().ends_with(&format!(": {unknown}")));
        }
    }
}
