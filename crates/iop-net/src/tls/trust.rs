//! TLS to providers: they are verified as browsers verify a server, by the name in the endpoint.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::stream::Secure;
use super::{HandshakeError, provider};
use crate::socket::Socket;

/// What providers speak inside TLS.
const PROTOCOL: &[u8] = b"http/1.1";

/// Which CAs vouch for providers.
#[derive(Clone)]
pub struct Trust(Roots);

#[derive(Clone)]
enum Roots {
    Native,
    Given(Arc<ClientConfig>),
}

impl Trust {
    /// Those that this machine trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR` name others). They are read
    /// once in a process, when they are first needed.
    pub const fn native() -> Self {
        Self(Roots::Native)
    }

    /// These and no others.
    ///
    /// # Errors
    /// One is no certificate.
    pub fn only(
        roots: impl IntoIterator<Item = CertificateDer<'static>>,
    ) -> Result<Self, rustls::Error> {
        let mut store = RootCertStore::empty();
        for root in roots {
            store.add(root)?;
        }
        Ok(Self(Roots::Given(config(store)?)))
    }

    /// Performs the handshake with whoever answered for `host`. Dropping the future closes the
    /// connection; the caller bounds the time.
    pub(crate) async fn connect(
        &self,
        socket: Socket,
        host: &str,
    ) -> Result<Socket, HandshakeError> {
        let config = match &self.0 {
            Roots::Given(config) => Arc::clone(config),
            Roots::Native => native().await?,
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|_| HandshakeError::WrongName)?;
        let stream = TlsConnector::from(config).connect(name, socket).await?;
        Ok(Socket::new(Secure::new(stream)))
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Roots::Native => "Trust(native)",
            Roots::Given(_) => "Trust(given)",
        })
    }
}

async fn native() -> Result<Arc<ClientConfig>, HandshakeError> {
    static NATIVE: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = NATIVE.get() {
        return Ok(Arc::clone(config));
    }
    // Reads a hundred files or more.
    let read = tokio::task::spawn_blocking(read_native).await;
    let config = read.map_err(|error| HandshakeError::NoRoots(error.to_string()))??;
    Ok(Arc::clone(NATIVE.get_or_init(|| config)))
}

fn read_native() -> Result<Arc<ClientConfig>, HandshakeError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    let (usable, _) = store.add_parsable_certificates(loaded.certs);
    if usable == 0 {
        let why = loaded.errors.first().map(ToString::to_string).unwrap_or_default();
        return Err(HandshakeError::NoRoots(why));
    }
    Ok(config(store)?)
}

fn config(store: RootCertStore) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}
