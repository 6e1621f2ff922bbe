//! The Edge's file as a whole.

use crate::defaults;
use crate::edge::{Cors, EdgeConfig, Mode};
use crate::limits::Limits;
use crate::path::Path;
use crate::read::Findings;

use super::{data_dir, is_loopback, loopback, name, provider, route, version};

/// Checks an Edge's file and resolves the references of its routes.
pub(crate) fn edge(config: &mut EdgeConfig, findings: &mut Findings) {
    let root = Path::root();
    version(config.version, findings);
    name(&config.group, "group", root.key("group"), findings);
    listen(config, findings);
    managed(config, findings);
    data_dir(config.data_dir.as_deref(), findings);
    for (node, entry) in &config.nodes {
        let at = root.key("nodes").key(node);
        name(node.as_str(), "Node", at.clone(), findings);
        for (key, entry) in entry.providers.iter().flatten() {
            let at = at.key("providers").key(key);
            name(key.as_str(), "provider", at.clone(), findings);
            provider::check(entry, config.mode, &at, findings);
        }
    }
    for (name, entry) in &mut config.routes {
        route::check(name, entry, &config.nodes, &root.key("routes").key(name), findings);
    }
    limits(&config.limits, findings);
    cors(&config.cors, findings);
    hosts(&mut config.hosts, findings);
}

fn listen(config: &EdgeConfig, findings: &mut Findings) {
    let at = Path::root().key("listen");
    let listen = &config.listen;
    let all = [("clients", listen.clients), ("nodes", listen.nodes), ("admin", listen.admin)];
    for (at_index, (key, address)) in all.into_iter().enumerate() {
        match config.mode {
            Mode::Local => loopback(address, at.key(key), findings),
            Mode::Managed if key == "admin" && config.tls.is_none() && !is_loopback(address) => {
                findings.add(
                    at.key(key),
                    format!(
                        "{address} is not a loopback address, and the admin listener is reached \
                         from other machines over TLS only: add `tls`, or write 127.0.0.1:{}",
                        address.port()
                    ),
                );
            }
            Mode::Managed => {}
        }
        let earlier = &all[..at_index];
        let taken = earlier.iter().find(|(_, other)| *other == address && address.port() != 0);
        if let Some((other, _)) = taken {
            findings.add(at.key(key), format!("{address} is already `listen.{other}`"));
        }
    }
}

/// What only managed mode knows.
fn managed(config: &EdgeConfig, findings: &mut Findings) {
    let root = Path::root();
    if !(defaults::MIN_NODE_CERTIFICATE..=defaults::MAX_NODE_CERTIFICATE)
        .contains(&config.node_certificate)
    {
        findings.add(root.key("node_certificate"), "is outside 10s … 7d: write a time between");
    }
    if let Some(tls) = &config.tls {
        for (key, path) in [("certificate", &tls.certificate), ("key", &tls.key)] {
            if path.trim().is_empty() {
                findings.add(root.key("tls").key(key), "is empty: write the path of a PEM file");
            }
        }
    }
    let is_open = !is_loopback(config.listen.clients);
    if config.mode == Mode::Managed && is_open && config.require_keys == Some(false) {
        findings.add(
            root.key("require_keys"),
            "cannot be false where other machines reach `listen.clients`: remove the key, or \
             listen on 127.0.0.1",
        );
    }
    if config.mode == Mode::Local {
        for (key, is_set) in [
            ("tls", config.tls.is_some()),
            ("advertise", config.advertise.is_some()),
            ("require_keys", config.require_keys.is_some()),
        ] {
            if is_set {
                findings.add(
                    root.key(key),
                    "has a meaning in managed mode only: write `mode: managed` (`iop edge init`), \
                     or remove the key",
                );
            }
        }
    }
}

fn limits(limits: &Limits, findings: &mut Findings) {
    let at = Path::root().key("limits");
    for (key, is_zero) in [
        ("json_body", limits.json_body == 0),
        ("other_body", limits.other_body == 0),
        ("buffered_bodies", limits.buffered_bodies == 0),
        ("run_event", limits.run_event == 0),
        ("client_stall_bytes", limits.client_stall_bytes == 0),
        ("client_stall_timeout", limits.client_stall_timeout.is_zero()),
        ("first_progress", limits.first_progress.is_zero()),
        ("history", limits.history.is_zero()),
        ("max_streams", limits.max_streams == 0),
        ("link_memory", limits.link_memory == 0),
        ("client_connections", limits.client_connections == 0),
    ] {
        if is_zero {
            findings.add(at.key(key), "must be more than 0: write a bound, or remove the key");
        }
    }
    if limits.json_body > limits.buffered_bodies {
        findings.add(
            at.key("json_body"),
            "is larger than `limits.buffered_bodies`, so that the largest bodies could never be \
             accepted: raise that or lower this",
        );
    }
}

fn cors(cors: &Cors, findings: &mut Findings) {
    let at = Path::root().key("cors").key("origins");
    for (index, origin) in cors.origins.iter().enumerate() {
        let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        let is_origin = host.is_some_and(|host| {
            !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && !b"/?#@*".contains(&b))
        });
        if origin == "*" && cors.origins.len() > 1 {
            findings.add(at.index(index), "`*` allows every page: write it alone");
        } else if origin != "*" && !is_origin {
            findings.add(
                at.index(index),
                "is no origin: write http://HOST[:PORT] without a path, or \"*\" alone",
            );
        }
    }
}

/// Host names are compared in lower case.
fn hosts(hosts: &mut [String], findings: &mut Findings) {
    for (index, host) in hosts.iter_mut().enumerate() {
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        if host.is_empty() || !host.bytes().all(is_name) {
            findings.add(
                Path::root().key("hosts").index(index),
                "is no host name: write a name or an IPv4 address, without scheme and port",
            );
        }
        host.make_ascii_lowercase();
    }
}
