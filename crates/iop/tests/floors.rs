//! Crates stand on floors and arrows only point down: kept by reading the workspace itself.

use std::collections::BTreeMap;
use std::path::Path;

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
