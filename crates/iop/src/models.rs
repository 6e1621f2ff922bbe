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
