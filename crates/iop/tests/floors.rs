//! Crates stand on floors and arrows only point down: kept by reading the workspace itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// The floors of ARCHITECTURE.md, lowest first. Crates on one floor do not know each other.
const FLOORS: [&[&str]; 7] = [
    &["iop-types"],
    &["iop-wire", "iop-dialect"],
    &[
        "iop-link",
        "iop-execution",
        "iop-dispatch",
        "iop-admission",
        "iop-config",
        "iop-identity",
        "iop-lease",
        "iop-vault",
    ],
    &["iop-net", "iop-store"],
    &["iop-adapters"],
    &["iop-edge", "iop-node"],
    &["iop"],
];

/// Stand beside the house: nothing may depend on them outside of tests.
const OUTSIDE: [&str; 4] = ["iop-testkit", "iop-sim", "iop-bench", "iop-loom"];

/// What only the hands may use: a crate that decides opens no socket, starts no task and reads no
/// clock. (`tokio` alone is not telling: its features are.)
const HANDS_ONLY: [&str; 7] =
    ["tokio", "tokio-util", "hyper", "hyper-util", "socket2", "rusqlite", "jiff"];

fn packages() -> Vec<Package> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let metadata = MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .other_options(vec!["--offline".to_owned()])
        .exec()
        .expect("cargo describes this workspace");
    metadata.packages
}

fn normal_dependencies(package: &Package) -> impl Iterator<Item = &str> {
    package
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind != DependencyKind::Development)
        .map(|dependency| dependency.name.as_str())
}

fn floors() -> BTreeMap<&'static str, usize> {
    FLOORS
        .iter()
        .enumerate()
        .flat_map(|(floor, crates)| crates.iter().map(move |name| (*name, floor)))
        .collect()
}

#[test]
fn every_crate_has_a_floor() {
    let floors = floors();
    for package in packages() {
        let name = package.name.as_str();
        assert!(
            floors.contains_key(name) || OUTSIDE.contains(&name),
            "{name} stands on no floor: give it one in ARCHITECTURE.md and here"
        );
    }
}

#[test]
fn arrows_only_point_down() {
    let floors = floors();
    for package in packages() {
        let name = package.name.as_str();
        let Some(own) = floors.get(name) else { continue };
        for dependency in normal_dependencies(&package) {
            assert!(
                !OUTSIDE.contains(&dependency),
                "{name} depends on {dependency} outside of tests"
            );
            if let Some(other) = floors.get(dependency) {
                assert!(
                    other < own,
                    "{name} (floor {own}) depends on {dependency} (floor {other})"
                );
            }
        }
    }
}

#[test]
fn crates_that_decide_touch_no_socket_clock_or_task() {
    let floors = floors();
    for package in packages() {
        let name = package.name.as_str();
        let Some(..=2) = floors.get(name) else { continue };
        for dependency in normal_dependencies(&package) {
            assert!(
                !HANDS_ONLY.contains(&dependency),
                "{name} decides, and depends on {dependency}"
            );
        }
    }
}

/// What the standard library offers to whoever wants to know the time, or to touch the world. Iteration
/// of its hash maps is another on each run.
const OF_THE_WORLD: [&str; 8] = [
    "Instant::now",
    "SystemTime::now",
    ".elapsed()",
    "TcpStream",
    "TcpListener",
    "thread::",
    "fs::",
    "HashMap",
];

/// Time comes as an argument, so that a wall clock that is set and a process that stood still are the
/// business of the hosts alone.
#[test]
fn crates_that_decide_ask_nobody_for_the_time_and_keep_no_hash_maps() {
    let floors = floors();
    let mut files = 0;
    for package in packages() {
        let Some(..=2) = floors.get(package.name.as_str()) else { continue };
        let source = package.manifest_path.with_file_name("src");
        for (path, text) in sources(source.as_std_path()) {
            files += 1;
            for (number, line) in text.lines().enumerate() {
                let is_comment = line.trim_start().starts_with("//");
                let found = OF_THE_WORLD.iter().find(|name| !is_comment && line.contains(**name));
                assert_eq!(found, None, "{}:{}: {line}", path.display(), number + 1);
            }
        }
    }
    assert!(files > 50, "these are not all files: {files}");
}

/// The files of a folder without their tests, which stand last or in files of their own.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("its entry").path();
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            let text = std::fs::read_to_string(&path).expect("a file of the workspace");
            let own = text.split_once("#[cfg(test)]\nmod tests").map(|(own, _)| own.to_owned());
            found.push((path, own.unwrap_or(text)));
        }
    }
    found
}

#[test]
fn unsafe_code_is_forbidden_everywhere() {
    for package in packages() {
        let manifest = std::fs::read_to_string(&package.manifest_path).unwrap();
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{} does not take the workspace's lints",
            package.name
        );
    }
}
