//! One provider's entry.

use std::collections::BTreeSet;

use iop_types::AdapterType;

use crate::edge::Mode;
use crate::headers;
use crate::path::Path;
use crate::provider::{ALL, Provider};
use crate::read::Findings;

use super::{free_name, name};

pub(super) fn check(provider: &Provider, mode: Mode, at: &Path, findings: &mut Findings) {
    endpoint(provider, at, findings);
    targets(provider, at, findings);
    only_for_some(provider, at, findings);
    if provider.first_response_timeout.is_some_and(|timeout| timeout.is_zero()) {
        findings.add(
            at.key("first_response_timeout"),
            "must be more than 0: write a duration, or remove the key for no bound",
        );
    }
    if provider.keep_alive.as_ref().is_some_and(|keep_alive| !keep_alive.is_readable()) {
        findings.add(
            at.key("keep_alive"),
            "is no duration that Ollama reads: write 5m, 1h30m or a number of seconds without quotes",
        );
    }
    if let Some(key) = &provider.api_key {
        name(&key.node_secret, "secret", at.key("api_key").key("node_secret"), findings);
    }
    credential(provider, mode, at, findings);
    for (name, value) in &provider.headers {
        if let Some(objection) = headers::objection(name, value) {
            findings.add(at.key("headers").key(name), objection);
        }
    }
}

fn credential(provider: &Provider, mode: Mode, at: &Path, findings: &mut Findings) {
    if let Some(slot) = &provider.credential {
        let at = at.key("credential");
        name(slot.as_str(), "slot", at.clone(), findings);
        if mode == Mode::Local {
            findings.add(
                at.clone(),
                "needs managed mode (`iop edge init`): in local mode name a secret of the Node \
                 with `api_key: { node_secret: NAME }`",
            );
        }
        if provider.api_key.is_some() {
            findings.add(at, "stands beside `api_key`: keep the one whose owner holds the key");
        }
    }
    if let Some(profile) = &provider.profile {
        let at = at.key("profile");
        if provider.credential.is_none() {
            findings.add(at.clone(), "says how a slot's key is sent: name one with `credential`");
        }
        if let Some(objection) = headers::no_carrier(&profile.header) {
            findings.add(at.key("header"), objection);
        }
        if let Some(scheme) = &profile.scheme
            && (scheme.is_empty() || !headers::is_token(scheme))
        {
            findings.add(at.key("scheme"), "is no word: write one like Bearer, or remove the key");
        }
    }
}

fn endpoint(provider: &Provider, at: &Path, findings: &mut Findings) {
    match (provider.adapter, &provider.endpoint) {
        (AdapterType::Mock, None) => {}
        (AdapterType::Mock, Some(_)) => {
            findings.add(at.key("endpoint"), "`mock` has no server: remove the endpoint");
        }
        (adapter, None) => findings.add(
            at.key("endpoint"),
            format!(
                "is missing: `{adapter}` needs the server's base URL, like http://127.0.0.1:{}",
                if adapter == AdapterType::Ollama { 11_434 } else { 8_000 }
            ),
        ),
        (_, Some(_)) => {}
    }
}

fn targets(provider: &Provider, at: &Path, findings: &mut Findings) {
    let at = at.key("targets");
    if provider.targets.is_empty() {
        findings.add(at, "is empty: write names, or [\"*\"] for all that the server lists");
        return;
    }
    if provider.serves_all() && provider.targets.len() > 1 {
        findings.add(at.clone(), format!("`{ALL}` is everything: write it alone, or only names"));
    }
    let mut seen = BTreeSet::new();
    for (index, target) in provider.targets.iter().enumerate() {
        free_name(target.as_str(), at.index(index), findings);
        if !seen.insert(target) {
            findings.add(at.index(index), format!("`{target}` is listed twice: keep one"));
        }
    }
}

/// Keys that only one adapter understands are refused elsewhere: nothing is accepted without effect.
fn only_for_some(provider: &Provider, at: &Path, findings: &mut Findings) {
    let for_ollama = provider.adapter == AdapterType::Ollama;
    let for_mock = provider.adapter == AdapterType::Mock;
    for (key, is_set, is_known, adapters) in [
        ("context_size", provider.context_size > 0, for_ollama, "`ollama`"),
        ("keep_alive", provider.keep_alive.is_some(), for_ollama, "`ollama`"),
        ("manage_models", provider.manage_models, for_ollama, "`ollama`"),
        ("script", provider.script.is_some(), for_mock, "`mock`"),
        ("api_key", provider.api_key.is_some(), !for_mock, "adapters with a server"),
        ("credential", provider.credential.is_some(), !for_mock, "adapters with a server"),
        ("headers", !provider.headers.is_empty(), !for_mock, "adapters with a server"),
    ] {
        if is_set && !is_known {
            let adapter = provider.adapter;
            findings
                .add(at.key(key), format!("has no meaning for `{adapter}`, only for {adapters}"));
        }
    }
}
