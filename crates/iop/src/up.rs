//! `iop up`: one machine, one endpoint.
//!
//! An Edge and a Node in one process, linked over loopback exactly as two processes would be. What
//! is served comes from flags, from files, or from looking at the usual ports; nothing is invented
//! unless `--demo` asks for it.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use iop_config::{ConfigError, EdgeConfig, EgressRule, NodeConfig, NodeEntry, Provider};
use iop_edge::Addresses;
use iop_node::{LocalServer, ManageModels};
use iop_types::{AdapterType, NodeId, ProviderKey};
use serde_json::Value;
use tracing::warn;

use crate::announce;
use crate::chat::{ChatError, Conversation};
use crate::cli;
use crate::client::{AskError, Base};
use crate::config_command::{self, FileError};
use crate::descriptors;
use crate::edge::{self, EdgeError};
use crate::node::{self, NodeError};
use crate::stop_signal;
use crate::table::few;

/// How long the first models are waited for before the endpoint is printed without them. The Node
/// gives its providers 2 s for a first look.
const FIRST_MODELS: Duration = Duration::from_secs(4);

/// How long `--try` waits for a model that is still loading.
const TRY_MODELS: Duration = Duration::from_secs(60);

/// How many models are named; a hosted server may list thousands.
const NAMED: usize = 20;

/// Runs `iop up` until a signal.
///
/// # Errors
/// Files or flags are not valid, a port or a data directory is taken.
pub(crate) async fn run(up: cli::Up) -> Result<(), UpError> {
    let (edge_config, node_config) = configured(&up)?;
    descriptors::allow_many();
    let stop = stop_signal::listen().map_err(UpError::Signals)?;
    let mut edge = edge::start(edge_config.clone()).await?;
    let addresses = edge.edge.addresses();
    let own = [addresses.clients, addresses.nodes, addresses.admin];
    let places = LocalServer::without_own(LocalServer::usual(), &own);
    let manage_models = match (node_config.manage_models, &up.node_config) {
        (true, _) => ManageModels::AlsoWhereFound,
        // One owner, who has said nothing else: the entries of the Edge's file are enough.
        (false, None) => ManageModels::WhereConfigured,
        (false, Some(_)) => ManageModels::Nowhere,
    };
    let mut node = node::start(&node_config, addresses.nodes, places.clone(), manage_models)?;

    let outcome = tokio::select! {
        told = tell(&up, addresses, &edge_config, &node_config.node, &places) => match told {
            Ok(()) => tokio::select! {
                () = stop.cancelled() => Ok(()),
                gone = node.node.stopped() => gone.map_err(|error| NodeError::from(error).into()),
            },
            Err(error) => Err(error),
        },
        () = stop.cancelled() => Ok(()),
    };
    if stop.is_cancelled() {
        let drain = edge_config.limits.drain.as_secs();
        announce(&format!(
            "\nStopping: what is running may finish within {drain} s, Ctrl-C again ends it at once\n"
        ));
    }
    // The Edge first: what runs may finish over the link, which the Node keeps until then.
    edge.edge.stop();
    edge.edge.stopped().await;
    node.node.stop();
    let _ = node.node.stopped().await;
    outcome
}

/// Both sides' configuration, from files and flags.
fn configured(up: &cli::Up) -> Result<(EdgeConfig, NodeConfig), UpError> {
    let file = match &up.config {
        Some(path) => config_command::edge_file(path)?,
        None => EdgeConfig::default(),
    };
    let mut node = match &up.node_config {
        Some(path) => config_command::node_file(path)?,
        None => NodeConfig::new(local_node(&file)?),
    };
    node.manage_models |= up.manage_models;
    for secret in &up.secrets {
        node.secrets.insert(secret.name.clone(), secret.source.clone());
    }
    let mut config = edge::configured(file, &up.listen)?;
    if node.data_dir.is_none() {
        // Both sides of one machine share a parent, so that one flag moves both.
        node.data_dir = config.data_dir.as_ref().map(|dir| format!("{dir}/node"));
        config.data_dir = config.data_dir.map(|dir| format!("{dir}/edge"));
    }
    if up.demo {
        let demo = Provider::new(AdapterType::Mock, None);
        serve(&mut config, &node.node, [(ProviderKey::from("demo"), demo)]);
    }
    let flags = up.providers.iter().map(|flag| {
        let mut provider = flag.provider.clone();
        provider.max_concurrency = up.max_concurrency.or(provider.max_concurrency);
        (flag.key.clone(), provider)
    });
    if !up.providers.is_empty() {
        let flags: Vec<_> = flags.collect();
        for (at, (key, _)) in flags.iter().enumerate() {
            if flags[..at].iter().any(|(other, _)| other == key) {
                return Err(UpError::SameName(key.clone()));
            }
        }
        serve(&mut config, &node.node, flags);
    }
    if up.manage_models {
        let_manage(&mut config, &node.node);
    }
    if up.node_config.is_none() {
        let_reach(&mut node, &config);
    }
    let config = config.checked("command line")?;
    Ok((config, node.checked("command line")?))
}

/// Adds providers to a Node's entry; an entry that lists providers looks for no others.
fn serve(
    config: &mut EdgeConfig,
    node: &NodeId,
    providers: impl IntoIterator<Item = (ProviderKey, Provider)>,
) {
    let entry = config
        .nodes
        .entry(node.clone())
        .or_insert_with(|| NodeEntry { providers: None, discover: None });
    entry.providers.get_or_insert_with(BTreeMap::new).extend(providers);
}

/// Permits what `--manage-models` does, at every Ollama of a Node's entry, whoever named it.
fn let_manage(config: &mut EdgeConfig, node: &NodeId) {
    let entry = config.nodes.get_mut(node);
    let providers = entry.and_then(|entry| entry.providers.as_mut());
    for provider in providers.into_iter().flat_map(BTreeMap::values_mut) {
        provider.manage_models |= provider.adapter == AdapterType::Ollama;
    }
}

/// Lets the Node reach the hosts that its entry names, each alone: whoever wrote the entry owns this
/// machine, too, and there is no Node's file that says otherwise.
fn let_reach(node: &mut NodeConfig, config: &EdgeConfig) {
    let entry = config.nodes.get(&node.node).and_then(|entry| entry.providers.as_ref());
    let endpoints = entry.into_iter().flat_map(BTreeMap::values);
    for endpoint in endpoints.filter_map(|provider| provider.endpoint.as_ref()) {
        let rule = match endpoint.address() {
            Some(address) => EgressRule::Net(address.to_canonical().into()),
            None => EgressRule::Host(endpoint.host().to_owned()),
        };
        if !node.egress.contains(&rule) {
            node.egress.push(rule);
        }
    }
}

/// The Node that runs here: the only one of the file, else `local`.
fn local_node(file: &EdgeConfig) -> Result<NodeId, UpError> {
    let mut names = file.nodes.keys();
    match (names.next(), names.next()) {
        (None, _) => Ok(NodeId::from("local")),
        (Some(only), None) => Ok(only.clone()),
        (Some(_), Some(_)) => Err(UpError::WhichNode),
    }
}

/// Says what is served, and tries it where that is wanted.
async fn tell(
    up: &cli::Up,
    addresses: Addresses,
    config: &EdgeConfig,
    node: &NodeId,
    places: &[LocalServer],
) -> Result<(), UpError> {
    let base = Base::parse(&format!("http://{}", addresses.clients), "endpoint")?;
    let looks = config.nodes.get(node).is_none_or(NodeEntry::discovers);
    let bound = if up.try_text.is_some() { TRY_MODELS } else { FIRST_MODELS };
    let models = first_models(&base, addresses, bound).await.unwrap_or_else(|error| {
        // What is served is served, whether it can be told or not.
        warn!(reason = crate::chain(&error), "the models cannot be listed");
        Vec::new()
    });
    announce(&announcement(&base, addresses, &models, looks.then_some(places), up.demo));
    if let Some(text) = &up.try_text {
        announce(&format!("\n> {text}\n"));
        let model = models.first().cloned().ok_or(ChatError::NoModel)?;
        let mut conversation = Conversation::new(base, model, None);
        conversation.say(text.clone(), &mut io::stdout()).await?;
        announce("\nServing on. Ctrl-C ends it.\n");
    }
    Ok(())
}

/// What is served and how to try it; `looked_at` are the places where servers are looked for.
fn announcement(
    base: &Base,
    addresses: Addresses,
    models: &[String],
    looked_at: Option<&[LocalServer]>,
    is_demo: bool,
) -> String {
    let mut text = format!("Endpoint  {base}/v1\n");
    if addresses.admin.port() != iop_config::defaults::LISTEN_ADMIN.port() {
        text += &format!("Admin     http://{}\n", addresses.admin);
    }
    text += &match (models, looked_at) {
        ([], Some(places)) => {
            let ports: Vec<_> = places.iter().map(ToString::to_string).collect();
            format!(
                "Models    none yet: no model server answers on the ports {}\n          \
                 Start one and it is found within 10 s; name another with --provider\n          \
                 NAME=openai_compat:URL; or try IOP without one: iop up --demo\n",
                ports.join(", ")
            )
        }
        ([], None) => "Models    none yet: `iop status` says what is missing\n".to_owned(),
        (models, _) => format!("Models    {}\n", few(models, NAMED)),
    };
    if is_demo {
        text += "          (the built-in demo provider: its answers are invented)\n";
    }
    if let Some(model) = models.first() {
        text += &format!(
            "\nTry it:   curl -N {base}/v1/chat/completions -H 'content-type: application/json' \\\n            \
             -d {}\n",
            shell_quoted(&first_request(model))
        );
    }
    text
}

/// A body for curl.
fn first_request(model: &str) -> String {
    let model = Value::from(model);
    format!(r#"{{"model":{model},"stream":true,"messages":[{{"role":"user","content":"hello"}}]}}"#)
}

/// Makes one word of a shell of any text: what a server calls its models is pasted as it is printed.
fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Waits a bounded time for something that can be dispatched to, then lists the models.
async fn first_models(
    base: &Base,
    addresses: Addresses,
    bound: Duration,
) -> Result<Vec<String>, AskError> {
    let admin = Base::parse(&format!("http://{}", addresses.admin), "--admin")?;
    let ready = async {
        while admin.get_bytes("/ready").await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    // Not ready in time is told by an empty list.
    let _ = tokio::time::timeout(bound, ready).await;
    let models: Value = base.get("/v1/models").await?;
    let ids = models["data"].as_array().into_iter().flatten();
    Ok(ids.filter_map(|model| model["id"].as_str().map(str::to_owned)).collect())
}

impl UpError {
    /// Says whether the command line itself is to blame.
    pub(crate) const fn is_usage(&self) -> bool {
        match self {
            Self::SameName(_) | Self::WhichNode => true,
            Self::File(_)
            | Self::Config(_)
            | Self::Edge(_)
            | Self::Node(_)
            | Self::Ask(_)
            | Self::Try(_)
            | Self::Signals(_) => false,
        }
    }
}

/// Why one machine is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpError {
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// Flags, variables and files together are not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Two `--provider` flags have one name.
    #[error("--provider names `{0}` twice: give each provider its own name")]
    SameName(ProviderKey),
    /// The file has several Nodes.
    #[error("the edge file names several nodes: say which one runs here with --node-config")]
    WhichNode,
    /// The Edge does not run.
    #[error(transparent)]
    Edge(#[from] EdgeError),
    /// The Node does not run.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The own endpoint does not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// What was tried failed.
    #[error("--try failed")]
    Try(#[from] ChatError),
    /// The process cannot be told to stop.
    #[error("signal handlers cannot be set")]
    Signals(#[source] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managing_models_is_permitted_at_what_a_file_names_and_has_no_meaning_elsewhere() {
        let file = "version: 1\nnodes:\n  ws:\n    providers:\n      \
                    o: { adapter: ollama, endpoint: http://127.0.0.1:11434 }\n      \
                    v: { adapter: vllm, endpoint: http://127.0.0.1:8000 }\n";
        let mut config = EdgeConfig::parse(file, "f").unwrap();
        let_manage(&mut config, &NodeId::from("ws"));
        let providers = config.nodes[&NodeId::from("ws")].providers.as_ref().unwrap();
        assert!(providers[&ProviderKey::from("o")].manage_models);
        assert!(!providers[&ProviderKey::from("v")].manage_models);
        config.checked("command line").unwrap();
    }

    fn reach_of(arguments: &[&str]) -> Vec<String> {
        use clap::Parser as _;
        let cli = cli::Cli::parse_from([&["iop", "up"], arguments].concat());
        let cli::Command::Up(up) = cli.command else { panic!("not `iop up`") };
        let (_, node) = configured(&up).unwrap();
        node.egress.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_node_may_reach_exactly_the_hosts_that_its_owner_named() {
        assert_eq!(reach_of(&[]), ["127.0.0.0/8", "::1/128"]);
        let named = reach_of(&[
            "--provider",
            "a=vllm:http://192.0.2.2:8000",
            "--provider",
            "b=ollama:http://192.0.2.2:11434",
            "--provider",
            "c=vllm:http://GPU.lan:8000/v1",
            "--provider",
            "d=vllm:http://[2001:db8::7]:8000",
            "--provider",
            "e=vllm:http://[::ffff:192.0.2.3]",
        ]);
        let hosts = ["192.0.2.2/32", "gpu.lan", "2001:db8::7/128", "192.0.2.3/32"];
        assert_eq!(named, [&["127.0.0.0/8", "::1/128"][..], &hosts].concat());
    }

    #[test]
    fn a_file_of_the_edge_widens_the_reach_and_a_file_of_the_node_decides_it_alone() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let edge = write(
            "edge.yaml",
            "version: 1\nnodes:\n  ws:\n    providers:\n      \
             v: { adapter: vllm, endpoint: http://192.0.2.9:8000 }\n",
        );
        assert_eq!(reach_of(&["--config", &edge])[2..], ["192.0.2.9/32"]);
        let node = write("node.yaml", "version: 1\nnode: ws\negress: [10.0.0.0/8]\n");
        let both = ["--config", &edge, "--node-config", &node];
        assert_eq!(reach_of(&both), ["10.0.0.0/8"]);
        let flag = ["--provider", "a=vllm:http://192.0.2.2:8000"];
        assert_eq!(reach_of(&[&both[..], &flag].concat()), ["10.0.0.0/8"]);
    }

    #[test]
    fn the_line_for_curl_stays_one_line_and_one_word_whatever_a_model_is_called() {
        let body = first_request("a\"b\n'; touch owned; '");
        let parsed: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(parsed["model"], "a\"b\n'; touch owned; '");
        let word = shell_quoted(&body);
        assert!(!word.contains('\n'));
        // Every quote of the body stands outside of the quoted parts, escaped.
        assert_eq!(word.replace(r"'\''", "").matches('\'').count(), 2);
        assert_eq!(
            shell_quoted(&first_request("smollm2")),
            r#"'{"model":"smollm2","stream":true,"messages":[{"role":"user","content":"hello"}]}'"#
        );
    }
}
