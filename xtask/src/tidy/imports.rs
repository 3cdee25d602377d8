//! The rule for a crate's layers: no circle of files, or of folders, that import one another.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::source::{Finding, Source};

/// The crates that have layers.
const CRATES: [&str; 3] = ["verbs-core", "verbs-channel", "verbs-async"];

/// A module or an item: its segments from the crate's root.
type Place = Vec<String>;

/// Every circle in a folder, of its files and of the folders in it, at the first. A circle of files of different folders
/// is one of folders.
pub(super) fn circles(sources: &[Source]) -> Vec<(&Source, Finding)> {
    let of_crate = |name: &&str| circles_below(sources, &Path::new(name).join("src"));
    CRATES.iter().flat_map(of_crate).collect()
}

fn circles_below<'s>(sources: &'s [Source], src: &Path) -> Vec<(&'s Source, Finding)> {
    let mut modules = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is("rs")) {
        if let Ok(path) = source.path.strip_prefix(src) {
            modules.insert(place_of(path), Module::of(source));
        }
    }
    let tests: Vec<Place> = modules
        .iter()
        .flat_map(|(place, module)| module.tests.iter().map(|test| child(place, test)))
        .collect();
    modules.retain(|place, _| !tests.iter().any(|test| place.starts_with(test)));
    let arrows: Vec<(&Place, &Place)> = modules
        .iter()
        .flat_map(|(place, module)| {
            let imported = imported(place, module, &modules);
            imported.into_iter().map(move |to| (place, to))
        })
        .collect();
    let folders = modules
        .keys()
        .filter_map(|place| Some(place.split_last()?.1));
    let folders: BTreeSet<&[String]> = folders.collect();
    let mut found = Vec::new();
    for folder in folders {
        let mut rooms: BTreeMap<&[String], BTreeSet<&[String]>> = BTreeMap::new();
        let arrows = arrows
            .iter()
            .filter_map(|(from, to)| Some((room(folder, from)?, room(folder, to)?)));
        for (from, to) in arrows.filter(|(from, to)| from != to) {
            rooms.entry(from).or_default().insert(to);
        }
        let reached: BTreeMap<&[String], BTreeSet<&[String]>> = rooms
            .keys()
            .map(|from| (*from, reached(from, &rooms)))
            .collect();
        let mut seen = BTreeSet::new();
        for (place, from_here) in &reached {
            let is_mutual = |other: &&&[String]| {
                reached
                    .get(**other)
                    .is_some_and(|back| back.contains(place))
            };
            let circle: Vec<&[String]> = from_here.iter().filter(is_mutual).copied().collect();
            if circle.len() > 1 && !seen.contains(place) {
                let names: Vec<String> = circle.iter().map(|place| place.join("::")).collect();
                let message = format!("these import one another: {}", names.join(", "));
                seen.extend(circle);
                let finding = Finding::new(0, "circle", message);
                found.push((modules[*place].source, finding));
            }
        }
    }
    found
}

/// The file or folder of a folder that a place is in; the folder's own place if it is its `mod.rs`.
fn room<'p>(folder: &[String], place: &'p Place) -> Option<&'p [String]> {
    let len = place.len().min(folder.len() + 1);
    place.starts_with(folder).then(|| &place[..len])
}

/// The imports of a file.
struct Module<'s> {
    source: &'s Source,
    /// Imports by their local names: the path as written, and whether it is only handed on.
    imports: BTreeMap<String, (Vec<String>, bool)>,
    /// The modules below that are for tests only.
    tests: Vec<String>,
}

impl<'s> Module<'s> {
    fn of(source: &'s Source) -> Self {
        let code = source.text.split("#[cfg(test)]\nmod tests {").next();
        let code = code.unwrap_or_default().split_inclusive('\n');
        let code: String = code
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect();
        let uses: Vec<(bool, &str)> = uses(&code).collect();
        let mut imports = BTreeMap::new();
        for (is_public, tree) in &uses {
            for (name, path) in paths(tree) {
                let in_uses: usize = uses.iter().map(|(_, tree)| count(tree, &name)).sum();
                let is_handed_on = *is_public && count(&code, &name) == in_uses;
                imports.insert(name, (path, is_handed_on));
            }
        }
        let after_cfg = code.split("#[cfg(test)]\nmod ").skip(1);
        let tests = after_cfg.filter_map(|rest| Some(rest.split_once(';')?.0.to_owned()));
        Self {
            source,
            imports,
            tests: tests.collect(),
        }
    }
}

/// The files that a file imports from. The root counts for none: it names what others define.
fn imported<'m>(
    place: &Place,
    module: &Module<'_>,
    modules: &'m BTreeMap<Place, Module<'_>>,
) -> BTreeSet<&'m Place> {
    let used = module.imports.values().filter(|(_, handed_on)| !handed_on);
    let targets =
        used.filter_map(|(path, _)| definer(&absolute(path, place, modules)?, modules, 0));
    targets
        .filter(|target| !target.is_empty() && *target != place)
        .collect()
}

/// A path from the crate's root, if it is one of this crate.
fn absolute(path: &[String], here: &Place, modules: &BTreeMap<Place, Module<'_>>) -> Option<Place> {
    let (first, rest) = path.split_first()?;
    let mut base = here.clone();
    match first.as_str() {
        "crate" => base.clear(),
        "self" => {}
        "super" => drop(base.pop()?),
        name if modules.contains_key(&child(here, name)) => base.push(name.to_owned()),
        _ => return None,
    }
    for segment in rest {
        match segment.as_str() {
            "super" => drop(base.pop()?),
            name => base.push(name.to_owned()),
        }
    }
    Some(base)
}

/// The file that defines what is at this place, through what others hand on.
fn definer<'m>(
    path: &Place,
    modules: &'m BTreeMap<Place, Module<'_>>,
    depth: usize,
) -> Option<&'m Place> {
    let depth_of_file = (0..=path.len())
        .rev()
        .find(|len| modules.contains_key(&path[..*len]))?;
    let (file, rest) = path.split_at(depth_of_file);
    let (file, module) = modules.get_key_value(file)?;
    if let Some(name) = rest.first()
        && let Some((handed_on, _)) = module.imports.get(name)
        && depth < 8
        && let Some(path) = absolute(handed_on, file, modules)
    {
        return definer(&path, modules, depth + 1);
    }
    Some(file)
}

/// All that can be reached by imports.
fn reached<'m>(
    from: &[String],
    arrows: &BTreeMap<&'m [String], BTreeSet<&'m [String]>>,
) -> BTreeSet<&'m [String]> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&[String]> = arrows[from].iter().copied().collect();
    while let Some(place) = next.pop() {
        if reached.insert(place) {
            next.extend(arrows.get(place).into_iter().flatten());
        }
    }
    reached
}

/// The module that a file is, by its path below `src`.
fn place_of(path: &Path) -> Place {
    let mut place: Place = path
        .with_extension("")
        .iter()
        .map(|segment| segment.to_string_lossy().into_owned())
        .collect();
    if place
        .last()
        .is_some_and(|last| last == "mod" || last == "lib")
    {
        place.pop();
    }
    place
}

fn child(place: &Place, name: &str) -> Place {
    let mut child = place.clone();
    child.push(name.to_owned());
    child
}

/// How often a word stands by itself.
fn count(text: &str, word: &str) -> usize {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|each| *each == word).count()
}

/// The `use` statements at the start of a line: whether each is public, and its tree.
fn uses(code: &str) -> impl Iterator<Item = (bool, &str)> {
    let starts = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "];
    let mut at = 0;
    let lines = code.split_inclusive('\n').map(move |line| {
        at += line.len();
        (at - line.len(), line)
    });
    lines.filter_map(move |(at, line)| {
        let start = starts.iter().find(|start| line.starts_with(**start))?;
        let (tree, _) = code[at + start.len()..].split_once(';')?;
        Some((start.starts_with("pub"), tree))
    })
}

/// The names that a tree of imports gives, and their paths.
fn paths(tree: &str) -> Vec<(String, Vec<String>)> {
    let tree = tree.trim();
    let Some((base, inner)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, tree));
        let path: Vec<String> = path
            .split("::")
            .map(|part| part.trim().to_owned())
            .collect();
        let name = name.rsplit("::").next().unwrap_or_default().trim();
        return vec![(name.to_owned(), path)];
    };
    let base: Vec<String> = base
        .split("::")
        .map(|part| part.trim().to_owned())
        .filter(|part| !part.is_empty())
        .collect();
    let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
    let mut found = Vec::new();
    for part in split_at_commas(inner) {
        for (name, path) in paths(part) {
            let is_self = path == ["self"];
            let name = base.last().filter(|_| is_self).cloned().unwrap_or(name);
            let rest = path.into_iter().filter(|part| part != "self");
            found.push((name, base.iter().cloned().chain(rest).collect()));
        }
    }
    found
}

/// The parts of a list, some of which may be lists.
fn split_at_commas(list: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = list.split(move |c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let source =
            |(path, text): &(&str, &str)| Source::new(format!("verbs-async/src/{path}"), *text);
        let sources: Vec<Source> = files.iter().map(source).collect();
        let circles = circles(&sources);
        circles
            .into_iter()
            .map(|(_, finding)| finding.message)
            .collect()
    }

    #[test]
    fn a_circle_through_what_a_module_hands_on_is_found() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use a::A;\n"),
            ("a/mod.rs", "mod inner;\npub use inner::A;\n"),
            ("a/inner.rs", "use crate::b::B;\npub struct A(B);\n"),
            ("b.rs", "use crate::A;\npub struct B(Box<A>);\n"),
        ];
        assert_eq!(found(&files), ["these import one another: a, b"]);
    }

    /// No file of these imports one that imports it.
    #[test]
    fn a_circle_of_folders_is_found() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a/mod.rs", "mod upper;\nmod lower;\n"),
            ("a/upper.rs", "use crate::b::inner::B;\npub struct A(B);\n"),
            ("a/lower.rs", "pub struct C;\n"),
            ("b/mod.rs", "pub(crate) mod inner;\n"),
            ("b/inner.rs", "use crate::a::lower::C;\npub struct B(C);\n"),
        ];
        assert_eq!(found(&files), ["these import one another: a, b"]);
    }

    #[test]
    fn layers_tests_and_what_is_handed_on_are_no_circle() {
        let files = [
            (
                "lib.rs",
                "mod a;\nmod b;\npub use {a::A, b::B};\n#[cfg(test)]\nmod all;\n",
            ),
            ("a/mod.rs", "mod inner;\npub use inner::{self, A};\n"),
            (
                "a/inner.rs",
                "pub struct A;\n#[cfg(test)]\nmod tests {\nuse crate::b::B;\n}\n",
            ),
            (
                "b.rs",
                "use std::fmt;\nuse crate::a::A;\npub struct B(A);\n",
            ),
            ("all.rs", "use crate::a::A;\n"),
        ];
        assert!(found(&files).is_empty(), "{:?}", found(&files));
    }

    #[test]
    fn a_child_and_a_parent_that_use_each_other_are_a_circle() {
        let files = [
            ("lib.rs", "mod a;\n"),
            ("a/mod.rs", "mod b;\nuse b::B;\npub struct A(B);\n"),
            ("a/b.rs", "use super::A;\npub struct B(Box<A>);\n"),
        ];
        assert_eq!(found(&files), ["these import one another: a, a::b"]);
    }
}
