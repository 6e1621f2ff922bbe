//! The lists of `GET /api/tags` and `GET /api/ps`.

use std::collections::BTreeSet;

use serde::Deserialize;

/// An answer that is not a list of models.
#[derive(Debug, thiserror::Error)]
#[error("answer is not a list of models with `models[].name`")]
pub struct ModelNamesError(#[from] serde_json::Error);

#[derive(Deserialize)]
struct List {
    /// `null` where the server has none: Go writes an empty slice so.
    #[serde(deserialize_with = "Option::deserialize")]
    models: Option<Vec<Model>>,
}

#[derive(Deserialize)]
struct Model {
    name: Option<String>,
    model: Option<String>,
}

/// Reads the names of a list, in its order, each once. An empty list is a list.
///
/// # Errors
/// The body has no `models` array of objects.
pub fn read_model_names(body: &[u8]) -> Result<Vec<String>, ModelNamesError> {
    let list: List = serde_json::from_slice(body)?;
    let mut seen = BTreeSet::new();
    let models = list.models.unwrap_or_default().into_iter();
    let names = models.filter_map(|model| model.name.or(model.model));
    Ok(names.filter(|name| !name.is_empty() && seen.insert(name.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_order_and_once() {
        let body = br#"{"models":[{"name":"b:latest","model":"b:latest","size":1},{"model":"a:q4"},
            {"name":"b:latest"},{"name":""}]}"#;
        assert_eq!(read_model_names(body).unwrap(), ["b:latest", "a:q4"]);
        assert!(read_model_names(br#"{"models":[]}"#).unwrap().is_empty());
        assert!(read_model_names(br#"{"models":null}"#).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_list_is_an_error() {
        for body in [&b"<html>"[..], b"Ollama is running", b"[]", b"{}", br#"{"models":"none"}"#] {
            assert!(read_model_names(body).is_err());
        }
    }
}
