//! What an operator decides about routes and providers, checked once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use iop_types::{
    NodeId, Policy, ProviderKey, Recovery, RouteName, StallTimeout, Target, UsageMode,
};

/// Names one provider within the execution group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProviderId {
    /// The Node.
    pub node: NodeId,
    /// The provider on it.
    pub provider: ProviderKey,
}

/// Everything that admission is configured with.
#[derive(Debug, Clone)]
pub struct Config {
    /// The routes of the file, in its order.
    pub routes: Vec<RouteConfig>,
    /// Whether a target that a provider lists is a model under its own name.
    pub discovered_routes: bool,
    /// Settings of the routes that are discovered.
    pub discovered: RouteSettings,
    /// Providers that the file names; one that is not here has the defaults.
    pub providers: BTreeMap<ProviderId, ProviderSettings>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            routes: Vec::new(),
            discovered_routes: true,
            discovered: RouteSettings::default(),
            providers: BTreeMap::new(),
        }
    }
}

/// What the Edge decides about a provider; the rest comes from its Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProviderSettings {
    /// How long it may stay silent.
    pub stall_timeout: StallTimeout,
    /// Whether streams are asked for usage.
    pub usage: UsageMode,
}

/// One route of the file.
#[derive(Debug, Clone)]
pub struct RouteConfig {
    /// The model name; a trailing `*` makes it a pattern.
    pub name: RouteName,
    /// Limits and policy.
    pub settings: RouteSettings,
    /// Who may serve it, in the file's order.
    pub candidates: Vec<CandidateConfig>,
}

/// Limits and policy of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteSettings {
    /// How a candidate is picked.
    pub policy: Policy,
    /// How requests wait.
    pub queue: QueueLimits,
    /// Bound on the whole request from receipt; `None` leaves it unbounded.
    pub timeout: Option<Duration>,
    /// Whether streams are asked for usage; either side may say `observed`.
    pub usage: UsageMode,
    /// How long a head may be held so that an early failure can be recovered.
    pub hold_head: Duration,
    /// How far the Edge may try again.
    pub recovery: Recovery,
}

impl Default for RouteSettings {
    fn default() -> Self {
        Self {
            policy: Policy::LeastLoaded,
            queue: QueueLimits::default(),
            timeout: None,
            usage: UsageMode::Exact,
            // 15 s: proxies and clients give up on heads that stay out longer.
            hold_head: Duration::from_secs(15),
            recovery: Recovery::Full,
        }
    }
}

/// How requests of a route wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimits {
    /// How many wait at once; the next is refused. 0 means that nobody waits.
    pub max_waiting: usize,
    /// How long one waits for capacity, from its first request on.
    pub timeout: Duration,
    /// How long after a candidate was last ready its return is waited for.
    pub wait_for_node: Duration,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self {
            max_waiting: 256,
            timeout: Duration::from_secs(30),
            wait_for_node: Duration::from_secs(10),
        }
    }
}

/// One provider that may serve a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CandidateConfig {
    /// The provider.
    pub provider: ProviderId,
    /// What it is asked for. On a pattern route a trailing `*` stands for what the pattern's `*`
    /// matched.
    pub target: Target,
    /// A larger number is used only while no candidate with a smaller one can take the request.
    pub priority: u32,
    /// Share of turns under the policy `weighted`, at least 1.
    pub weight: u32,
}

/// Routes that contradict each other or themselves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Two routes with one name.
    #[error("routes: `{0}` is declared twice; give one of them another name")]
    DuplicateRoute(RouteName),
    /// A route that nobody can serve.
    #[error("routes.{0}.candidates is empty; name at least one provider")]
    NoCandidates(RouteName),
    /// A route without a name.
    #[error("routes: a name is empty; write `*` for a route that takes every name")]
    EmptyName,
    /// A `*` that is not at the end of the name.
    #[error("routes.{0}: `*` may only stand at the end of a name")]
    MisplacedStar(RouteName),
    /// The same provider and target twice.
    #[error(
        "routes.{route}.candidates: provider `{}` on node `{}` with target `{target}` is listed \
         twice; remove one or name another target",
        provider.provider, provider.node
    )]
    DuplicateCandidate {
        /// The route.
        route: RouteName,
        /// The provider.
        provider: ProviderId,
        /// The target.
        target: Target,
    },
    /// A weight of zero.
    #[error(
        "routes.{route}.candidates[{index}].weight is 0; use at least 1 or remove the candidate"
    )]
    ZeroWeight {
        /// The route.
        route: RouteName,
        /// Position of the candidate, from 0.
        index: usize,
    },
    /// A target with a `*` where the name has none to replace it.
    #[error(
        "routes.{route}.candidates[{index}].target ends in `*` but the route's name does not; \
         name the target in full"
    )]
    StarWithoutPattern {
        /// The route.
        route: RouteName,
        /// Position of the candidate, from 0.
        index: usize,
    },
}

impl Config {
    /// Checks that every name leads to exactly one route and every route to someone.
    ///
    /// Patterns may overlap: the one with the longest text before its `*` wins.
    ///
    /// # Errors
    /// Names the first key that cannot be served as written.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut names = BTreeSet::new();
        for route in &self.routes {
            if !names.insert(&route.name) {
                return Err(ConfigError::DuplicateRoute(route.name.clone()));
            }
            route.validate()?;
        }
        Ok(())
    }
}

impl RouteConfig {
    /// Returns the text before the `*` when the name is a pattern.
    pub(crate) fn prefix(&self) -> Option<&str> {
        self.name.as_str().strip_suffix('*')
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let fixed = self.prefix().unwrap_or(self.name.as_str());
        if self.name.as_str().is_empty() {
            return Err(ConfigError::EmptyName);
        }
        if fixed.contains('*') {
            return Err(ConfigError::MisplacedStar(self.name.clone()));
        }
        if self.candidates.is_empty() {
            return Err(ConfigError::NoCandidates(self.name.clone()));
        }
        let mut seen = BTreeSet::new();
        for (index, candidate) in self.candidates.iter().enumerate() {
            let route = self.name.clone();
            if candidate.weight == 0 {
                return Err(ConfigError::ZeroWeight { route, index });
            }
            if candidate.target.as_str().ends_with('*') && self.prefix().is_none() {
                return Err(ConfigError::StarWithoutPattern { route, index });
            }
            if !seen.insert((&candidate.provider, &candidate.target)) {
                return Err(ConfigError::DuplicateCandidate {
                    route,
                    provider: candidate.provider.clone(),
                    target: candidate.target.clone(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(provider: &str, target: &str) -> CandidateConfig {
        CandidateConfig {
            provider: ProviderId { node: "n".into(), provider: provider.into() },
            target: target.into(),
            priority: 0,
            weight: 1,
        }
    }

    type Routes<'a> = &'a [(&'a str, &'a [CandidateConfig])];

    fn config(routes: Routes<'_>) -> Config {
        let routes = routes.iter().map(|(name, candidates)| RouteConfig {
            name: (*name).into(),
            settings: RouteSettings::default(),
            candidates: candidates.to_vec(),
        });
        Config { routes: routes.collect(), ..Config::default() }
    }

    #[test]
    fn overlapping_patterns_and_aliases_are_accepted() {
        let one = [candidate("p", "m")];
        let star = [candidate("p", "*")];
        assert_eq!(
            config(&[("a", &one), ("a*", &one), ("ab*", &star), ("*", &one)]).validate(),
            Ok(())
        );
    }

    #[test]
    fn ambiguity_and_nonsense_are_refused_by_name() {
        let one = [candidate("p", "m")];
        let twice = [candidate("p", "m"), candidate("p", "m")];
        let weightless = [CandidateConfig { weight: 0, ..candidate("p", "m") }];
        let starred = [candidate("p", "m*")];
        let cases: [(Routes<'_>, &str); 7] = [
            (&[("a", &one), ("a", &one)], "`a` is declared twice"),
            (&[("a*b", &one)], "`*` may only stand at the end"),
            (&[("", &one)], "a name is empty"),
            (&[("a", &[])], "routes.a.candidates is empty"),
            (&[("a", &twice)], "listed twice"),
            (&[("a", &weightless)], "candidates[0].weight is 0"),
            (&[("a", &starred)], "target ends in `*`"),
        ];
        for (routes, says) in cases {
            let error = config(routes).validate().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
