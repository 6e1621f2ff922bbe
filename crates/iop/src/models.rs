//! `iop models`: what clients can ask for.

use serde::Deserialize;
use serde_json::Value;

use crate::cli::{Asking, Output};
use crate::client::{AskError, Base};
use crate::table::table;

#[derive(Deserialize)]
struct Models {
    models: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    model: String,
    available: bool,
    #[serde(default)]
    left_out: bool,
    loaded: bool,
    configured: bool,
    providers: Vec<Server>,
}

#[derive(Deserialize)]
struct Server {
    node: String,
    provider: String,
}

/// Runs `iop models` and returns what it prints.
///
/// # Errors
/// The Edge could not be asked.
pub(crate) async fn run(asking: &Asking) -> Result<String, AskError> {
    const PATH: &str = "/api/v1/models";
    let base = Base::parse(&asking.admin, "--admin")?;
    if asking.output == Output::Json {
        return Ok(format!("{:#}\n", base.get::<Value>(PATH).await?));
    }
    let Models { models } = base.get(PATH).await?;
    if models.is_empty() {
        eprintln!("No models yet: `iop status` says which providers were found.");
        return Ok(String::new());
    }
    let rows: Vec<_> = models.iter().map(row).collect();
    Ok(table(["MODEL", "STATE", "SOURCE", "PROVIDERS"], &rows))
}

fn row(model: &Model) -> [String; 4] {
    let state = match (model.available, model.loaded) {
        _ if model.left_out => "left out",
        (true, true) => "loaded",
        (true, false) => "available",
        (false, _) => "unavailable",
    };
    let providers: Vec<_> = model
        .providers
        .iter()
        .map(|server| format!("{}/{}", server.node, server.provider))
        .collect();
    [
        model.model.clone(),
        state.to_owned(),
        if model.configured { "configured" } else { "discovered" }.to_owned(),
        providers.join(", "),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_says_in_a_word_what_becomes_of_a_request_for_the_model() {
        let mut model = json!({
            "model": "chat", "available": true, "left_out": false, "loaded": false, "configured": true,
            "providers": [
                { "node": "box", "provider": "ollama" }, { "node": "rack", "provider": "lab" },
            ],
        });
        let row = |model: &Value| row(&Model::deserialize(model.clone()).unwrap());
        assert_eq!(row(&model), ["chat", "available", "configured", "box/ollama, rack/lab"]);
        model["loaded"] = json!(true);
        assert_eq!(row(&model)[1], "loaded");
        model["left_out"] = json!(true);
        assert_eq!(row(&model)[1], "left out", "its health matters more than what is in memory");
        model["left_out"] = json!(false);
        model["available"] = json!(false);
        model["configured"] = json!(false);
        assert_eq!(row(&model)[1..3], ["unavailable", "discovered"]);
    }
}
