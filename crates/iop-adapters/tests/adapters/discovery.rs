//! What a server lists, and what a probe concludes.

use std::time::Duration;

use iop_adapters::Targets;
use iop_execution::{DiscoverError, ProbeOutcome};
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

/// What a probe concludes from these two answers.
async fn probe(
    health: impl Fn() -> Script + Send + Sync + 'static,
    list: impl Fn() -> Script + Send + Sync + 'static,
) -> ProbeOutcome {
    let provider = ScriptedProvider::start().await;
    provider.on("/health", move |_| health());
    provider.on(MODELS, move |_| list());
    let adapter = adapter(&provider);
    let outcome = adapter.probe().expect("the adapter has a probe").probe("m".into()).await;
    provider.wait_until("nothing stays open", |log| log.open_connections() == 0).await;
    outcome
}

fn well() -> Script {
    answer::json(200, &json!({"status": "ok"}))
}

fn has(id: &'static str) -> impl Fn() -> Script + Send + Sync + 'static {
    move || answer::json(200, &json!({"data": [{"id": id}]}))
}

fn says(status: u16) -> impl Fn() -> Script + Send + Sync + 'static {
    move || answer::error(status, "e", "e", "no")
}

#[tokio::test]
async fn only_health_and_the_exact_target_together_are_available() {
    assert_eq!(probe(well, has("m")).await, ProbeOutcome::Available);
    let empty = || Script::new().head(200, &[("content-length", "0")]);
    assert_eq!(probe(empty, has("m")).await, ProbeOutcome::Available);
    for status in [401, 403, 404, 429] {
        assert_eq!(probe(says(status), has("m")).await, ProbeOutcome::Unknown, "{status}");
        assert_eq!(probe(well, says(status)).await, ProbeOutcome::Unknown, "{status}");
    }
    let page = || answer::sized(200, "text/html; charset=utf-8", "<html>");
    assert_eq!(probe(page, has("m")).await, ProbeOutcome::Unknown);
    assert_eq!(probe(well, page).await, ProbeOutcome::Unknown);
}

#[tokio::test]
async fn a_list_without_the_target_a_sick_engine_and_a_reset_are_unavailable() {
    assert_eq!(probe(well, has("m:latest")).await, ProbeOutcome::Unavailable);
    assert_eq!(probe(says(404), has("other")).await, ProbeOutcome::Unavailable);
    assert_eq!(probe(says(500), has("m")).await, ProbeOutcome::Unavailable);
    assert_eq!(probe(says(503), has("m")).await, ProbeOutcome::Unavailable);
    assert_eq!(probe(|| Script::new().reset(), has("m")).await, ProbeOutcome::Unavailable);
    let loading = || answer::json(503, &json!({"error": {"message": "Loading model"}}));
    assert_eq!(probe(loading, has("m")).await, ProbeOutcome::Unknown);

    let provider = ScriptedProvider::start().await;
    let gone = adapter(&provider);
    provider.stop().await;
    assert_eq!(gone.probe().unwrap().probe("m".into()).await, ProbeOutcome::Unavailable);
}

#[tokio::test]
async fn silence_to_both_questions_is_unavailable_and_to_one_unknown() {
    let silent = || Script::new().wait(Duration::from_secs(60));
    let (both, one) = tokio::join!(probe(silent, silent), probe(silent, has("m")));
    assert_eq!(both, ProbeOutcome::Unavailable);
    assert_eq!(one, ProbeOutcome::Unknown);
}
