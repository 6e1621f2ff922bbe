use std::collections::VecDeque;
use std::error::Error as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use tokio::time::Instant;

use super::*;
use crate::net::{BoxFuture, Listener, Net};
use crate::socket::Socket;

/// Resolves as told, remembers what was dialled, and lets one address hang.
#[derive(Debug, Default)]
struct Told {
    answers: Mutex<VecDeque<Vec<SocketAddr>>>,
    dialled: Mutex<Vec<SocketAddr>>,
    hole: Option<SocketAddr>,
}

impl Net for Told {
    fn resolve<'a>(&'a self, _: &'a str, _: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        let answer = self.answers.lock().unwrap().pop_front();
        Box::pin(async { answer.ok_or_else(|| io::Error::other("no such name")) })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Socket>> {
        self.dialled.lock().unwrap().push(address);
        if self.hole == Some(address) {
            return Box::pin(std::future::pending());
        }
        TokioNet.connect(address)
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        TokioNet.listen(address)
    }
}

fn pool_on(net: &Arc<Told>, url: &str, egress: Egress) -> Pool {
    let mut options = Options::new(egress);
    options.connect_timeout = Duration::from_secs(5);
    Pool::new(Arc::clone(net) as Arc<dyn Net>, Endpoint::parse(url).unwrap(), options)
}

/// Answers every connection with the same response, once.
fn answer_all(listener: TcpListener, answer: &'static str) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
}

const CLOSING: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

async fn refused_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn localhost_is_found_on_either_family() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = answer_all(listener, CLOSING);
        let endpoint = Endpoint::parse(&format!("http://localhost:{port}")).unwrap();
        let pool = Pool::new(Arc::new(TokioNet), endpoint, Options::new(Egress::loopback()));
        // Which families `localhost` has is the machine's affair; both are given here.
        let both = [IpAddr::from([127, 0, 0, 1]), "::1".parse().unwrap()];
        let told = Arc::new(Told::default());
        for order in [both, [both[1], both[0]]] {
            let answer = order.map(|ip| SocketAddr::new(ip, port)).to_vec();
            told.answers.lock().unwrap().push_back(answer);
        }
        let told = pool_on(&told, &format!("http://localhost:{port}"), Egress::loopback());
        let started = Instant::now();
        assert_eq!(soon(told.call(get()).head()).await.unwrap().status, 200);
        assert_eq!(soon(told.call(get()).head()).await.unwrap().status, 200);
        assert!(started.elapsed() < Duration::from_millis(300), "{:?}", started.elapsed());
        if address.starts_with("127") {
            assert_eq!(soon(pool.call(get()).head()).await.unwrap().status, 200);
        }
        server.abort();
    }
}

#[tokio::test]
async fn a_silent_address_delays_the_next_one_by_a_quarter_of_a_second() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let good = listener.local_addr().unwrap();
    let server = answer_all(listener, CLOSING);
    let hole: SocketAddr = "127.0.0.9:9".parse().unwrap();
    let net = Arc::new(Told { hole: Some(hole), ..Told::default() });
    net.answers.lock().unwrap().push_back(vec![hole, good]);
    let started = Instant::now();
    let pool = pool_on(&net, "http://name.example", Egress::Any);
    assert_eq!(soon(pool.call(get()).head()).await.unwrap().status, 200);
    assert!(started.elapsed() >= Duration::from_millis(250));
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!(*net.dialled.lock().unwrap(), [hole, good]);
    server.abort();
}

#[tokio::test]
async fn a_name_that_moved_is_followed_by_the_next_connection() {
    let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let second = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let net = Arc::new(Told::default());
    let addresses = [first.local_addr().unwrap(), second.local_addr().unwrap()];
    net.answers.lock().unwrap().extend(addresses.map(|address| vec![address]));
    let servers = [answer_all(first, CLOSING), answer_all(second, CLOSING)];
    let pool = pool_on(&net, "http://name.example", Egress::Any);
    for _ in 0..2 {
        assert_eq!(soon(pool.call(get()).head()).await.unwrap().status, 200);
    }
    assert_eq!(*net.dialled.lock().unwrap(), addresses);
    let error = soon(pool.call(get()).head()).await.unwrap_err();
    assert!(matches!(error, CallError::Resolve { .. }) && error.is_unsent(), "{error:?}");
    servers.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn an_address_that_egress_does_not_list_is_never_dialled() {
    let net = Arc::new(Told::default());
    let inside: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let outside: SocketAddr = "192.0.2.1:9".parse().unwrap();
    net.answers.lock().unwrap().extend([vec![outside], vec![outside, inside]]);
    let pool = pool_on(&net, "http://rebound.example", Egress::loopback());
    let error = soon(pool.call(get()).head()).await.unwrap_err();
    assert!(
        matches!(error, CallError::Egress { address, .. } if address == outside.ip()),
        "{error:?}"
    );
    assert!(net.dialled.lock().unwrap().is_empty());
    // Of several addresses the listed ones are used.
    let error = soon(pool.call(get()).head()).await.unwrap_err();
    assert!(matches!(error, CallError::Connect { .. }), "{error:?}");
    assert_eq!(*net.dialled.lock().unwrap(), [inside]);
    // A literal is checked as well.
    let pool = pool_on(&net, "http://192.0.2.1:9", Egress::loopback());
    assert!(matches!(soon(pool.call(get()).head()).await, Err(CallError::Egress { .. })));
    assert_eq!(*net.dialled.lock().unwrap(), [inside]);
}

#[tokio::test(start_paused = true)]
async fn connecting_is_given_up_after_the_time_limit() {
    let hole: SocketAddr = "192.0.2.1:80".parse().unwrap();
    let net = Arc::new(Told { hole: Some(hole), ..Told::default() });
    let pool = pool_on(&net, "http://192.0.2.1", Egress::Any);
    let started = Instant::now();
    let error = pool.call(get()).head().await.unwrap_err();
    assert!(matches!(error, CallError::ConnectTimeout { .. }) && error.is_unsent(), "{error:?}");
    assert_eq!(started.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn an_error_names_the_provider_and_nothing_that_may_be_secret() {
    let port = refused_port().await;
    let url = format!("http://127.0.0.1:{port}/SECRETPATH?key=SECRET123");
    let pool = pool_on(&Arc::default(), &url, Egress::Any);
    let mut request = get();
    request.headers.insert("authorization", "Bearer SECRET456".parse().unwrap());
    request.path = "/v1/models?token=SECRET789".to_owned();
    let error = soon(pool.call(request).head()).await.unwrap_err();
    let mut told = format!("{error} {error:?} {pool:?} {:?}", pool.endpoint());
    let mut source = error.source();
    while let Some(cause) = source {
        told += &format!(" {cause} {cause:?}");
        source = cause.source();
    }
    assert!(told.contains(&format!("127.0.0.1:{port}")), "{told}");
    assert!(!told.contains("SECRET"), "{told}");
}

/// Runs itself again in a process that has proxy variables.
#[test]
fn loopback_is_direct_whatever_the_proxy_variables_say() {
    const INSIDE: &str = "IOP_TEST_INSIDE_PROXY";
    if std::env::var_os(INSIDE).is_none() {
        let name = std::thread::current().name().unwrap().to_owned();
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", &name]).env(INSIDE, "1").env_remove("NO_PROXY");
        for variable in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
            again.env(variable, "http://127.0.0.1:9");
        }
        let output = again.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for (address, host) in
            [("127.0.0.1:0", "127.0.0.1"), ("127.0.0.1:0", "localhost"), ("[::1]:0", "[::1]")]
        {
            let listener = TcpListener::bind(address).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = answer_all(listener, CLOSING);
            let endpoint = Endpoint::parse(&format!("http://{host}:{port}")).unwrap();
            let pool = Pool::new(Arc::new(TokioNet), endpoint, Options::new(Egress::loopback()));
            assert_eq!(soon(pool.call(get()).head()).await.unwrap().status, 200);
            server.abort();
        }
    });
}
