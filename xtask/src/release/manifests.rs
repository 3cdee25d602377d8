//! Manifests and changelogs of the published crates.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use tinyjson::JsonValue;

use crate::error::{Context as _, Error};
use crate::process::output;
use crate::test::report::Report;
use crate::workspace::{self, at, text};

/// The least number of releases of Rust from the oldest that is promised to the current one.
const SLACK: u32 = 2;

/// The crates that share one version.
const TOGETHER: [&str; 3] = ["verbs-core", "verbs-channel", "verbs-async"];

/// The manifests of all crates that are published.
#[derive(Debug)]
pub(super) struct Manifests {
    pub(super) published: Vec<Manifest>,
    /// The oldest Rust that all of them promise.
    pub(super) rust_version: String,
}

/// One crate's manifest.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) name: String,
    pub(super) repository: Option<String>,
    version: String,
    dir: PathBuf,
    rust_version: Option<String>,
    missing: Vec<&'static str>,
}

impl Manifests {
    pub(super) fn read() -> Result<Self, Error> {
        let args = ["metadata", "--format-version=1", "--no-deps"];
        let metadata = output(&mut workspace::cargo(&args))?;
        let published = metadata.parse().ok().as_ref().and_then(published);
        let published =
            published.ok_or_else(|| Error::new("`cargo metadata` is not as expected"))?;
        let versions = published
            .iter()
            .filter_map(|manifest| manifest.rust_version.as_deref());
        let rust_version = versions.max_by_key(|version| minor(version));
        let rust_version =
            rust_version.ok_or_else(|| Error::new("no crate has a `rust-version`"))?;
        Ok(Self {
            rust_version: rust_version.to_owned(),
            published,
        })
    }

    /// The arguments that name all of them to cargo.
    pub(super) fn packages(&self) -> impl Iterator<Item = String> {
        self.published
            .iter()
            .map(|manifest| format!("--package={}", manifest.name))
    }

    /// The version of the crate with this name.
    pub(super) fn version_of(&self, name: &str) -> Result<&str, Error> {
        let mut published = self.published.iter();
        let manifest = published.find(|manifest| manifest.name == name);
        let manifest = manifest.ok_or_else(|| Error::new(format!("no package is `{name}`")))?;
        Ok(&manifest.version)
    }

    /// Each says what crates.io shows, has its licences and its changelog; those that go together have one
    /// version.
    pub(super) fn check(&self, report: &mut Report) {
        let step = report.start("manifests and changelogs");
        let before = report.failures();
        for manifest in &self.published {
            manifest.check(report);
        }
        let versions = self
            .published
            .iter()
            .filter(|manifest| TOGETHER.contains(&&*manifest.name));
        let versions: Vec<&str> = versions.map(|manifest| &*manifest.version).collect();
        let are_same = versions.windows(2).all(|pair| pair[0] == pair[1]);
        match are_same && versions.len() == TOGETHER.len() {
            true => report.pass(1),
            false => report.fail(
                format!("manifests: {TOGETHER:?} share one version, but have {versions:?}"),
                1,
            ),
        }
        let unknown = self
            .published
            .iter()
            .filter(|manifest| manifest.repository.is_none());
        let unknown: Vec<&str> = unknown.map(|manifest| &*manifest.name).collect();
        if !unknown.is_empty() {
            report.skip(format!(
                "`repository` of {}: missing, as its address is not known yet (set it in the manifests)",
                unknown.join(", ")
            ));
        }
        step.end(
            report,
            if report.failures() == before {
                "ok"
            } else {
                "FAILED"
            },
        );
    }

    /// The oldest Rust that is promised was no news when the current one was released.
    pub(super) fn check_slack(&self, report: &mut Report, current: &str) {
        let Self { rust_version, .. } = self;
        match (minor(rust_version), minor(current)) {
            (Some(oldest), Some(now)) if oldest + SLACK <= now => report.pass(1),
            _ => report.fail(
                format!(
                    "`rust-version` is {rust_version}, and this is Rust {current}: at least {SLACK} \
                     releases between them are promised"
                ),
                1,
            ),
        }
    }

    /// No library asks, by its manifest, for a newer Rust than the crates promise.
    pub(super) fn check_dependencies(&self, report: &mut Report) -> Result<(), Error> {
        let mut command = workspace::cargo(&["tree", "--all-features", "--edges=normal,build"]);
        command.args(["--prefix=none", "--format={p}"]);
        let tree = output(command.args(self.packages()))?;
        let metadata = workspace::cargo(&["metadata", "--format-version=1", "--all-features"]);
        let metadata = output(&mut { metadata })?.parse().ok();
        let versions = metadata.as_ref().and_then(rust_versions);
        let versions = versions.ok_or_else(|| Error::new("`cargo metadata` is not as expected"))?;
        let newer = newer(&tree, &versions, &self.rust_version);
        if newer.is_empty() {
            report.pass(1);
        }
        for newer in newer {
            report.fail(
                format!(
                    "dependencies: {newer}, and `rust-version` is {}",
                    self.rust_version
                ),
                1,
            );
        }
        Ok(())
    }
}

impl Manifest {
    fn from_json(package: &JsonValue) -> Option<Self> {
        let name = text(package, &["name"])?.to_owned();
        let owned = |key: &str| text(package, &[key]).map(str::to_owned);
        let is_missing = |key: &&'static str| match at(package, &[key]) {
            Some(JsonValue::String(text)) => text.is_empty(),
            Some(JsonValue::Array(list)) => list.is_empty(),
            _ => true,
        };
        let shown = [
            "description",
            "license",
            "readme",
            "documentation",
            "keywords",
            "categories",
            "rust_version",
        ];
        let mut missing: Vec<_> = shown.into_iter().filter(is_missing).collect();
        if !has_docs_flags(package) {
            missing.push("package.metadata.docs.rs");
        }
        Some(Self {
            repository: owned("repository"),
            version: owned("version")?,
            dir: Path::new(text(package, &["manifest_path"])?)
                .parent()?
                .to_path_buf(),
            rust_version: owned("rust_version"),
            missing,
            name,
        })
    }

    fn check(&self, report: &mut Report) {
        let Self { name, missing, .. } = self;
        if !missing.is_empty() {
            let missing = missing.join("`, `");
            report.fail(format!("manifests: that of {name} lacks `{missing}`"), 1);
        }
        for file in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
            if !self.dir.join(file).is_file() {
                report.fail(format!("manifests: {name} has no {file}"), 1);
            }
        }
        let changelog = self.dir.join("CHANGELOG.md");
        match fs::read_to_string(&changelog).context(|| format!("cannot read {}", changelog.display())) {
            Err(error) => report.fail(format!("changelogs: {error}"), 1),
            Ok(text) => match Entry::find(&text, &self.version) {
                Entry::Released => report.pass(1),
                Entry::Unreleased => report.skip(format!(
                    "changelog of {name}: its entry is still `Unreleased` (it gets the version and the day \
                     when it is released)"
                )),
                Entry::Missing => report.fail(
                    format!("changelogs: that of {name} tells nothing of {}", self.version),
                    1,
                ),
            },
        }
    }
}

/// A changelog's entry for the version to be released.
#[derive(Debug, PartialEq)]
enum Entry {
    Released,
    Unreleased,
    Missing,
}

impl Entry {
    /// Looks for the newest entry: `## [0.1.0] - 2026-12-01`, `## 0.1.0` or `## Unreleased`, with an item.
    fn find(changelog: &str, version: &str) -> Self {
        let mut sections = changelog.split("\n## ").skip(1);
        let newest = sections.next().filter(|section| section.contains("\n- "));
        let title = newest
            .and_then(|section| section.lines().next())
            .unwrap_or_default();
        let word = title.split_whitespace().next().unwrap_or_default();
        // The part after the `+` tells what it was made with.
        let number = version
            .split_once('+')
            .map_or(version, |(number, _)| number);
        match word.trim_start_matches('[').trim_end_matches(']') {
            "Unreleased" => Self::Unreleased,
            word if word == version || word == number => Self::Released,
            _ => Self::Missing,
        }
    }
}

fn published(metadata: &JsonValue) -> Option<Vec<Manifest>> {
    let packages: &Vec<JsonValue> = at(metadata, &["packages"])?.get()?;
    // `publish = false` is an empty list of registries.
    let is_private = |package: &&JsonValue| {
        let registries =
            at(package, &["publish"]).and_then(|publish| publish.get::<Vec<JsonValue>>());
        registries.is_some_and(Vec::is_empty)
    };
    let public = packages.iter().filter(|package| !is_private(package));
    public.map(Manifest::from_json).collect()
}

/// Whether docs.rs is told to build with all features, and with the flag that labels what they add.
fn has_docs_flags(package: &JsonValue) -> bool {
    let value = |key| at(package, &["metadata", "docs", "rs", key]);
    let arguments = value("rustdoc-args").and_then(|list| list.get::<Vec<JsonValue>>());
    let is_flag = |pair: &[JsonValue]| {
        let pair = pair.iter().map(|argument| text(argument, &[]));
        pair.eq([Some("--cfg"), Some("docsrs")])
    };
    value("all-features").and_then(JsonValue::get) == Some(&true)
        && arguments.is_some_and(|arguments| arguments.windows(2).any(is_flag))
}

/// The `rust-version` of each package, by `NAME vVERSION`.
fn rust_versions(metadata: &JsonValue) -> Option<HashMap<String, String>> {
    let packages: &Vec<JsonValue> = at(metadata, &["packages"])?.get()?;
    let versions = packages.iter().filter_map(|package| {
        let rust = text(package, &["rust_version"])?;
        let (name, version) = (text(package, &["name"])?, text(package, &["version"])?);
        Some((format!("{name} v{version}"), rust.to_owned()))
    });
    Some(versions.collect())
}

/// Which packages of `tree`, lines of `NAME vVERSION …`, want a newer Rust than `promised`.
fn newer(tree: &str, versions: &HashMap<String, String>, promised: &str) -> Vec<String> {
    let mut newer: Vec<String> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let package = format!("{} {}", words.next()?, words.next()?);
            let wants = versions.get(&package)?;
            (minor(wants) > minor(promised)).then(|| format!("{package} wants Rust {wants}"))
        })
        .collect();
    newer.sort();
    newer.dedup();
    newer
}

/// The second number of a version of Rust.
fn minor(version: &str) -> Option<u32> {
    version.split('.').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_entry_of_a_changelog_is_looked_at() {
        let entry = |text: &str| Entry::find(text, "0.2.0+44.0");
        assert_eq!(entry("# C\n\n## Unreleased\n\n- New.\n"), Entry::Unreleased);
        assert_eq!(
            entry("# C\n\n## [Unreleased]\n\n- New.\n"),
            Entry::Unreleased
        );
        assert_eq!(
            entry("# C\n\n## [0.2.0] - 2026-12-01\n\n- New.\n"),
            Entry::Released
        );
        assert_eq!(entry("# C\n\n## 0.2.0+44.0\n\n- New.\n"), Entry::Released);
        assert_eq!(entry("# C\n\n## 0.1.0\n\n- Old.\n"), Entry::Missing);
        // An entry without an item, before that of an old version.
        assert_eq!(
            entry("# C\n\n## Unreleased\n\n## 0.1.0\n\n- Old.\n"),
            Entry::Missing
        );
        assert_eq!(entry("# C\n"), Entry::Missing);
    }

    #[test]
    fn a_manifest_that_lacks_something_names_it() {
        let package = r#"{"name": "a", "version": "1.0.0", "manifest_path": "/w/a/Cargo.toml",
            "description": "A.", "license": "MIT", "readme": "README.md", "documentation": null,
            "keywords": [], "categories": ["x"], "rust_version": "1.88", "repository": null,
            "metadata": {"docs": {"rs": {"all-features": true, "rustdoc-args": ["--cfg", "docsrs"]}}}}"#;
        let manifest = |package: &str| Manifest::from_json(&package.parse().unwrap()).unwrap();
        assert_eq!(manifest(package).missing, ["documentation", "keywords"]);
        assert_eq!(manifest(package).repository, None);
        let package = package.replace("docsrs", "docs");
        let missing = manifest(&package).missing;
        assert_eq!(missing.last(), Some(&"package.metadata.docs.rs"));
    }

    #[test]
    fn crates_that_are_not_published_are_left_out() {
        let metadata = r#"{"packages": [
            {"name": "a", "version": "1.0.0", "manifest_path": "/w/a/Cargo.toml", "publish": null},
            {"name": "b", "version": "1.0.0", "manifest_path": "/w/b/Cargo.toml", "publish": []}]}"#;
        let published = published(&metadata.parse().unwrap()).unwrap();
        assert_eq!(published.len(), 1);
        assert_eq!(published[0].name, "a");
    }

    #[test]
    fn a_dependency_that_wants_a_newer_rust_is_named_once() {
        let versions = [
            ("a v1.0.0", "1.88"),
            ("b v2.0.0", "1.90.0"),
            ("c v1.0.0", "1.99"),
        ];
        let versions = versions.map(|(package, rust)| (package.to_owned(), rust.to_owned()));
        let tree = "a v1.0.0 (/w/a)\nb v2.0.0\nb v2.0.0 (*)\nd v1.0.0\n";
        let found = newer(tree, &versions.into_iter().collect(), "1.88");
        assert_eq!(found, ["b v2.0.0 wants Rust 1.90.0"]);
    }

    #[test]
    fn a_rust_that_was_just_released_is_no_promise() {
        let manifests = |rust_version: &str| Manifests {
            published: vec![],
            rust_version: rust_version.into(),
        };
        let mut report = Report::beside();
        manifests("1.88").check_slack(&mut report, "1.90.0");
        assert_eq!(report.failures(), 0);
        manifests("1.88").check_slack(&mut report, "1.89.0");
        assert_eq!(report.failures(), 1);
    }
}
