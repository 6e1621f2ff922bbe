//! Networks, proxies and secrets around a provider.

use std::process::Command;

use bytes::Bytes;
use iop_adapters::{ProviderSettings, Secret, Tools, build};
use iop_execution::DiscoverError;
use iop_execution::{Body, CallError};
use iop_net::egress::Egress;
use iop_net::memory::Budget;
use iop_testkit::{ScriptedProvider, answer};
use iop_types::{AdapterType, ErrorCode, RunKind};

use crate::support::{CHAT, adapter, built, header, run, settings, tools, tunnel, tunnel_request};

const INPUT: &str = r#"{"model":"m","messages":[]}"#;

#[tokio::test]
async fn a_provider_on_loopback_is_called_directly() {
    let provider = ScriptedProvider::start().await;
    let outcome = tunnel(
        &*adapter(&provider),
        tunnel_request(CHAT, &[]),
        Body::Full(Bytes::from_static(INPUT.as_bytes())),
    )
    .await;
    assert_eq!(outcome.result, Ok(()));
    let port = provider.address().port();
    built(&settings(&format!("http://localhost:{port}"))).discover().await.unwrap();
}

#[tokio::test]
async fn every_adapter_that_calls_a_server_tells_its_connections() {
    let provider = ScriptedProvider::start().await;
    for adapter in [AdapterType::OpenaiCompat, AdapterType::Ollama, AdapterType::Vllm] {
        let mut settings = settings(&provider.endpoint());
        settings.adapter = adapter;
        let built = built(&settings);
        let body = Body::Full(Bytes::from_static(INPUT.as_bytes()));
        assert_eq!(tunnel(&*built, tunnel_request(CHAT, &[]), body).await.result, Ok(()));
        let connections = built.connections().expect("it has a pool");
        assert_eq!((connections.open, connections.idle), (1, 1), "{adapter:?}");
    }
}

#[test]
fn proxy_variables_change_nothing() {
    let closed = "http://127.0.0.1:9";
    let variables = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"];
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "surroundings::a_provider_on_loopback_is_called_directly"])
        .envs(variables.map(|name| (name, closed)))
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

#[tokio::test]
async fn an_answer_that_must_be_read_whole_is_paid_for_by_the_memory_of_the_node() {
    let provider = ScriptedProvider::start().await;
    let memory = Budget::new(64 * 1024);
    let tools = Tools { memory: memory.clone(), ..tools() };
    let lab = build(&settings(&provider.endpoint()), &tools).unwrap();
    provider.once(CHAT, |request| answer::chat(request, "short"));
    let outcome = run(&*lab, RunKind::Chat, INPUT).await;
    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    let held = memory.stats();
    assert!(held.used == 0 && held.peak > 0 && held.refused == 0, "{held:?}");
    provider.once(CHAT, |request| answer::chat(request, &"long ".repeat(20_000)));
    let Err(CallError::Failed(failure)) = run(&*lab, RunKind::Chat, INPUT).await.result else {
        panic!("it does not fit")
    };
    assert_eq!(failure.code, ErrorCode::OverMemoryBudget);
    assert_eq!((memory.stats().used, memory.stats().refused), (0, 1));
}

#[tokio::test]
async fn no_secret_of_the_settings_is_ever_said() {
    let provider = ScriptedProvider::start().await;
    provider.on_matching(
        |_| true,
        |request| {
            let echo = format!("no {} with {:?}", request.target, request.headers);
            answer::error(404, "not_found", "not_found", &echo)
        },
    );
    let secret = |endpoint: &str| {
        let mut settings = settings(&format!("{endpoint}/?key=SECRET123"));
        settings.secret = Some(Secret::new("SECRET456").unwrap());
        settings.headers = vec![header("x-team", "SECRET789")];
        settings
    };
    let refused = secret("http://127.0.0.1:9");
    for settings in [refused, secret(&provider.endpoint())] {
        assert!(!format!("{settings:?}").contains("SECRET"), "{settings:?}");
        let adapter = built(&settings);
        let outcome = run(&*adapter, RunKind::Chat, INPUT).await;
        let failure = outcome.failure();
        assert!(!format!("{failure:?} {failure}").contains("SECRET"), "{failure}");
        let error = adapter.discover().await.unwrap_err();
        assert!(!format!("{error:?} {error}").contains("SECRET"), "{error}");
    }
    assert_eq!(provider.log().exchanges.len(), 1, "the refused one was never sent");
    assert!(provider.log().exchanges[0].request.target.contains("key=SECRET123"));
}

#[tokio::test]
async fn an_address_outside_the_egress_list_is_not_dialled() {
    let provider = ScriptedProvider::start().await;
    let egress = Egress::parse(["10.0.0.0/8"]).unwrap();
    let adapter = build(&settings(&provider.endpoint()), &Tools { egress, ..tools() }).unwrap();
    let outcome = run(&*adapter, RunKind::Chat, INPUT).await;
    assert_eq!(outcome.failure().code, ErrorCode::ConnectFailed);
    assert!(outcome.failure().message.contains("`egress`"), "{}", outcome.failure());
    assert!(provider.log().connections.is_empty());
}

#[tokio::test]
async fn a_look_that_the_egress_list_forbids_names_the_key_and_the_host_whatever_the_adapter() {
    let egress = Egress::parse(["10.0.0.0/8"]).unwrap();
    for adapter in [AdapterType::OpenaiCompat, AdapterType::Vllm, AdapterType::Ollama] {
        let look = async |url: &str| {
            let mut settings = ProviderSettings::new("lab".into(), adapter);
            settings.endpoint = Some(url.to_owned());
            let tools = Tools { egress: egress.clone(), ..tools() };
            build(&settings, &tools).unwrap().discover().await.unwrap_err()
        };
        for (url, host) in [
            ("http://192.0.2.2:8000", "`192.0.2.2`:"),
            ("http://[2001:db8::7]", "`2001:db8::7`:"),
            ("http://localhost:9", "`localhost` ("),
        ] {
            let error = look(url).await;
            let DiscoverError::Forbidden(reason) = &error else { panic!("{adapter}: {error:?}") };
            assert!(reason.contains("`egress`") && reason.contains(host), "{adapter}: {reason}");
        }
    }
}

#[tokio::test]
async fn settings_that_can_never_work_are_refused_by_name() {
    let message = |settings: &ProviderSettings| {
        build(settings, &tools()).err().expect("it cannot be built").to_string()
    };
    let without = ProviderSettings::new("lab".into(), AdapterType::OpenaiCompat);
    assert!(message(&without).contains("`endpoint`"));
    for endpoint in ["127.0.0.1:8000", "ftp://h", "http://u:p@h"] {
        let message = message(&settings(endpoint));
        assert!(message.contains("endpoint"), "{message}");
        assert!(!message.contains(endpoint), "{message}");
    }
    let mut headers = settings("http://127.0.0.1:9");
    headers.headers = vec![header("content-length", "1")];
    assert!(message(&headers).contains("`content-length`"));
}
