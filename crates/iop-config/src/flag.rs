//! What `iop up` takes in place of files: `--provider` and `--secret`.

use std::str::FromStr;

use iop_types::{AdapterType, ProviderKey};

use crate::endpoint::{Endpoint, EndpointError};
use crate::node::SecretSource;
use crate::provider::Provider;

/// `NAME=ADAPTER:URL`, or `NAME=mock`.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderFlag {
    /// Key of the provider.
    pub key: ProviderKey,
    /// Its entry, everything else at its default.
    pub provider: Provider,
}

impl FromStr for ProviderFlag {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Self, FlagError> {
        let (key, rest) = text.split_once('=').ok_or(FlagError::Provider)?;
        let (adapter, url) = match rest.split_once(':') {
            Some((adapter, url)) => (adapter, Some(url)),
            None => (rest, None),
        };
        let adapter = AdapterType::parse(adapter)
            .ok_or_else(|| FlagError::Adapter { adapter: adapter.to_owned() })?;
        let endpoint = url.map(str::parse::<Endpoint>).transpose()?;
        if key.is_empty() || (endpoint.is_none() && adapter != AdapterType::Mock) {
            return Err(FlagError::Provider);
        }
        Ok(Self { key: ProviderKey::from(key), provider: Provider::new(adapter, endpoint) })
    }
}

/// `NAME=env:VARIABLE` or `NAME=file:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretFlag {
    /// Name of the secret.
    pub name: String,
    /// Where it is kept.
    pub source: SecretSource,
}

impl FromStr for SecretFlag {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Self, FlagError> {
        let (name, rest) = text.split_once('=').ok_or(FlagError::Secret)?;
        let source = match rest.split_once(':') {
            Some(("env", variable)) if !variable.is_empty() => SecretSource::Env(variable.into()),
            Some(("file", path)) if !path.is_empty() => SecretSource::File(path.into()),
            Some(_) | None => return Err(FlagError::Secret),
        };
        if name.is_empty() {
            return Err(FlagError::Secret);
        }
        Ok(Self { name: name.to_owned(), source })
    }
}

/// A flag that cannot be read. No message repeats what may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// Not of the form of a provider.
    #[error(
        "a provider is NAME=ADAPTER:URL, like gpu=openai_compat:http://127.0.0.1:8000, or NAME=mock"
    )]
    Provider,
    /// No such adapter.
    #[error("no adapter `{adapter}`: write openai_compat, ollama, vllm or mock")]
    Adapter {
        /// What was written.
        adapter: String,
    },
    /// The URL is not one.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Not of the form of a secret.
    #[error("a secret is NAME=env:VARIABLE or NAME=file:PATH; its value is never written here")]
    Secret,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_flag_names_key_adapter_and_endpoint() {
        let flag: ProviderFlag = "smol=openai_compat:http://127.0.0.1:18081".parse().expect("flag");
        assert_eq!(flag.key.as_str(), "smol");
        assert_eq!(flag.provider.adapter, AdapterType::OpenaiCompat);
        assert_eq!(flag.provider.endpoint.expect("endpoint").port(), 18081);
        assert!("demo=mock".parse::<ProviderFlag>().is_ok());
    }

    #[test]
    fn a_malformed_provider_flag_says_what_is_expected() {
        for (text, error) in [
            ("http://127.0.0.1:1", FlagError::Provider),
            ("a=vllm", FlagError::Provider),
            ("=mock", FlagError::Provider),
            ("a=vlm:http://h", FlagError::Adapter { adapter: "vlm".to_owned() }),
            ("a=vllm:ftp://h", FlagError::Endpoint(EndpointError::Scheme)),
        ] {
            assert_eq!(text.parse::<ProviderFlag>(), Err(error), "{text}");
        }
    }

    #[test]
    fn a_secret_flag_names_its_source_and_never_repeats_a_value() {
        let flag: SecretFlag = r"lab=file:C:\key".parse().expect("flag");
        assert_eq!(flag.source, SecretSource::File(r"C:\key".to_owned()));
        for text in ["lab", "lab=sk-123", "lab=env:", "=env:A", "lab=value:sk-123"] {
            let error = text.parse::<SecretFlag>().expect_err(text);
            assert!(!error.to_string().contains("sk-123"));
        }
    }
}
