//! What a Node reports of its providers.

use iop_types::{
    AdapterType, Capabilities, Operation, ProviderKey, ProviderRevision, ProviderState,
    ProviderStatus, RunKind, Target,
};

use crate::v1;

impl From<ProviderStatus> for v1::ProviderStatus {
    fn from(status: ProviderStatus) -> Self {
        Self {
            key: status.provider.as_str().to_owned(),
            adapter: status.adapter.as_str().to_owned(),
            state: v1::ProviderState::from(status.state).into(),
            reason: status.reason,
            targets: names(&status.targets),
            loaded_targets: names(&status.loaded),
            capacity: status.capacity,
            in_use: status.in_use,
            zombies: status.zombies,
            provider_queue: status.queued,
            revision: status.revision.0,
            capabilities: Some(status.capabilities.into()),
        }
    }
}

impl TryFrom<v1::ProviderStatus> for ProviderStatus {
    type Error = StatusError;

    /// A state that this version does not know is read as `failed`: never dispatched to.
    fn try_from(status: v1::ProviderStatus) -> Result<Self, StatusError> {
        if status.key.is_empty() {
            return Err(StatusError::NoKey);
        }
        let adapter =
            AdapterType::parse(&status.adapter).ok_or_else(|| StatusError::UnknownAdapter {
                provider: status.key.clone(),
                adapter: status.adapter.clone(),
            })?;
        let (state, reason) = match known_state(status.state) {
            Some(state) => (state, status.reason),
            None => (
                ProviderState::Failed,
                format!("reports state {}, which this version does not know", status.state),
            ),
        };
        Ok(Self {
            provider: ProviderKey::from(status.key),
            adapter,
            state,
            reason,
            targets: targets(status.targets),
            loaded: targets(status.loaded_targets),
            capacity: status.capacity,
            in_use: status.in_use,
            zombies: status.zombies,
            queued: status.provider_queue,
            revision: ProviderRevision(status.revision),
            capabilities: status.capabilities.map(Capabilities::from).unwrap_or_default(),
        })
    }
}

/// A status that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// It does not say which provider it is of.
    #[error("provider status without a key")]
    NoKey,
    /// The Node has an adapter that this version does not know.
    #[error("provider `{provider}` has adapter `{adapter}`, which this version does not know")]
    UnknownAdapter {
        /// Which provider.
        provider: String,
        /// What it calls its adapter.
        adapter: String,
    },
}

impl From<ProviderState> for v1::ProviderState {
    fn from(state: ProviderState) -> Self {
        match state {
            ProviderState::Starting => Self::Starting,
            ProviderState::Ready => Self::Ready,
            ProviderState::Absent => Self::Absent,
            ProviderState::Failed => Self::Failed,
            ProviderState::Draining => Self::Draining,
        }
    }
}

impl From<Capabilities> for v1::Capabilities {
    fn from(capabilities: Capabilities) -> Self {
        Self {
            tunnel: capabilities
                .tunnel
                .into_iter()
                .map(|operation| v1::Operation { method: operation.method, path: operation.path })
                .collect(),
            runs: capabilities
                .runs
                .into_iter()
                .map(|kind| v1::RunKind::from(kind).into())
                .collect(),
            implicit_latest: capabilities.implicit_latest,
        }
    }
}

impl From<v1::Capabilities> for Capabilities {
    /// Kinds that this version does not know are left out: they are never asked for.
    fn from(capabilities: v1::Capabilities) -> Self {
        let runs = capabilities.runs().filter_map(|kind| RunKind::try_from(kind).ok()).collect();
        Self {
            tunnel: capabilities
                .tunnel
                .into_iter()
                .map(|operation| Operation { method: operation.method, path: operation.path })
                .collect(),
            runs,
            implicit_latest: capabilities.implicit_latest,
        }
    }
}

fn known_state(state: i32) -> Option<ProviderState> {
    match v1::ProviderState::try_from(state) {
        Ok(v1::ProviderState::Starting) => Some(ProviderState::Starting),
        Ok(v1::ProviderState::Ready) => Some(ProviderState::Ready),
        Ok(v1::ProviderState::Absent) => Some(ProviderState::Absent),
        Ok(v1::ProviderState::Failed) => Some(ProviderState::Failed),
        Ok(v1::ProviderState::Draining) => Some(ProviderState::Draining),
        Ok(v1::ProviderState::Unspecified) | Err(_) => None,
    }
}

fn names(targets: &[Target]) -> Vec<String> {
    targets.iter().map(|target| target.as_str().to_owned()).collect()
}

fn targets(names: Vec<String>) -> Vec<Target> {
    names.into_iter().map(Target::from).collect()
}
