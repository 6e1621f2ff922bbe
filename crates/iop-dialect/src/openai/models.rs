//! Model objects: the client's list, and a provider's.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::head::to_json;

/// Whether a model can be used now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// A ready provider serves it.
    Available,
    /// Every provider that serves it is away.
    Unavailable,
}

/// A model as clients see it: OpenAI's members and three of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// The public name.
    pub id: String,
    /// Time of creation in seconds since 1970.
    pub created: u64,
    /// Who offers it.
    pub owned_by: String,
    /// Whether it can be used now.
    pub availability: Availability,
    /// Whether a provider holds it in memory, where known.
    pub loaded: Option<bool>,
    /// Context length in tokens, where known.
    pub context_length: Option<u32>,
}

#[derive(Serialize)]
struct Object<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'a str,
    availability: Availability,
    #[serde(skip_serializing_if = "Option::is_none")]
    loaded: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<u32>,
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Object<'a>>,
}

impl Model {
    fn object(&self) -> Object<'_> {
        Object {
            id: &self.id,
            object: "model",
            created: self.created,
            owned_by: &self.owned_by,
            availability: self.availability,
            loaded: self.loaded,
            context_length: self.context_length,
        }
    }
}

/// Writes `{"object":"list","data":[…]}`.
pub fn model_list(models: &[Model]) -> Bytes {
    to_json(&List { object: "list", data: models.iter().map(Model::object).collect() }).into()
}

/// Writes one model object.
pub fn model_object(model: &Model) -> Bytes {
    to_json(&model.object()).into()
}

/// A provider's answer that is not a list of models.
#[derive(Debug, thiserror::Error)]
#[error("answer is not a list of models with `data[].id`")]
pub struct ModelListError(#[from] serde_json::Error);

#[derive(Deserialize)]
struct ReceivedList {
    data: Vec<ReceivedModel>,
}

#[derive(Deserialize)]
struct ReceivedModel {
    id: String,
    /// Of any type, because a list is no worse for an owner that is none.
    #[serde(default)]
    owned_by: serde_json::Value,
}

/// One entry of a provider's model list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedModel {
    /// The name under which it is asked for.
    pub id: String,
    /// Whose it is, in the server's words; engines put their own name here.
    pub owned_by: Option<String>,
}

/// Reads a provider's model list, in its order, each id once. An empty list is a list.
///
/// # Errors
/// The body has no `data` array of objects with an `id`.
pub fn read_models(body: &[u8]) -> Result<Vec<ListedModel>, ModelListError> {
    let received: ReceivedList = serde_json::from_slice(body)?;
    let mut seen = BTreeSet::new();
    let models = received.data.into_iter().map(|model| ListedModel {
        id: model.id,
        owned_by: model.owned_by.as_str().map(str::to_owned),
    });
    Ok(models.filter(|model| !model.id.is_empty() && seen.insert(model.id.clone())).collect())
}

/// Reads only the ids of a provider's model list, as [`read_models`] does.
///
/// # Errors
/// As [`read_models`].
pub fn read_model_list(body: &[u8]) -> Result<Vec<String>, ModelListError> {
    Ok(read_models(body)?.into_iter().map(|model| model.id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_about_a_model_is_absent() {
        let model = Model {
            id: "org/m-7b:q4".into(),
            created: 7,
            owned_by: "iop".into(),
            availability: Availability::Available,
            loaded: None,
            context_length: None,
        };
        let object = r#"{"id":"org/m-7b:q4","object":"model","created":7,"owned_by":"iop","availability":"available"}"#;
        assert_eq!(model_object(&model), object);
        let loaded = Model { loaded: Some(true), context_length: Some(4_096), ..model };
        let more = object.replace("}", r#","loaded":true,"context_length":4096}"#);
        assert_eq!(model_list(&[loaded]), format!(r#"{{"object":"list","data":[{more}]}}"#));
        assert_eq!(model_list(&[]), r#"{"object":"list","data":[]}"#);
    }

    #[test]
    fn ids_are_read_in_order_and_once() {
        let body = br#"{"object":"list","models":[{"id":"z"}],"data":[{"id":"b","x":1},{"id":"a"},{"id":"b"}]}"#;
        assert_eq!(read_model_list(body).unwrap(), ["b", "a"]);
        assert!(read_model_list(br#"{"data":[]}"#).unwrap().is_empty());
        let owners =
            br#"{"data":[{"id":"a","owned_by":"vllm"},{"id":"b","owned_by":7},{"id":"c"}]}"#;
        let owners = read_models(owners).unwrap().into_iter().map(|model| model.owned_by);
        assert_eq!(owners.collect::<Vec<_>>(), [Some("vllm".to_owned()), None, None]);
        for body in [&b"<html>"[..], b"{}", br#"{"data":[{"name":"x"}]}"#, br#"{"data":null}"#] {
            assert!(read_model_list(body).is_err());
        }
    }
}
