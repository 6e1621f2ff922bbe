//! What is measured: the provider itself, and what can stand in front of it.

use super::RunError;
use super::child::Children;
use crate::process;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The target whose mistakes fail the run.
pub(super) const IOP: &str = "iop";

/// The target that all ratios are against.
pub(super) const DIRECT: &str = "direct";

/// The target with as many processes in a row as IOP has.
pub(super) const TWO_HOPS: &str = "nginx-nginx";

/// Routers of the same trade, in one process each; measured where they are installed.
const PEERS: [&str; 2] = ["vllm-router", "smg"];

const NAMES: [&str; 6] = [DIRECT, "nginx", TWO_HOPS, "vllm-router", "smg", IOP];

/// Something that answers chat requests on loopback.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) address: SocketAddr,
    /// Every process between the load and the provider.
    pub(super) pids: Vec<u32>,
}

impl Target {
    /// Resident memory of its processes now.
    pub(super) fn resident_bytes(&self) -> u64 {
        process::resident_bytes(&self.pids)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Starts the provider and the wanted targets in front of it; the peers whose programs are in the
/// folder `peers`.
pub(super) async fn start_all(
    iop: Option<&Path>,
    peers: Option<&Path>,
    only: &[String],
    children: &mut Children,
) -> Result<Vec<Target>, RunError> {
    if let Some(unknown) = only.iter().find(|name| !NAMES.contains(&name.as_str())) {
        return Err(RunError::UnknownName(unknown.clone(), NAMES.join(", ")));
    }
    let provider = children.start_provider().await?;
    let mut targets = Vec::new();
    for name in NAMES {
        if name != DIRECT && !only.is_empty() && !only.iter().any(|wanted| wanted == name) {
            continue;
        }
        if PEERS.contains(&name) {
            if let Some(folder) = peers {
                let (address, pid) = start_peer(name, folder, provider, children)?;
                targets.push(Target { name, address, pids: vec![pid] });
            }
            continue;
        }
        let (address, pids) = match name {
            DIRECT => (provider, Vec::new()),
            IOP => start_iop(iop, provider, children)?,
            TWO_HOPS => {
                let (behind, second) = start_nginx("nginx-behind", provider, children)?;
                let (front, first) = start_nginx("nginx-front", behind, children)?;
                (front, vec![first, second])
            }
            _ => {
                let (address, pid) = start_nginx(name, provider, children)?;
                (address, vec![pid])
            }
        };
        targets.push(Target { name, address, pids });
    }
    Ok(targets)
}

/// One nginx process with one worker, no logs, no buffering and connections kept to `upstream`.
fn start_nginx(
    name: &str,
    upstream: SocketAddr,
    children: &mut Children,
) -> Result<(SocketAddr, u32), RunError> {
    let address = Children::free_address()?;
    let folder = children.folder().display().to_string();
    let config = format!(
        "daemon off;
master_process off;
pid {folder}/{name}.pid;
error_log {folder}/{name}.log warn;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/{name}-body;
    proxy_temp_path {folder}/{name}-proxy;
    fastcgi_temp_path {folder}/{name}-fastcgi;
    uwsgi_temp_path {folder}/{name}-uwsgi;
    scgi_temp_path {folder}/{name}-scgi;
    client_body_buffer_size 128k;
    keepalive_requests 1000000000;
    upstream behind {{
        server {upstream};
        keepalive 1024;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {address} backlog=4096;
        location / {{
            proxy_pass http://behind;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
"
    );
    let path = children.file(&format!("{name}.conf"), &config)?;
    let arguments = ["-c".to_owned(), path.display().to_string()];
    let pid = children.start(name, &program("nginx"), &arguments)?;
    Ok((address, pid))
}

/// A router with one worker, logging only what goes wrong.
fn start_peer(
    name: &'static str,
    folder: &Path,
    provider: SocketAddr,
    children: &mut Children,
) -> Result<(SocketAddr, u32), RunError> {
    let [address, metrics] = [Children::free_address()?, Children::free_address()?];
    let mut arguments = Vec::new();
    if name == "smg" {
        arguments.push("launch".to_owned());
    }
    let options = [
        ("--host", address.ip().to_string()),
        ("--port", address.port().to_string()),
        ("--worker-urls", format!("http://{provider}")),
        ("--policy", "round_robin".to_owned()),
        ("--log-level", if name == "smg" { "warn" } else { "error" }.to_owned()),
        ("--prometheus-host", metrics.ip().to_string()),
        ("--prometheus-port", metrics.port().to_string()),
    ];
    for (option, value) in options {
        arguments.extend([option.to_owned(), value]);
    }
    let pid = children.start(name, &folder.join(name), &arguments)?;
    Ok((address, pid))
}

/// An Edge and a Node as two processes, joined by a real link, with everything on that is on by
/// default.
fn start_iop(
    iop: Option<&Path>,
    provider: SocketAddr,
    children: &mut Children,
) -> Result<(SocketAddr, Vec<u32>), RunError> {
    let iop = match iop {
        Some(path) => path.to_owned(),
        None => beside_this_program("iop")?,
    };
    let [clients, nodes, admin] =
        [Children::free_address()?, Children::free_address()?, Children::free_address()?];
    let folder = children.folder().display().to_string();
    let edge = children.file(
        "edge.yaml",
        &format!(
            "version: 1
group: bench
mode: local
listen: {{ clients: {clients}, nodes: {nodes}, admin: {admin} }}
data_dir: {folder}/edge-data
nodes:
  bench:
    providers:
      mock:
        adapter: openai_compat
        endpoint: http://{provider}
        max_concurrency: 10000
"
        ),
    )?;
    let node = children.file(
        "node.yaml",
        &format!(
            "version: 1
node: bench
edge: {nodes}
data_dir: {folder}/node-data
"
        ),
    )?;
    // One worker each, like the other targets: the path has one core.
    let words = |words: &[&str], config: PathBuf| -> Vec<String> {
        let mut arguments: Vec<String> = words.iter().map(ToString::to_string).collect();
        arguments.extend(["--config".to_owned(), config.display().to_string()]);
        arguments.extend(["--workers".to_owned(), "1".to_owned()]);
        arguments
    };
    let edge = children.start("iop-edge", &iop, &words(&["edge"], edge))?;
    let node = children.start("iop-node", &iop, &words(&["node", "run"], node))?;
    Ok((clients, vec![edge, node]))
}

fn beside_this_program(name: &str) -> Result<PathBuf, RunError> {
    let this = std::env::current_exe().map_err(RunError::io("find this program"))?;
    Ok(this.with_file_name(name))
}

/// Debian keeps servers in a folder that not every user's `PATH` names.
fn program(name: &str) -> PathBuf {
    let sbin = Path::new("/usr/sbin").join(name);
    if sbin.exists() { sbin } else { PathBuf::from(name) }
}
