//! Providers over TLS.

use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::*;
use crate::tls::Trust;

/// A provider with a certificate for `localhost`.
struct Secure {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    trust: Trust,
}

impl Secure {
    async fn start() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], PrivateKeyDer::Pkcs8(key))
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            acceptor: Arc::new(config).into(),
            trust: Trust::only([certificate]).unwrap(),
        }
    }

    fn pool(&self, scheme: &str, host: &str, trust: Trust) -> Pool {
        let port = self.listener.local_addr().unwrap().port();
        let endpoint = Endpoint::parse(&format!("{scheme}://{host}:{port}")).unwrap();
        let options = Options { trust, ..Options::new(Egress::loopback()) };
        Pool::new(Arc::new(TokioNet), endpoint, options)
    }

    async fn accept(&self) -> std::io::Result<TlsStream<TcpStream>> {
        self.acceptor.accept(soon(self.listener.accept()).await.unwrap().0).await
    }

    /// Calls by this name with this trust; returns how that failed.
    async fn refused(&self, host: &str, trust: Trust) -> CallError {
        let pool = self.pool("https", host, trust);
        let mut call = pool.call(post("secret"));
        let (head, accepted) = tokio::join!(soon(call.head()), self.accept());
        assert!(accepted.is_err(), "the handshake was over");
        head.unwrap_err()
    }
}

async fn read_request(stream: &mut TlsStream<TcpStream>) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"hello") {
        assert!(soon(stream.read_buf(&mut read)).await.unwrap() > 0, "ended");
    }
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn a_provider_is_verified_by_its_name_and_its_connection_is_used_again() {
    let provider = Secure::start().await;
    let pool = provider.pool("https", "localhost", provider.trust.clone());
    let mut call = pool.call(post("hello"));
    let (head, mut stream) = tokio::join!(soon(call.head()), async {
        let mut stream = provider.accept().await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(stream.get_ref().1.server_name(), Some("localhost"));
        let asked = read_request(&mut stream).await;
        assert!(asked.contains(&format!("host: {}\r\n", pool.endpoint().authority())), "{asked}");
        stream.write_all(OK.as_bytes()).await.unwrap();
        stream
    });
    assert_eq!(head.unwrap().status, 200);
    assert_eq!(collect(&mut call).await.unwrap(), b"ok");

    // The tickets that came behind the handshake are no sign of its end.
    let mut call = pool.call(post("hello"));
    let (head, ()) = tokio::join!(soon(call.head()), async {
        read_request(&mut stream).await;
        stream.write_all(OK.as_bytes()).await.unwrap();
    });
    assert_eq!(head.unwrap().status, 200);
    assert_eq!(collect(&mut call).await.unwrap(), b"ok");
    assert_eq!(pool.stats(), PoolStats { open: 1, idle: 1 });
}

#[tokio::test]
async fn a_pooled_connection_that_the_provider_ended_is_replaced_unseen() {
    let provider = Secure::start().await;
    let pool = provider.pool("https", "localhost", provider.trust.clone());
    for _ in 0..2 {
        let mut call = pool.call(post("hello"));
        let (head, mut stream) = tokio::join!(soon(call.head()), async {
            let mut stream = provider.accept().await.unwrap();
            read_request(&mut stream).await;
            stream.write_all(OK.as_bytes()).await.unwrap();
            stream
        });
        assert_eq!(head.unwrap().status, 200);
        assert_eq!(collect(&mut call).await.unwrap(), b"ok");
        stream.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_sent_to_a_provider_that_is_not_who_it_should_be() {
    let provider = Secure::start().await;
    let other = Secure::start().await;
    for (host, trust, word) in [
        ("localhost", other.trust.clone(), "unknown_ca"),
        ("127.0.0.1", provider.trust.clone(), "wrong_host_name"),
    ] {
        let error = provider.refused(host, trust).await;
        assert!(error.is_unsent());
        let CallError::Tls { source, .. } = error else { panic!("{error:?}") };
        assert_eq!(source.as_str(), word);
    }
}

#[tokio::test]
async fn a_provider_without_tls_at_an_https_endpoint_is_named_so() {
    let provider = Secure::start().await;
    let pool = provider.pool("https", "localhost", provider.trust.clone());
    let mut call = pool.call(post("hello"));
    let (head, ()) = tokio::join!(soon(call.head()), async {
        let (mut stream, _) = soon(provider.listener.accept()).await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
    });
    let CallError::Tls { source, .. } = head.unwrap_err() else { panic!("another error") };
    assert_eq!(source.as_str(), "not_tls");
}

#[tokio::test]
async fn a_cancelled_call_ends_its_side_and_waits_for_the_providers_end() {
    let provider = Secure::start().await;
    let pool = provider.pool("https", "localhost", provider.trust.clone());
    let mut call = pool.call(post("hello"));
    let (head, mut stream) = tokio::join!(soon(call.head()), async {
        let mut stream = provider.accept().await.unwrap();
        read_request(&mut stream).await;
        stream.write_all(CHUNKED.as_bytes()).await.unwrap();
        stream
    });
    assert_eq!(head.unwrap().status, 200);
    call.cancel();
    let mut rest = Vec::new();
    tokio::time::timeout(SOON, stream.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(rest.is_empty());
    assert!(!call.has_returned());
    stream.write_all(b"2\r\nok\r\n").await.unwrap();
    stream.shutdown().await.unwrap();
    soon(call.returned()).await;
}

/// More than a socket takes at once: what TLS holds must get out, and count only then.
#[tokio::test]
async fn a_large_body_arrives_whole_at_a_provider_that_reads_slowly() {
    let provider = Secure::start().await;
    let pool = provider.pool("https", "localhost", provider.trust.clone());
    let body = Bytes::from(vec![0x5a; 8 << 20]);
    let mut call = pool.call(request(Method::POST, "/v1/x", Body::Full(body.clone())));
    let serving = async {
        let mut stream = provider.accept().await.unwrap();
        let mut read = Vec::new();
        while read.len() < body.len() || !read.ends_with(&[0x5a; 64]) {
            assert!(soon(stream.read_buf(&mut read)).await.unwrap() > 0, "ended");
            tokio::task::yield_now().await;
            let head = read.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(read.len());
            if read.len() >= head + 4 + body.len() {
                break;
            }
        }
        stream.write_all(OK.as_bytes()).await.unwrap();
        stream
    };
    let (head, _stream) = tokio::join!(soon(call.head()), serving);
    assert_eq!(head.unwrap().status, 200);
    assert!(call.is_handed_over());
    assert_eq!(collect(&mut call).await.unwrap(), b"ok");
}
