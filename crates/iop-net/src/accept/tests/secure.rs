//! Clients over TLS.

use std::path::Path;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::tls::{CertificateFiles, WebTls};

/// Writes a new certificate for `localhost` and its key; returns the certificate.
fn renew(directory: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(directory.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

fn files(directory: &Path) -> CertificateFiles {
    CertificateFiles { certificate: directory.join("cert.pem"), key: directory.join("key.pem") }
}

async fn start<S, F>(directory: &Path, service: S) -> Server
where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<AnyBody>> + Send + 'static,
{
    let listener = TokioNet.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let tls = Some(Arc::new(WebTls::open(files(directory)).unwrap()));
    let limits = Limits::default();
    let serving = serve(listener, tls, limits, service, shutdown.clone(), DRAIN);
    Server { address, shutdown, serving: tokio::spawn(serving) }
}

/// Connects and trusts this certificate only.
async fn connect(
    server: &Server,
    trusted: &CertificateDer<'static>,
    offers: &[&[u8]],
) -> io::Result<TlsStream<TcpStream>> {
    let mut store = RootCertStore::empty();
    store.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = offers.iter().map(|offer| offer.to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, server.connect().await).await
}

#[tokio::test]
async fn a_client_is_answered_over_tls_in_either_version_of_http() {
    let directory = tempfile::tempdir().unwrap();
    let certificate = renew(directory.path());
    let server = start(directory.path(), |_, _| async { Response::new(full("hello")) }).await;
    let mut stream = connect(&server, &certificate, &[]).await.unwrap();
    stream.write_all(GET_LAST).await.unwrap();
    let mut answer = Vec::new();
    // A clean end: the close_notify came before the FIN.
    soon(stream.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.ends_with(b"hello"), "{answer:?}");

    let stream = connect(&server, &certificate, &[b"h2"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get("https://localhost/").body(http_body_util::Empty::<Bytes>::new());
    let answer = soon(sender.send_request(request.unwrap())).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello");
    drop(sender);
    soon(connection).await.unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_is_gone_although_it_pipelined_more() {
    let directory = tempfile::tempdir().unwrap();
    let certificate = renew(directory.path());
    for says_goodbye in [true, false] {
        let living = Living::default();
        let handlers = living.clone();
        let server = start(directory.path(), move |_, _| {
            let life = handlers.one();
            async move {
                let _life = life;
                std::future::pending().await
            }
        })
        .await;
        let mut stream = connect(&server, &certificate, &[]).await.unwrap();
        stream.write_all(&[GET, GET].concat()).await.unwrap();
        living.becomes(1).await;
        if says_goodbye {
            // Only ends its sending side.
            stream.shutdown().await.unwrap();
            living.becomes(0).await;
        } else {
            drop(stream);
            living.becomes(0).await;
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn plain_http_is_not_answered_and_shutdown_waits_for_no_handshake() {
    let directory = tempfile::tempdir().unwrap();
    renew(directory.path());
    let server = start(directory.path(), |_, _| async { Response::new(full("hello")) }).await;
    let mut plain = server.connect().await;
    plain.write_all(GET).await.unwrap();
    let mut rest = Vec::new();
    let _ = soon(plain.read_to_end(&mut rest)).await;
    assert!(rest.len() <= 7, "an alert at most: {rest:?}");
    let _silent = server.connect().await;
    server.stop().await;
}

#[tokio::test]
async fn a_renewed_certificate_serves_and_a_broken_one_does_not_replace_it() {
    let directory = tempfile::tempdir().unwrap();
    let first = renew(directory.path());
    let server = start(directory.path(), |_, _| async { Response::new(full("hello")) }).await;
    connect(&server, &first, &[]).await.unwrap();

    // Half written: the key is not the certificate's.
    let key = std::fs::read(directory.path().join("key.pem")).unwrap();
    let second = renew(directory.path());
    let new_key = std::fs::read(directory.path().join("key.pem")).unwrap();
    std::fs::write(directory.path().join("key.pem"), key).unwrap();
    look_again().await;
    connect(&server, &first, &[]).await.unwrap();
    assert!(connect(&server, &second, &[]).await.is_err());

    std::fs::write(directory.path().join("key.pem"), new_key).unwrap();
    look_again().await;
    connect(&server, &second, &[]).await.unwrap();
    assert!(connect(&server, &first, &[]).await.is_err());

    std::fs::remove_file(directory.path().join("cert.pem")).unwrap();
    look_again().await;
    connect(&server, &second, &[]).await.unwrap();
    server.stop().await;
}

/// Lets the second pass after which files are looked at again.
async fn look_again() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2)).await;
    tokio::time::resume();
}

#[test]
fn files_that_cannot_serve_are_refused_with_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let refused = || WebTls::open(files(directory.path())).unwrap_err().to_string();
    assert!(refused().contains("cannot read the certificate"), "{}", refused());
    renew(directory.path());
    std::fs::write(directory.path().join("key.pem"), "nonsense").unwrap();
    assert!(refused().contains("key.pem holds no private key"), "{}", refused());
    std::fs::write(directory.path().join("cert.pem"), "nonsense").unwrap();
    assert!(refused().contains("cert.pem holds no certificate"), "{}", refused());
    renew(directory.path());
    let key = std::fs::read(directory.path().join("key.pem")).unwrap();
    renew(directory.path());
    std::fs::write(directory.path().join("key.pem"), key).unwrap();
    assert!(refused().contains("cannot be used together"), "{}", refused());
}
