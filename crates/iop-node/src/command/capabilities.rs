//! What this Node and its providers can do.

use iop_execution::Commands;
use iop_types::{AdapterType, CommandKind, Operation, ProviderKey, ProviderState, RunKind};
use serde::Serialize;

use crate::node::Shared;

#[derive(Serialize)]
struct Capabilities<'a> {
    node: &'a str,
    version: &'static str,
    protocol_version: u32,
    platform: Platform,
    commands: &'static [CommandKind],
    adapters: &'static [AdapterType],
    providers: Vec<Provider>,
}

#[derive(Serialize)]
struct Platform {
    os: &'static str,
    arch: &'static str,
}

#[derive(Serialize)]
struct Provider {
    provider: ProviderKey,
    adapter: AdapterType,
    state: ProviderState,
    capacity: u32,
    runs: Vec<RunKind>,
    tunnel: Vec<Operation>,
    commands: Vec<Command>,
}

/// An operation that a command may call.
#[derive(Serialize)]
struct Command {
    #[serde(flatten)]
    operation: Operation,
    /// Whether it changes what the server holds.
    manages: bool,
    permitted: bool,
}

/// Writes the answer.
pub(super) fn answer(node: &Shared) -> Vec<u8> {
    let providers = node.providers.statuses().into_iter().map(|status| Provider {
        commands: commands(node, &status.provider),
        provider: status.provider,
        adapter: status.adapter,
        state: status.state,
        capacity: status.capacity,
        runs: status.capabilities.runs,
        tunnel: status.capabilities.tunnel,
    });
    let whole = Capabilities {
        node: node.settings.node.as_str(),
        version: env!("CARGO_PKG_VERSION"),
        protocol_version: iop_wire::PROTOCOL_VERSION,
        platform: Platform { os: std::env::consts::OS, arch: std::env::consts::ARCH },
        commands: CommandKind::ALL,
        adapters: AdapterType::ALL,
        providers: providers.collect(),
    };
    serde_json::to_vec(&whole).expect("keys are text and there are no floats")
}

/// Lists what the provider takes; nothing of one that could not be started.
fn commands(node: &Shared, provider: &ProviderKey) -> Vec<Command> {
    let Ok(bound) = node.checks.registry.find(provider) else { return Vec::new() };
    let permitted = node.providers.permissions().check(provider).is_ok();
    let listed = bound.commands().map(Commands::list).unwrap_or_default();
    let listed = listed.into_iter().map(|command| Command {
        operation: command.operation,
        manages: command.manages,
        permitted: permitted || !command.manages,
    });
    listed.collect()
}
