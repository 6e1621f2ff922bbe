//! From settings to a provider.

use std::sync::Arc;

use iop_execution::Provider;
use iop_net::egress::Egress;
use iop_net::http::EndpointError;
use iop_net::memory::Budget;
use iop_net::net::Net;
use iop_types::AdapterType;

use crate::mock::{Mock, ScriptError};
use crate::ollama::Ollama;
use crate::openai_compat::OpenaiCompat;
use crate::server::MalformedHeader;
use crate::settings::ProviderSettings;
use crate::vllm::Vllm;

/// What adapters need of the process they run in.
#[derive(Debug, Clone)]
pub struct Tools {
    /// The network.
    pub net: Arc<dyn Net>,
    /// What may be dialled.
    pub egress: Egress,
    /// Pays for the bodies that an adapter has to hold whole.
    pub memory: Budget,
}

/// Makes a provider. Opens no socket; a server that is not there yet is no error.
///
/// # Errors
/// Names the setting that keeps the provider from ever working.
pub fn build(settings: &ProviderSettings, tools: &Tools) -> Result<Arc<dyn Provider>, BuildError> {
    match settings.adapter {
        AdapterType::Mock => Ok(Arc::new(Mock::new(settings)?)),
        AdapterType::OpenaiCompat => Ok(Arc::new(OpenaiCompat::new(settings, tools)?)),
        AdapterType::Ollama => Ok(Arc::new(Ollama::new(settings, tools)?)),
        AdapterType::Vllm => Ok(Arc::new(Vllm::new(settings, tools)?)),
    }
}

/// A provider that can never work as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The adapter speaks to a server and does not know where it is.
    #[error("adapter `{adapter}` needs an `endpoint` such as http://127.0.0.1:8000")]
    NoEndpoint {
        /// The adapter that was asked for.
        adapter: AdapterType,
    },
    /// The endpoint cannot be dialled.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A configured header cannot be sent.
    #[error(transparent)]
    Header(#[from] MalformedHeader),
    /// The mock's script cannot be played.
    #[error(transparent)]
    Script(#[from] ScriptError),
}
