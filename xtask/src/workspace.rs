//! The workspace that this task runner belongs to: where it is, its files, and its cargo.

use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tinyjson::JsonValue;

use crate::error::{Context as _, Error};
use crate::process::{display, output};
use crate::progress::Progress;
use crate::stream::{self, Limits, Text};

/// The folder of the workspace's `Cargo.toml`.
pub(crate) fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

/// The cargo that runs this program, to be run in the workspace's folder.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.args(args).current_dir(root());
    command
}

/// The workspace as `cargo metadata` prints it.
fn metadata() -> Result<JsonValue, Error> {
    let text = output(&mut cargo(&["metadata", "--format-version=1", "--no-deps"]))?;
    let json = text.parse().ok();
    json.ok_or_else(|| Error::new("`cargo metadata` prints no JSON"))
}

/// Cargo's target folder.
pub(crate) fn target_dir() -> Result<PathBuf, Error> {
    let metadata = metadata()?;
    let target = text(&metadata, &["target_directory"]).map(PathBuf::from);
    target.ok_or_else(|| Error::new("`cargo metadata` names no target folder"))
}

/// A folder below it for what this program makes.
pub(crate) fn scratch_dir() -> Result<PathBuf, Error> {
    let dir = target_dir()?.join("xtask");
    fs::create_dir_all(&dir).context(|| format!("cannot make the folder {}", dir.display()))?;
    Ok(dir)
}

/// The features with which tests are built: all but those that are for other builds. Without `dlopen`,
/// libibverbs is linked, as it is in most programs; a test of its own builds with the feature. The task
/// runner's are tests of minutes.
pub(crate) fn test_features() -> Result<String, Error> {
    let features = features_of(&metadata()?);
    features.ok_or_else(|| Error::new("`cargo metadata` names no features"))
}

fn features_of(metadata: &JsonValue) -> Option<String> {
    let packages: &Vec<JsonValue> = at(metadata, &["packages"])?.get()?;
    let mut all = Vec::new();
    for package in packages {
        let name = text(package, &["name"])?;
        if matches!(name, "xtask" | "cargo-soft-roce") {
            continue;
        }
        let features: &HashMap<String, JsonValue> = at(package, &["features"])?.get()?;
        let ours = features.keys().filter(|feature| *feature != "dlopen");
        all.extend(ours.map(|feature| format!("{name}/{feature}")));
    }
    all.sort();
    Some(format!("--features={}", all.join(",")))
}

/// Something that cargo built.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Artifact {
    /// The package's name.
    pub(crate) package: String,
    /// The package's folder.
    pub(crate) dir: PathBuf,
    /// The target's name: that of a library, program, test or bench.
    pub(crate) target: String,
    /// The target's kind: `lib`, `bin`, `test`, `bench`, …
    pub(crate) kind: String,
    /// Whether it is a program of tests.
    pub(crate) is_test: bool,
    /// The program's file.
    pub(crate) executable: PathBuf,
}

/// Builds with `cargo ARGS`, which has to have `--message-format=json-render-diagnostics` among
/// its words, and returns the programs that came of it.
pub(crate) fn build(args: &[&str]) -> Result<Vec<Artifact>, Error> {
    let _shown = Progress::of("building");
    let mut command = cargo(args);
    let mut artifacts = Vec::new();
    let end = stream::run_shown(&mut command, BUILD, |text| {
        if let Text::Line(line) = text {
            artifacts.extend(artifact(line));
        }
    })?;
    match end.failure() {
        None => Ok(artifacts),
        Some((why, code)) => {
            let message = format!("`{}` failed: {why}", display(&command));
            Err(Error::new(message).with_code(code))
        }
    }
}

/// So long may a build take, of which nothing may be printed: cargo's messages go to stderr.
const BUILD: Limits = Limits {
    total: Duration::from_secs(60 * 60),
    silence: Duration::from_secs(60 * 60),
};

/// The file of the example called `name`.
pub(crate) fn example<'a>(examples: &'a [Artifact], name: &str) -> Result<&'a Path, Error> {
    // The tests of a program are a program of the same name.
    let is_it = |artifact: &&Artifact| {
        artifact.kind == "bin" && !artifact.is_test && artifact.target == name
    };
    let found = examples.iter().find(is_it);
    let found =
        found.ok_or_else(|| Error::new(format!("the examples have no program `{name}`")))?;
    Ok(&found.executable)
}

/// The program in one of cargo's JSON messages.
fn artifact(line: &str) -> Option<Artifact> {
    let json: JsonValue = line.parse().ok()?;
    if text(&json, &["reason"])? != "compiler-artifact" {
        return None;
    }
    let executable = PathBuf::from(text(&json, &["executable"])?);
    let manifest = Path::new(text(&json, &["manifest_path"])?);
    let dir = manifest.parent()?.to_path_buf();
    // `path+file:///dir/verbs-core#0.1.0` or, in a folder of another name, `path+file:///dir/x#verbs-core@0.1.0`.
    let (_, fragment) = text(&json, &["package_id"])?.rsplit_once('#')?;
    let package = match fragment.split_once('@') {
        Some((name, _)) => name,
        None => dir.file_name()?.to_str()?,
    };
    let kinds: &Vec<JsonValue> = at(&json, &["target", "kind"])?.get()?;
    Some(Artifact {
        package: package.to_owned(),
        dir,
        target: text(&json, &["target", "name"])?.to_owned(),
        kind: text(kinds.first()?, &[])?.to_owned(),
        is_test: at(&json, &["profile", "test"])?.get() == Some(&true),
        executable,
    })
}

/// The value in nested objects under these keys.
pub(crate) fn at<'a>(json: &'a JsonValue, keys: &[&str]) -> Option<&'a JsonValue> {
    keys.iter().try_fold(json, |json, key| {
        let object: &HashMap<String, JsonValue> = json.get()?;
        object.get(*key)
    })
}

/// The text in nested objects under these keys.
pub(crate) fn text<'a>(json: &'a JsonValue, keys: &[&str]) -> Option<&'a str> {
    at(json, keys)?.get::<String>().map(String::as_str)
}

/// Every file of the project, relative to its root and sorted: all but what git ignores.
pub(crate) fn files() -> Result<Vec<PathBuf>, Error> {
    let mut list = Command::new("git");
    list.args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let listed = output(list.current_dir(root()))?;
    // Some may have been removed since.
    let is_there = |path: &PathBuf| root().join(path).is_file();
    let mut files: Vec<PathBuf> = listed
        .split('\0')
        .map(PathBuf::from)
        .filter(is_there)
        .collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::{artifact, files};
    use std::path::Path;

    #[test]
    fn a_test_program_is_read_from_cargo_s_messages() {
        let line = r#"{"reason":"compiler-artifact",
            "package_id":"path+file:///w/verbs-core#0.1.0","manifest_path":"/w/verbs-core/Cargo.toml",
            "target":{"kind":["test"],"crate_types":["bin"],"name":"device","test":true},
            "profile":{"test":true},"executable":"/w/target/debug/deps/device-1","fresh":true}"#;
        let found = artifact(line).unwrap();
        assert_eq!(found.package, "verbs-core");
        let long = artifact(&line.replace("#0.1.0", "#soft-nic@0.1.0")).unwrap();
        assert_eq!(long.package, "soft-nic");
        assert_eq!(found.kind, "test");
        assert!(found.is_test);
        assert_eq!(found.dir, Path::new("/w/verbs-core"));
        assert_eq!(found.executable, Path::new("/w/target/debug/deps/device-1"));
    }

    #[test]
    fn a_library_is_no_program() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/a#0.1.0",
            "manifest_path":"/w/a/Cargo.toml","target":{"kind":["lib"],"name":"a"},"executable":null}"#;
        assert_eq!(artifact(line), None);
        assert_eq!(
            artifact(r#"{"reason":"build-finished","success":true}"#),
            None
        );
    }

    #[test]
    fn the_project_s_files_include_this_one_and_nothing_built() {
        let files = files().unwrap();
        assert!(
            files
                .iter()
                .any(|file| file == Path::new("xtask/src/workspace.rs"))
        );
        assert!(!files.iter().any(|file| file.starts_with("target")));
    }
}
