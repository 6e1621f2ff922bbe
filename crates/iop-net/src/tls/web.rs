//! TLS for the listeners of clients and operators: a certificate and its key, in files that others
//! renew.
//!
//! The files are looked at, at most once a second, when somebody connects. Files that changed and fit
//! together count from that connection on; until they do, what was read before serves on and a warning
//! says why. Nothing watches the directory: tools that renew certificates replace files in too many ways.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use super::stream::Secure;
use super::{HandshakeError, provider};
use crate::socket::Socket;

/// Clients may be far away and slow.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Where a listener's certificate is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain, PEM, leaf first.
    pub certificate: PathBuf,
    /// The leaf's private key, PEM.
    pub key: PathBuf,
}

/// TLS of a listener for clients: TLS 1.2 and 1.3, HTTP/1.1 and HTTP/2.
#[derive(Debug)]
pub struct WebTls {
    files: CertificateFiles,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    config: Arc<ServerConfig>,
    /// What was read or refused last.
    seen: Stamp,
    look_again: Instant,
}

/// Tells whether files changed: when they were written, and how long they are.
type Stamp = [Option<(SystemTime, u64)>; 2];

impl WebTls {
    /// Reads the files.
    ///
    /// # Errors
    /// They cannot serve.
    pub fn open(files: CertificateFiles) -> Result<Self, CertificateError> {
        let seen = files.stamp();
        let config = files.read()?;
        let look_again = Instant::now() + LOOK;
        Ok(Self { files, state: Mutex::new(State { config, seen, look_again }) })
    }

    /// Performs the handshake. Dropping the future closes the connection.
    ///
    /// # Errors
    /// The client left, was too slow, or speaks nothing that is spoken here.
    pub async fn accept(&self, socket: Socket) -> Result<Socket, HandshakeError> {
        let handshake = TlsAcceptor::from(self.current()).accept(socket);
        match tokio::time::timeout(PATIENCE, handshake).await {
            Ok(stream) => Ok(Socket::new(Secure::new(stream?))),
            Err(_) => Err(HandshakeError::Timeout(PATIENCE)),
        }
    }

    /// Returns what serves now. Two looks at the file system and, after a change, two small reads.
    fn current(&self) -> Arc<ServerConfig> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now >= state.look_again {
            state.look_again = now + LOOK;
            let stamp = self.files.stamp();
            if stamp != state.seen {
                state.seen = stamp;
                let file = self.files.certificate.display();
                match self.files.read() {
                    Ok(config) => {
                        state.config = config;
                        info!(%file, "serving a new certificate");
                    }
                    Err(error) => {
                        let error = chain(&error);
                        warn!(%file, error, "the new certificate cannot serve, keeping the old one");
                    }
                }
            }
        }
        Arc::clone(&state.config)
    }
}

fn chain(error: &CertificateError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl CertificateFiles {
    fn stamp(&self) -> Stamp {
        [&self.certificate, &self.key].map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
    }

    fn read(&self) -> Result<Arc<ServerConfig>, CertificateError> {
        let chain = CertificateDer::pem_file_iter(&self.certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| CertificateError::of("certificate", &self.certificate, error))?;
        if chain.is_empty() {
            return Err(CertificateError::Empty {
                what: "certificate",
                path: self.certificate.clone(),
            });
        }
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| CertificateError::of("private key", &self.key, error))?;
        let unfit = |source| CertificateError::Unfit {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source,
        };
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(unfit)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(unfit)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Why a certificate and its key cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read the {what} {}", .path.display())]
    Read {
        /// What the file should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{} holds no {what} in PEM form", .path.display())]
    Empty {
        /// What the file should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The files do not fit together.
    #[error(
        "the certificate {} and the key {} cannot be used together",
        .certificate.display(),
        .key.display()
    )]
    Unfit {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// What rustls says.
        source: rustls::Error,
    },
}

impl CertificateError {
    fn of(what: &'static str, path: &Path, error: pem::Error) -> Self {
        let path = path.to_owned();
        match error {
            pem::Error::Io(source) => Self::Read { what, path, source },
            _ => Self::Empty { what, path },
        }
    }
}
