//! The model list: what this Edge's own registry knows, at once, whatever its members do.

use http::Response;
use iop_admission::{Model, Refused};
use iop_dialect::openai::{self, Availability, model_list, model_object};
use percent_encoding::percent_decode_str;

use super::errors::ErrorAnswer;
use super::response::{ResponseBody, json};
use crate::core::Core;

/// Every model that a client can ask for.
pub(crate) fn list(core: &Core) -> Response<ResponseBody> {
    let models = core.desk.tell(|admission, _| admission.models());
    let models: Vec<_> = models.iter().map(|model| object(core, model)).collect();
    json(model_list(&models))
}

/// One model. `id` is the rest of the path: names hold slashes, encoded or not.
///
/// # Errors
/// No model has this name.
pub(crate) fn one(core: &Core, id: &str) -> Result<Response<ResponseBody>, ErrorAnswer> {
    let name = percent_decode_str(id).decode_utf8_lossy();
    let model = core.desk.tell(|admission, _| admission.model(&name))?;
    Ok(json(model_object(&object(core, &model))))
}

fn object(core: &Core, model: &Model) -> openai::Model {
    openai::Model {
        id: model.name.as_str().to_owned(),
        created: core.started_unix(),
        owned_by: core.file.group.clone(),
        availability: match model.available {
            true => Availability::Available,
            false => Availability::Unavailable,
        },
        loaded: model.loaded.then_some(true),
        context_length: context_length(core, model),
    }
}

/// The window that the file forces on every provider of the model, where it forces one.
fn context_length(core: &Core, model: &Model) -> Option<u32> {
    let forced = model.providers.iter().map(|id| {
        let provider = core.file.provider(&id.node, &id.provider)?;
        (provider.context_size > 0).then_some(provider.context_size)
    });
    forced.min().flatten()
}

impl From<Refused> for ErrorAnswer {
    fn from(refused: Refused) -> Self {
        let answer = Self::from_failure(&refused.failure());
        match refused {
            Refused::ModelNotFound { .. } => answer.about(Some("model")),
            _ => answer,
        }
    }
}
