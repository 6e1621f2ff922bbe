//! Pages that must keep up with the code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use iop_types::ErrorCode;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_error_code_has_a_page_and_every_page_a_code() {
    let folder = repository().join("docs/errors");
    let pages: BTreeSet<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let codes: BTreeSet<String> =
        ErrorCode::ALL.iter().map(|code| code.as_str().to_owned()).collect();
    assert_eq!(pages, codes);
}

#[test]
fn a_pages_status_is_the_codes() {
    for code in ErrorCode::ALL {
        let page = repository().join(format!("docs/errors/{code}.md"));
        let text = std::fs::read_to_string(page).unwrap();
        let told = match code.status() {
            499 if *code != ErrorCode::Cancelled => "no client sees it".to_owned(),
            status => format!("HTTP status {status}"),
        };
        assert!(text.contains(&told), "docs/errors/{code}.md does not say `{told}`");
        let retry = text.contains("try again unchanged: yes");
        assert_eq!(retry, code.is_retryable(), "docs/errors/{code}.md is wrong about trying again");
    }
}

#[test]
fn every_test_that_a_page_names_exists() {
    let page = std::fs::read_to_string(repository().join("docs/testing.md")).unwrap();
    let mut sources = rust_sources(&repository().join("crates"));
    sources.extend(rust_sources(&repository().join("loom")));
    for name in page.split('`').filter(|word| word.len() >= 20 && word.chars().all(is_name)) {
        assert!(
            sources.iter().any(|source| source.contains(&format!("fn {name}("))),
            "docs/testing.md names `{name}`, which no test is called"
        );
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'
}

/// Reads every Rust file below a folder.
fn rust_sources(folder: &Path) -> Vec<String> {
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry of it").path();
        if path.is_dir() {
            sources.extend(rust_sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(std::fs::read_to_string(path).expect("a source file"));
        }
    }
    sources
}

#[test]
fn every_fault_case_has_a_row() {
    let page = std::fs::read_to_string(repository().join("docs/testing.md")).unwrap();
    let mut missing: BTreeSet<u32> = (1..=95).collect();
    for row in page.lines().filter(|line| line.starts_with("| F") && !line.starts_with("| FC")) {
        let cases = row[1..].split('|').next().unwrap_or_default();
        let numbers: Vec<u32> =
            cases.split('F').filter_map(|case| case.get(..2)?.parse().ok()).collect();
        match (cases.contains(" to F"), &numbers[..]) {
            (true, [from, to]) => missing.retain(|case| !(*from..=*to).contains(case)),
            _ => missing.retain(|case| !numbers.contains(case)),
        }
    }
    assert!(missing.is_empty(), "docs/testing.md has no row for {missing:?}");
}
