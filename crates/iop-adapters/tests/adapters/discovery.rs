//! What a server lists.

use iop_adapters::Targets;
use iop_execution::DiscoverError;
use iop_testkit::script::Script;
use iop_testkit::{ScriptedProvider, answer, kernel};
use iop_types::Target;
use serde_json::json;

use crate::support::{adapter, built, settings};

const MODELS: &str = "/v1/models";

async fn listed(provider: &ScriptedProvider) -> Result<Vec<Target>, DiscoverError> {
    adapter(provider).discover().await.map(|discovery| discovery.targets)
}

#[tokio::test]
async fn the_listed_ids_are_the_targets_and_no_connection_is_kept() {
    let provider = ScriptedProvider::start().await;
    provider.set_models(&["org/m-7b:q4", "b"]);
    let mut only = settings(&provider.endpoint());
    assert_eq!(listed(&provider).await, Ok(["org/m-7b:q4", "b"].map(Target::from).into()));
    only.targets = Targets::from_list(["b", "absent"]);
    let discovery = built(&only).discover().await.unwrap();
    assert_eq!(discovery.targets, [Target::from("b")]);
    provider.wait_until("nothing stays open", |log| log.open_connections() == 0).await;
    assert_eq!(kernel::connections_to(provider.address().port()), 0);
}

#[tokio::test]
async fn a_list_under_data_beside_one_under_models_is_read_once() {
    let provider = ScriptedProvider::start().await;
    let list = json!({
        "object": "list",
        "data": [{"id": "a"}, {"id": "b"}, {"id": "a"}],
        "models": [{"name": "a", "model": "a"}],
    });
    provider.on(MODELS, move |_| answer::json(200, &list));
    assert_eq!(listed(&provider).await, Ok(["a", "b"].map(Target::from).into()));
}

#[tokio::test]
async fn an_empty_list_is_a_list() {
    let provider = ScriptedProvider::start().await;
    provider.set_models(&[]);
    assert_eq!(listed(&provider).await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable_and_another_kind_is_unusable() {
    let provider = ScriptedProvider::start().await;
    let page = || answer::sized(200, "text/html", "<html>hello</html>");
    provider.once(MODELS, move |_| page());
    provider.once(MODELS, |_| answer::json(200, &json!({"models": "none"})));
    provider.once(MODELS, |_| answer::error(401, "auth", "invalid_api_key", "no"));
    provider.once(MODELS, |_| answer::error(404, "e", "not_found", "no"));
    for told in ["404", "api_key", "", ""] {
        let error = listed(&provider).await.unwrap_err();
        assert!(matches!(error, DiscoverError::Unusable(_)), "{error:?}");
        assert!(error.to_string().contains(told), "{error}");
    }
    provider.once(MODELS, |_| Script::new().reset());
    let error = listed(&provider).await.unwrap_err();
    assert!(matches!(error, DiscoverError::Unreachable(_)), "{error:?}");

    let endpoint = provider.endpoint();
    provider.stop().await;
    let error = built(&settings(&endpoint)).discover().await.unwrap_err();
    assert!(matches!(&error, DiscoverError::Unreachable(_)), "{error:?}");
    assert!(!error.to_string().contains("127.0.0.1"), "{error}");
}

#[tokio::test]
async fn the_base_url_and_the_path_are_joined_once() {
    let provider = ScriptedProvider::start().await;
    provider.on_matching(|_| true, |_| answer::json(200, &json!({"data": []})));
    let bases = [
        ("", "/v1/models"),
        ("/", "/v1/models"),
        ("/v1", "/v1/models"),
        ("/v1/", "/v1/models"),
        ("/api/v1", "/api/v1/models"),
        ("/v1beta", "/v1beta/models"),
    ];
    for (base, expected) in bases {
        let endpoint = format!("{}{base}", provider.endpoint());
        let before = provider.log();
        built(&settings(&endpoint)).discover().await.unwrap();
        let after = provider.log();
        let asked = if after.model_lists > before.model_lists {
            "/v1/models"
        } else {
            after.exchanges.last().map_or("", |exchange| &exchange.request.target)
        };
        assert_eq!(asked, expected, "{base}");
    }
}
