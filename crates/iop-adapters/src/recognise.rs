//! Which adapter fits a server that nobody configured.

use iop_types::AdapterType;

use crate::build::Tools;
use crate::ollama::Ollama;
use crate::openai_compat::OpenaiCompat;
use crate::settings::ProviderSettings;
use crate::vllm::Engine;

/// Asks what answers at an endpoint; `None` where nothing lists models there.
///
/// vLLM and SGLang name themselves as the owner of what they list. Ollama greets by its name; others
/// have its list of models, too, and SGLang can be told to greet like it. Every other server with
/// OpenAI's list is served by what all of them speak.
pub async fn recognise(endpoint: &str, tools: &Tools) -> Option<AdapterType> {
    let mut settings = ProviderSettings::new("".into(), AdapterType::OpenaiCompat);
    settings.endpoint = Some(endpoint.to_owned());
    let ollama = Ollama::new(&settings, tools).ok()?;
    let openai = OpenaiCompat::new(&settings, tools).ok()?;
    let (greets, models) = futures_util::future::join(ollama.greets(), openai.models()).await;
    let mut owners = models.iter().flatten().filter_map(|model| model.owned_by.as_deref());
    match owners.find_map(Engine::of_owner) {
        Some(Engine::Vllm | Engine::Sglang) => Some(AdapterType::Vllm),
        None if greets => Some(AdapterType::Ollama),
        None => models.is_ok().then_some(AdapterType::OpenaiCompat),
    }
}
