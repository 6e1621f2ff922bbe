//! Between the link's generated types and the words of IOP: the Edge's one translation module.

use iop_config::{NodeView, ProviderView};
use iop_net::link::{Answer, RequestMessage};
use iop_types::{
    CloseReason, ErrorCode, Event, Failure, Header, ProviderStatus, RunRequest, TunnelFrame,
    TunnelRequest,
};
use iop_wire::answer::AnswerError;
use iop_wire::{Refused, RunAnswer, TunnelAnswer, v1};
use tracing::warn;

/// One step of an attempt, as its Node reported it.
#[derive(Debug)]
pub(crate) enum Step {
    /// A run got on or ended.
    Event(Event),
    /// A tunnel got on or ended.
    Frame(TunnelFrame),
    /// The Node did not start it.
    Refused(Refused),
}

/// Reads the next answer of a stream.
///
/// # Errors
/// The Node sent something that this version cannot understand: the attempt has failed.
pub(crate) fn read(answer: Answer) -> Result<Step, AnswerError> {
    Ok(match answer {
        Answer::Frame(frame) => match TunnelAnswer::try_from(frame)? {
            TunnelAnswer::Frame(frame) => Step::Frame(frame),
            TunnelAnswer::Refused(refused) => Step::Refused(refused),
        },
        Answer::Event(event) => match RunAnswer::try_from(event)? {
            RunAnswer::Event(event) => Step::Event(event),
            RunAnswer::Refused(refused) => Step::Refused(refused),
        },
        Answer::Command(_) => {
            return Err(AnswerError { field: "message", problem: "an answer to a command" });
        }
    })
}

/// Says what a refusal means that no other place in the queue can cure.
pub(crate) fn refused_failure(refused: &Refused) -> Failure {
    let code = match refused.reason {
        v1::RefusalReason::Unsupported => ErrorCode::InvalidRequest,
        v1::RefusalReason::NotPermitted => ErrorCode::Forbidden,
        v1::RefusalReason::CredentialDenied => ErrorCode::CredentialUnavailable,
        v1::RefusalReason::UnknownProvider
        | v1::RefusalReason::AmbiguousProvider
        | v1::RefusalReason::StaleConfig
        | v1::RefusalReason::CapacityExceeded
        | v1::RefusalReason::Draining => ErrorCode::NoReadyProvider,
        v1::RefusalReason::Unspecified
        | v1::RefusalReason::StallTimeout
        | v1::RefusalReason::Malformed
        | v1::RefusalReason::Duplicate => ErrorCode::ProviderError,
    };
    Failure::new(code, format!("the node refused the request: {}", refused.message))
}

/// Writes the head that opens a run.
pub(crate) fn run(request: RunRequest) -> RequestMessage {
    RequestMessage::Run(request.into())
}

/// Writes the head that opens a tunnel.
pub(crate) fn tunnel(request: TunnelRequest) -> RequestMessage {
    RequestMessage::Tunnel(request.into())
}

/// A file that was loaded is one revision; reloading will count on.
pub(crate) const FIRST_REVISION: u64 = 1;

/// Writes what a Node is configured to do.
pub(crate) fn node_config(view: &NodeView<'_>) -> v1::NodeConfig {
    v1::NodeConfig {
        revision: view.counter,
        providers: view.providers.iter().map(provider_config).collect(),
        discover: view.discover,
    }
}

fn provider_config(view: &ProviderView<'_>) -> v1::ProviderConfig {
    let provider = view.provider;
    let text = |value: Option<String>| value.unwrap_or_default();
    v1::ProviderConfig {
        key: view.key.as_str().to_owned(),
        adapter: provider.adapter.as_str().to_owned(),
        endpoint: text(provider.endpoint.as_ref().map(ToString::to_string)),
        targets: provider.targets.iter().map(|target| target.as_str().to_owned()).collect(),
        max_concurrency: provider.capacity().get(),
        context_size: provider.context_size,
        keep_alive: text(provider.keep_alive.as_ref().map(iop_config::KeepAlive::to_json)),
        headers: provider
            .headers
            .iter()
            .map(|(name, value)| {
                v1::Header::from(Header {
                    name: name.to_ascii_lowercase().into(),
                    value: value.clone().into(),
                })
            })
            .collect(),
        node_secret: text(provider.api_key.as_ref().map(|key| key.node_secret.clone())),
        hosted: provider.hosted,
        first_response_timeout_ms: provider
            .first_response_timeout
            .map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)),
        revision: view.revision.0,
        script: text(provider.script.as_ref().map(ToString::to_string)),
        manage_models: provider.manage_models,
        slot: String::new(),
        profile: None,
    }
}

/// Reads what a Node reports; a status that cannot be used is left out, and said so.
pub(crate) fn status(node: &str, status: v1::ProviderStatus) -> Option<ProviderStatus> {
    match ProviderStatus::try_from(status) {
        Ok(status) => Some(status),
        Err(error) => {
            warn!(node, %error, "a provider of this node cannot be used");
            None
        }
    }
}

/// Writes why a Node may not join.
pub(crate) fn refusal(reason: CloseReason, message: String) -> v1::RegisterRefused {
    v1::RegisterRefused {
        reason: v1::CloseReason::from(reason).into(),
        message,
        ..v1::RegisterRefused::default()
    }
}
