//! Which adapter fits a server that nobody configured.

use iop_types::AdapterType;

use crate::build::Tools;
use crate::openai_compat::OpenaiCompat;
use crate::settings::ProviderSettings;
use crate::vllm::Engine;

/// Asks what answers at an endpoint; `None` where nothing lists models there.
///
/// vLLM and SGLang name themselves as the owner of what they list. Every other server with such a
/// list is served by what all of them speak.
pub async fn recognise(endpoint: &str, tools: &Tools) -> Option<AdapterType> {
    let mut settings = ProviderSettings::new("".into(), AdapterType::OpenaiCompat);
    settings.endpoint = Some(endpoint.to_owned());
    let models = OpenaiCompat::new(&settings, tools).ok()?.models().await.ok()?;
    let mut owners = models.iter().filter_map(|model| model.owned_by.as_deref());
    Some(match owners.find_map(Engine::of_owner) {
        Some(Engine::Vllm | Engine::Sglang) => AdapterType::Vllm,
        None => AdapterType::OpenaiCompat,
    })
}
