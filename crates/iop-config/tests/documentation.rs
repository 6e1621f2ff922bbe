//! What the pages for people say about configuration is true.

use std::path::{Path, PathBuf};

use iop_config::{EdgeConfig, NodeConfig, defaults, reference};
use iop_types::AdapterType;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_reference_page_is_what_the_code_says() {
    let path = root().join("docs/configuration.md");
    let page = reference::page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("docs are writable");
    }
    let written = std::fs::read_to_string(&path).expect("the page exists");
    assert!(written == page, "run UPDATE_DOCS=1 cargo test -p iop-config --test documentation");
}

#[test]
fn the_reference_page_names_every_adapters_concurrency() {
    let page = reference::page();
    for adapter in AdapterType::ALL {
        let said = format!("{adapter} {}", adapter.default_max_concurrency());
        assert!(page.contains(&said), "{said}");
    }
}

#[test]
fn every_example_in_the_documentation_passes_the_check() {
    let mut pages = vec![root().join("README.md")];
    for entry in std::fs::read_dir(root().join("docs")).expect("docs exist") {
        pages.push(entry.expect("readable").path());
    }
    let mut checked = 0;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|e| e == "md")) {
        let Ok(text) = std::fs::read_to_string(page) else { continue };
        for (line, info, example) in fenced(&text) {
            let name = format!("{}:{line}", page.display());
            let is_node = match info.as_str() {
                "yaml" => example.lines().any(|line| line.starts_with("node:")),
                "yaml edge" => false,
                "yaml node" => true,
                _ => continue,
            };
            // An example of something else than a configuration says so: ```yaml other.
            let checked_as = if is_node {
                NodeConfig::parse(&example, &name).map(|_| ())
            } else {
                EdgeConfig::parse(&example, &name).map(|_| ())
            };
            checked_as.unwrap_or_else(|error| panic!("{error}"));
            checked += 1;
        }
    }
    assert!(checked > 0, "the documentation has examples");
}

#[test]
fn every_number_of_the_defaults_table_stands_in_the_reference() {
    let page = reference::page();
    for row in defaults::table().iter().filter(|row| !row.name.contains("(fixed)")) {
        assert!(page.contains(&row.value), "{row:?}");
    }
}

/// Returns line, info string and content of every fenced block.
fn fenced(text: &str) -> Vec<(usize, String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String, String)> = None;
    for (number, line) in text.lines().enumerate() {
        match (open.as_mut(), line.trim_start().strip_prefix("```")) {
            (None, Some(info)) => open = Some((number + 2, info.trim().to_owned(), String::new())),
            (Some(_), Some("")) => blocks.extend(open.take()),
            (Some((.., content)), _) => {
                content.push_str(line);
                content.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a fenced block is not closed");
    blocks
}
