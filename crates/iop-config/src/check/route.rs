//! Routes and where they lead.

use std::collections::BTreeMap;

use iop_types::{NodeId, ProviderKey, RouteName, Target};

use crate::edge::NodeEntry;
use crate::path::Path;
use crate::provider::Provider;
use crate::read::{Findings, closest};
use crate::route::{Candidate, Route};

use super::free_name;

pub(super) fn check(
    route_name: &RouteName,
    route: &mut Route,
    nodes: &BTreeMap<NodeId, NodeEntry>,
    at: &Path,
    findings: &mut Findings,
) {
    let (fixed, is_pattern) = match route_name.as_str().strip_suffix('*') {
        Some(fixed) => (fixed, true),
        None => (route_name.as_str(), false),
    };
    free_name(route_name.as_str(), at.clone(), findings);
    if fixed.contains('*') {
        findings.add(at.clone(), "has a `*` in the middle: write it at the end, or a whole name");
    }
    if route.candidates.is_empty() {
        findings.add(
            at.key("candidates"),
            "is empty: write at least one of { node: NODE, provider: PROVIDER, target: TARGET }",
        );
    }
    if route.timeout.is_some_and(|timeout| timeout.is_zero()) {
        findings.add(
            at.key("timeout"),
            "must be more than 0: write a duration, or remove the key for no bound",
        );
    }
    for (index, candidate) in route.candidates.iter_mut().enumerate() {
        let at = at.key("candidates").index(index);
        if candidate.target.as_str().contains('*') && !is_pattern {
            findings.add(
                at.key("target"),
                "has a `*` but the route's name has none to fill it: write a whole target",
            );
        }
        resolve(candidate, nodes, &at, findings);
    }
    duplicates(&route.candidates, at, findings);
}

/// Resolves a candidate's provider to an instance key.
fn resolve(
    candidate: &mut Candidate,
    nodes: &BTreeMap<NodeId, NodeEntry>,
    at: &Path,
    findings: &mut Findings,
) {
    free_name(candidate.target.as_str(), at.key("target"), findings);
    if candidate.weight == 0 {
        findings
            .add(at.key("weight"), "must be at least 1: remove the candidate to give it nothing");
    }
    let Some(entry) = nodes.get(&candidate.node) else {
        let names = nodes.keys().map(NodeId::as_str);
        let message = format!(
            "there is no Node `{}`{}: name it under `nodes`; `{}: {{}}` is enough",
            candidate.node,
            suggestion(candidate.node.as_str(), names),
            candidate.node,
        );
        findings.add(at.key("node"), message);
        return;
    };
    let no_providers = BTreeMap::new();
    let providers = entry.providers.as_ref().unwrap_or(&no_providers);
    match find(&candidate.provider, providers) {
        Found::Listed(key, provider) => {
            let is_served = provider.serves_all()
                || provider.targets.contains(&candidate.target)
                || candidate.target.as_str().ends_with('*');
            if !is_served {
                findings.add(
                    at.key("target"),
                    format!(
                        "`{}` is not among the targets of provider `{key}`: add it there, or \
                         write one of {}",
                        candidate.target,
                        provider.targets.iter().map(Target::as_str).collect::<Vec<_>>().join(", "),
                    ),
                );
            }
            candidate.provider = key.clone();
        }
        Found::Several(choices) => findings.add(
            at.key("provider"),
            format!(
                "`{}` is the adapter of several providers of Node `{}`: name one of {}",
                candidate.provider,
                candidate.node,
                choices.join(", "),
            ),
        ),
        // A Node that looks for servers may still find one of this name.
        Found::Nothing if entry.discovers() => {}
        Found::Nothing => {
            let names = providers.keys().map(ProviderKey::as_str);
            let message = format!(
                "Node `{}` has no provider `{}`{}: define it under `nodes.{}.providers`",
                candidate.node,
                candidate.provider,
                suggestion(candidate.provider.as_str(), names),
                candidate.node,
            );
            findings.add(at.key("provider"), message);
        }
    }
}

enum Found<'a> {
    Listed(&'a ProviderKey, &'a Provider),
    Several(Vec<&'a str>),
    Nothing,
}

/// Looks up like the Node's registry: the instance key first, then an adapter's name as long as
/// exactly one instance has it.
fn find<'a>(wanted: &ProviderKey, providers: &'a BTreeMap<ProviderKey, Provider>) -> Found<'a> {
    if let Some((key, provider)) = providers.get_key_value(wanted) {
        return Found::Listed(key, provider);
    }
    let of_type: Vec<_> = providers
        .iter()
        .filter(|(_, provider)| provider.adapter.as_str() == wanted.as_str())
        .collect();
    match of_type.as_slice() {
        [] => Found::Nothing,
        [(key, provider)] => Found::Listed(key, provider),
        several => Found::Several(several.iter().map(|(key, _)| key.as_str()).collect()),
    }
}

fn duplicates(candidates: &[Candidate], at: &Path, findings: &mut Findings) {
    for (index, candidate) in candidates.iter().enumerate() {
        let same = |other: &&Candidate| {
            (&other.node, &other.provider, &other.target)
                == (&candidate.node, &candidate.provider, &candidate.target)
        };
        if candidates[..index].iter().any(|other| same(&other)) {
            findings.add(
                at.key("candidates").index(index),
                "is the same node, provider and target as a candidate before it: remove one",
            );
        }
    }
}

fn suggestion<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    closest(text, names).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}
