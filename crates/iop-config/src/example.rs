//! The commented files that `iop config example` prints.

use std::fmt::Write;

use iop_types::{AdapterType, StallTimeout};

use crate::{defaults, duration, size};

/// Returns a commented Edge file that says every default and passes the check.
pub fn edge() -> String {
    let mut text = format!(
        r#"# yaml-language-server: $schema=edge.schema.json
# Configuration of an IOP Edge. `iop config schema` prints the schema, `iop config check` validates.
# Only `version` is needed: everything that is set below to its default may be left out.
version: 1
group: {group}
mode: local                         # local: this machine only | managed: see `iop edge init`
listen:
  clients: {clients}           # OpenAI-compatible API
  nodes: {nodes}             # Nodes dial in here
  admin: {admin}             # command line and /metrics
# data_dir: ~/.local/share/iop/edge # absent: the usual place of the operating system
# Only in managed mode:
#   tls: {{ certificate: cert.pem, key: key.pem }} # for clients; read again when the files change
#   advertise: edge.lan:7401        # where other machines reach `listen.nodes`
#   require_keys: true              # absent: exactly where `listen.clients` is not on loopback
node_certificate: {certificate}                # only in managed mode: a Node renews at half of it

nodes:
  workstation:
    # discover: true                # absent: exactly where `providers` is absent
    providers:
      ollama:
        adapter: ollama             # mock | ollama | openai_compat | vllm
        endpoint: http://127.0.0.1:11434
        targets: ["*"]              # or a list of names
        max_concurrency: {ollama}          # absent: the adapter's, see the end of this file
        response_stall_timeout: {stall}
        context_size: 0             # only for ollama; above 0 wins over the request, like 8192
        # keep_alive: 30m           # only for ollama; wins over the request; absent: the request's
        manage_models: false        # only for ollama; true: `iop ollama` may pull, copy and delete,
                                    # where the Node's own file says so too
      lab:
        adapter: vllm               # vLLM or SGLang
        endpoint: http://127.0.0.1:8000
        # first_response_timeout: 10m # absent: no bound of its own
        # api_key: {{ node_secret: lab }} # named in the Node's own file; never written here
        # In managed mode, instead of `api_key`: `credential: lab`, a slot that `iop credentials
        # set` fills, and `profile: {{ header: x-api-key }}` where it is not sent as a Bearer token.
        headers: {{}}                 # further ones for the server, like X-Title: home
        usage: exact                # exact | observed
        hosted: false               # absent: true where the endpoint is not on a loopback or
                                    # private address
  laptop: {{}}                        # no providers listed: the Node looks for model servers

routes:
  chat:
    policy: least_loaded            # least_loaded | ordered | weighted | affinity
    candidates:
      - {{ node: workstation, provider: ollama, target: "llama3.2:3b", priority: 0, weight: 1 }}
      - {{ node: workstation, provider: lab, target: llama-3.2-3b, priority: 1 }}
    # timeout: 10m                  # absent: no bound on a whole request
    queue: {{ max_waiting: {waiting}, timeout: {queue}, wait_for_node: {away} }}
    usage: exact
    hold_head: {hold}                  # 0: a stream's head is never kept back
    recovery: full                  # off | connect_only | full: a request may run twice
discovered_routes: true

limits:
"#,
        group = defaults::GROUP,
        clients = defaults::LISTEN_CLIENTS,
        nodes = defaults::LISTEN_NODES,
        admin = defaults::LISTEN_ADMIN,
        ollama = AdapterType::Ollama.default_max_concurrency(),
        stall = duration::format(StallTimeout::DEFAULT.duration()),
        waiting = defaults::QUEUE_MAX_WAITING,
        queue = duration::format(defaults::QUEUE_TIMEOUT),
        away = duration::format(defaults::WAIT_FOR_NODE),
        hold = duration::format(defaults::HOLD_HEAD),
        certificate = duration::format(defaults::NODE_CERTIFICATE),
    );
    for row in defaults::table() {
        if let Some(key) = row.name.strip_prefix("limits.") {
            line(&mut text, format_args!("  {key}: {}", row.value));
        }
    }
    text.push_str(
        r#"
cors: { origins: [] }               # web pages that may call: [http://localhost:3000], or ["*"]
hosts: []                           # further names under which clients reach this Edge

# Defaults that depend on the adapter, or that no key changes:
"#,
    );
    for row in defaults::table() {
        if row.name.contains(' ') {
            line(&mut text, format_args!("#   {}: {}", row.name, row.value));
        }
    }
    text
}

/// Returns a commented Node file that passes the check.
pub fn node() -> String {
    format!(
        r#"# yaml-language-server: $schema=node.schema.json
# A Node's own file. Its providers come from the Edge; here is only what the Edge cannot decide.
version: 1
node: workstation                   # its name under `nodes` in the Edge's file
edge: {edge}                # the Edge's `listen.nodes`; HOST:PORT once joined
# data_dir: ~/.local/share/iop/node # absent: the usual place of the operating system
manage_models: false                # true: `iop ollama` may pull, copy and delete models here
egress: [127.0.0.0/8, "::1/128"]    # what its providers may be reached at; names too: openrouter.ai
secrets: {{}}                         # like: lab: {{ env: LAB_KEY }}, or {{ file: PATH }}

# Defaults that no key changes:
#   history: {days} or {bytes}
"#,
        edge = defaults::LISTEN_NODES,
        days = duration::format(defaults::NODE_HISTORY),
        bytes = size::format(defaults::NODE_HISTORY_BYTES),
    )
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EdgeConfig, Limits, Listen, NodeConfig, Queue};
    use iop_types::NodeId;

    #[test]
    fn the_examples_pass_the_check() {
        EdgeConfig::parse(&edge(), "example").expect("valid");
        NodeConfig::parse(&node(), "example").expect("valid");
    }

    #[test]
    fn the_examples_say_the_defaults() {
        let config = EdgeConfig::parse(&edge(), "example").expect("valid");
        assert_eq!(config.limits, Limits::default());
        assert_eq!(config.listen, Listen::default());
        let route = config.routes.first_key_value().expect("a route").1;
        assert_eq!(route.queue, Queue::default());
        assert_eq!(route.hold_head, defaults::HOLD_HEAD);
        let node = NodeConfig::parse(&node(), "example").expect("valid");
        assert_eq!(node.egress, NodeConfig::new(NodeId::from("a")).egress);
        assert_eq!(node.edge, defaults::LISTEN_NODES.into());
    }

    #[test]
    fn every_number_of_the_table_is_printed() {
        let text = edge() + &node();
        for row in defaults::table() {
            assert!(text.contains(&row.value), "{row:?}");
        }
    }

    #[test]
    fn keys_that_are_commented_out_pass_too() {
        let text: String = edge()
            .lines()
            .map(|line| match line.split_once("# ") {
                // `key: value` after the indentation, not a sentence.
                Some((indent, rest)) if indent.trim().is_empty() && is_key(rest) => {
                    format!("{indent}{rest}\n")
                }
                Some(_) | None => format!("{line}\n"),
            })
            .collect();
        let config = EdgeConfig::parse(&text, "example").expect("valid");
        assert!(config.data_dir.is_some(), "the test uncomments keys");
    }

    fn is_key(text: &str) -> bool {
        text.split_once(": ").is_some_and(|(key, _)| {
            !key.starts_with('$') && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
        })
    }
}
