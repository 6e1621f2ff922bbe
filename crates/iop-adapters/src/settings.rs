//! What an adapter is told about the provider it speaks to.

use std::fmt;

use iop_dialect::ollama::Forced;
use iop_types::{AdapterType, Header, ProviderKey, Target};

/// Everything that [`build`](crate::build) needs to know of one provider.
///
/// Printing it shows neither endpoint nor header values: both may hold secrets.
#[derive(Clone)]
pub struct ProviderSettings {
    /// Instance key.
    pub key: ProviderKey,
    /// Dialect of the server.
    pub adapter: AdapterType,
    /// Base URL of the server; `None` where the adapter needs none.
    pub endpoint: Option<String>,
    /// Which of the server's targets are served.
    pub targets: Targets,
    /// Headers added to every request.
    pub headers: Vec<Header>,
    /// The provider's API key, already resolved; sent as a bearer token.
    pub secret: Option<Secret>,
    /// Whether somebody else runs the server and counts every request: it is asked for no token.
    pub is_hosted: bool,
    /// Options forced on every request of the Ollama adapter.
    pub forced: Forced,
    /// Script of the mock adapter as JSON text; `None` plays the demonstration.
    pub script: Option<String>,
}

impl ProviderSettings {
    /// Makes settings with the defaults of everything that may be left out.
    pub fn new(key: ProviderKey, adapter: AdapterType) -> Self {
        Self {
            key,
            adapter,
            endpoint: None,
            targets: Targets::All,
            headers: Vec::new(),
            secret: None,
            is_hosted: false,
            forced: Forced::default(),
            script: None,
        }
    }
}

impl fmt::Debug for ProviderSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderSettings")
            .field("key", &self.key)
            .field("adapter", &self.adapter)
            .field("targets", &self.targets)
            .finish_non_exhaustive()
    }
}

/// Which of a server's targets are served.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Targets {
    /// All that the server lists.
    #[default]
    All,
    /// Those of this list that the server lists too.
    Only(Vec<Target>),
}

impl Targets {
    /// Reads the configured list, in which `*` stands for everything.
    pub fn from_list<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        if names.contains(&"*") {
            return Self::All;
        }
        Self::Only(names.into_iter().map(Target::from).collect())
    }

    /// Keeps what is served, in the server's order.
    pub fn select(&self, listed: impl IntoIterator<Item = Target>) -> Vec<Target> {
        let listed = listed.into_iter();
        match self {
            Self::All => listed.collect(),
            Self::Only(names) => listed.filter(|target| names.contains(target)).collect(),
        }
    }
}

/// A provider's API key. Never printed, and removed from what providers say.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Accepts a key that can be sent in a header.
    ///
    /// # Errors
    /// Refuses an empty key and one with characters outside printable ASCII.
    pub fn new(text: &str) -> Result<Self, MalformedSecret> {
        let is_printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || !is_printable {
            return Err(MalformedSecret);
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the key itself, for the one place that sends it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A secret that no header can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "secret is empty or has characters outside printable ASCII: check for blanks and line ends"
)]
pub struct MalformedSecret;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_shows_nothing_of_itself() {
        let secret = Secret::new("sk-very-secret").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert_eq!(Secret::new("two words"), Err(MalformedSecret));
        assert_eq!(Secret::new("line\n"), Err(MalformedSecret));
        assert_eq!(Secret::new(""), Err(MalformedSecret));
    }

    #[test]
    fn a_star_serves_all_and_a_list_serves_what_is_listed_on_both_sides() {
        let listed = || ["a", "b", "c"].map(Target::from);
        assert_eq!(Targets::from_list(["x", "*"]).select(listed()), listed());
        let served = Targets::from_list(["c", "a", "x"]).select(listed());
        assert_eq!(served, ["a", "c"].map(Target::from));
    }
}
