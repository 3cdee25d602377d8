//! The documentation of the packages, built as docs.rs builds it: from what is in them, in folders that
//! nothing writes to.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::checkers;
use crate::error::{Context as _, Error};
use crate::process::output;
use crate::test::offline::step;
use crate::test::report::Report;
use crate::workspace;

use super::manifests::Manifests;
use super::{empty, remove};

/// A page with an item that a feature adds, and what a label for it has.
const LABELLED: [(&str, &str); 2] = [
    ("verbs_core/rdmacm/struct.Connector.html", "rdmacm"),
    ("verbs_async/notifier/struct.TokioNotifier.html", "tokio"),
];

/// Unpacks the packages, and builds their documentation with a nightly toolchain and the flags of docs.rs,
/// without the network. Without such a toolchain there are no labels for features: they are skipped.
pub(super) fn docs(
    report: &mut Report,
    manifests: &Manifests,
    scratch: &Path,
) -> Result<(), Error> {
    const TITLE: &str = "documentation as on docs.rs";
    let folder = scratch.join("docs");
    set_writable(&folder, true)?;
    let folder = empty(folder)?;
    let before = report.failures();
    let mut package = workspace::cargo(&["package", "--no-verify", "--locked"]);
    package.args(manifests.packages());
    package.arg("--target-dir").arg(folder.join("packages"));
    step(report, "packages for the documentation", &mut package)?;
    if report.failures() > before {
        return Ok(());
    }
    let sources = unpack(&folder)?;
    set_writable(&sources.join("crates"), false)?;
    let unpacked = contents(&sources.join("crates"))?;

    let args = ["doc", "--lib", "--no-deps", "--all-features", "--offline"];
    let has_nightly = checkers::has(&["--version"]);
    let (mut command, flags) = match has_nightly {
        true => (checkers::nightly(&args), "--cfg docsrs -Dwarnings"),
        false => (workspace::cargo(&args), "-Dwarnings"),
    };
    command.args(manifests.packages()).current_dir(&sources);
    command.arg("--target-dir").arg(folder.join("target"));
    command.env("DOCS_RS", "1").env("RUSTDOCFLAGS", flags);
    step(report, TITLE, &mut command)?;

    let changed = changed(&unpacked, &contents(&sources.join("crates"))?);
    match changed.is_empty() {
        true => report.pass(1),
        false => report.fail(
            format!(
                "{TITLE}: the build wrote to its sources: {}",
                changed.join(", ")
            ),
            1,
        ),
    }
    if !has_nightly {
        report.lacks(format!(
            "{TITLE}: labels for features: no nightly toolchain (rustup toolchain install nightly)"
        ));
    } else if report.failures() == before {
        for (page, feature) in LABELLED {
            let text = fs::read_to_string(folder.join("target/doc").join(page));
            match text.is_ok_and(|text| has_label(&text, feature)) {
                true => report.pass(1),
                false => report.fail(format!("{TITLE}: {page} has no label `{feature}`"), 1),
            }
        }
    }
    set_writable(&folder, true)?;
    remove(&folder)
}

/// Whether a page of rustdoc's says that its item is there with the feature only.
fn has_label(page: &str, feature: &str) -> bool {
    let labels = page.split("class=\"stab portability\"").skip(1);
    let name = format!("<code>{feature}</code>");
    labels
        .filter_map(|rest| rest.split("</span>").next())
        .any(|label| label.contains(&name))
}

/// Makes a workspace of the packages in `folder`, whose crates take each other from it, with the versions of
/// other crates that this workspace has.
fn unpack(folder: &Path) -> Result<PathBuf, Error> {
    let sources = folder.join("sources");
    let crates = sources.join("crates");
    let what = || format!("cannot unpack the packages in {}", folder.display());
    fs::create_dir_all(&crates).context(what)?;
    extract(&folder.join("packages/package"), &crates)?;
    let mut manifest = String::from(
        "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n\n[patch.crates-io]\n",
    );
    for entry in fs::read_dir(&crates).context(what)? {
        let folder = entry.context(what)?.file_name();
        let folder = folder.to_string_lossy();
        // The version begins after the first `-` before a digit: `verbs-sys-0.1.0+44.0`.
        let is_version = |(at, _): &(usize, &str)| {
            folder[at + 1..].starts_with(|first: char| first.is_ascii_digit())
        };
        if let Some((end, _)) = folder.match_indices('-').find(is_version) {
            let name = &folder[..end];
            manifest.push_str(&format!("{name} = {{ path = \"crates/{folder}\" }}\n"));
        }
    }
    fs::write(sources.join("Cargo.toml"), manifest).context(what)?;
    fs::copy(
        workspace::root().join("Cargo.lock"),
        sources.join("Cargo.lock"),
    )
    .context(what)?;
    Ok(sources)
}

/// Extracts all packages in a folder to another.
pub(super) fn extract(packages: &Path, to: &Path) -> Result<(), Error> {
    let what = || format!("cannot unpack the packages in {}", packages.display());
    for entry in fs::read_dir(packages).context(what)? {
        let path = entry.context(what)?.path();
        if path.extension().is_some_and(|ending| ending == "crate") {
            let mut tar = Command::new("tar");
            tar.arg("--extract").arg("--directory").arg(to);
            output(tar.arg("--file").arg(&path))?;
        }
    }
    Ok(())
}

/// Everything below a folder: the contents of files, and nothing for folders.
fn contents(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>, Error> {
    let mut found = BTreeMap::new();
    for path in below(folder).context(|| format!("cannot list {}", folder.display()))? {
        let text = match path.is_dir() {
            true => Vec::new(),
            false => fs::read(&path).context(|| format!("cannot read {}", path.display()))?,
        };
        found.insert(path, text);
    }
    Ok(found)
}

/// Files that were added, removed or written to.
fn changed(before: &BTreeMap<PathBuf, Vec<u8>>, after: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<String> {
    let paths = before.keys().chain(after.keys());
    let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
    let mut changed: Vec<String> = paths
        .filter(differs)
        .map(|path| path.display().to_string())
        .collect();
    changed.sort();
    changed.dedup();
    changed
}

/// Makes a folder that may exist, and all that is in it, writable for its owner, or read-only. Root may write
/// in any case.
fn set_writable(folder: &Path, writable: bool) -> Result<(), Error> {
    if !folder.exists() {
        return Ok(());
    }
    let set = |path: &Path| {
        let mut permissions = fs::symlink_metadata(path)?.permissions();
        let mode = permissions.mode();
        permissions.set_mode(if writable {
            mode | 0o200
        } else {
            mode & !0o222
        });
        fs::set_permissions(path, permissions)
    };
    let all = || {
        set(folder)?;
        below(folder)?.iter().try_for_each(|path| set(path))
    };
    all().context(|| format!("cannot set the permissions of {}", folder.display()))
}

/// All files and folders below a folder; links are not followed, and left out.
fn below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            }
            if kind.is_dir() || kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_written_by_a_build_are_named() {
        let before = [("a", "1"), ("b", "1"), ("c", "1")];
        let after = [("a", "1"), ("b", "2"), ("d", "1")];
        let map = |files: [(&str, &str); 3]| {
            let files = files.map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec()));
            BTreeMap::from(files)
        };
        assert_eq!(changed(&map(before), &map(after)), ["b", "c", "d"]);
        assert!(changed(&map(before), &map(before)).is_empty());
    }

    #[test]
    fn a_label_is_that_of_its_feature() {
        let page = r#"<span class="stab portability" title="Available on crate feature `a` only">
            Available on <strong>crate feature <code>a</code></strong> only.</span> <code>b</code>"#;
        assert!(has_label(page, "a"));
        assert!(!has_label(page, "b"));
        assert!(!has_label("<code>a</code>", "a"));
    }
}
