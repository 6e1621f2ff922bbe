//! Model servers that a Node looks for on its own machine.
//!
//! The ports are the defaults of the servers that people run. Whatever answers there with a list of
//! models becomes a provider under the server's name; which adapter speaks to it is what the server
//! itself shows, since ports are used by others too.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use iop_types::ProviderKey;

/// One place to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalServer {
    /// Name of the provider that it becomes.
    pub provider: ProviderKey,
    /// Port on the loopback address.
    pub port: u16,
}

impl LocalServer {
    /// Names a server and its port.
    pub fn new(provider: &str, port: u16) -> Self {
        Self { provider: provider.into(), port }
    }

    /// Returns the usual places: default ports of vLLM and llama.cpp's Python server, llama.cpp's
    /// own server, LM Studio, SGLang and Ollama.
    pub fn usual() -> Vec<Self> {
        vec![
            Self::new("vllm", 8000),
            Self::new("llama-cpp", 8080),
            Self::new("lm-studio", 1234),
            Self::new("sglang", 30_000),
            Self::new("ollama", 11_434),
        ]
    }

    /// Leaves out the ports that this very process listens on.
    pub fn without_own(servers: Vec<Self>, own: &[SocketAddr]) -> Vec<Self> {
        servers
            .into_iter()
            .filter(|server| own.iter().all(|address| address.port() != server.port))
            .collect()
    }

    /// Returns the base URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}:{}", Ipv4Addr::LOCALHOST, self.port)
    }
}

impl fmt::Display for LocalServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.port, self.provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_that_listens_on_a_usual_port_is_not_taken_for_a_model_server() {
        let own = ["127.0.0.1:8080".parse().unwrap()];
        let left = LocalServer::without_own(LocalServer::usual(), &own);
        assert!(left.iter().all(|server| server.port != 8080));
        assert_eq!(left.len(), LocalServer::usual().len() - 1);
    }
}
