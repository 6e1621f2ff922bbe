//! What a file must fulfil beyond its shape, and the resolution of its references.

mod edge;
mod node;
mod provider;
mod route;

pub(crate) use edge::edge;
pub(crate) use node::node;

use std::net::SocketAddr;

use crate::path::Path;
use crate::read::Findings;

/// The only version of the file format.
const VERSION: u32 = 1;

fn version(version: u32, findings: &mut Findings) {
    if version != VERSION {
        findings.add(
            Path::root().key("version"),
            format!("version {version} is not known: write `version: {VERSION}`"),
        );
    }
}

/// Local mode talks to this machine only.
fn loopback(address: SocketAddr, path: Path, findings: &mut Findings) {
    if !is_loopback(address) {
        findings.add(
            path,
            format!(
                "{address} is not a loopback address, and other machines need managed mode (`iop \
                 edge init`): write 127.0.0.1:{0} or \"[::1]:{0}\"",
                address.port()
            ),
        );
    }
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn data_dir(data_dir: Option<&str>, findings: &mut Findings) {
    if data_dir.is_some_and(|path| path.trim().is_empty() || path.contains('\0')) {
        findings.add(
            Path::root().key("data_dir"),
            "is empty: write a directory, or remove the key for the usual place",
        );
    }
}

/// Names of groups, Nodes, providers and secrets: they stand in paths, metrics and flags.
fn name(text: &str, what: &str, path: Path, findings: &mut Findings) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || text.len() > 64 || !text.bytes().all(is_plain) {
        findings.add(
            path,
            format!(
                "is no {what} name: write 1 to 64 letters, digits, hyphens, underscores or dots"
            ),
        );
    }
}

/// Model and target names: servers choose them, so that only what breaks a line is refused.
fn free_name(text: &str, path: Path, findings: &mut Findings) {
    if text.is_empty() || text.len() > 256 || text.chars().any(|c| c.is_control() || c == ' ') {
        findings.add(path, "is no model name: write 1 to 256 characters without spaces");
    }
}
