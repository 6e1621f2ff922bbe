//! A fast OpenAI-compatible provider whose answers are set by the request itself.
//!
//! It serves `/health`, `/v1/models`, chat (streamed or not), completions (not streamed) and embeddings. How it
//! answers is said in the prompt ([`knobs`]): text is the one part of a request that every gateway
//! and every client hands on untouched.

mod knobs;
mod stream;

use self::knobs::Knobs;
use self::stream::SseBody;
use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::TcpListener;

/// How to serve.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The loopback address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The models to list.
    #[arg(long, value_delimiter = ',', default_value = "mock-model")]
    models: Vec<String>,
}

type Answer = Response<Either<Full<Bytes>, SseBody>>;

/// Prints the address and serves until the process is ended.
pub(crate) async fn serve(arguments: &Arguments) -> io::Result<ExitCode> {
    if !arguments.listen.ip().is_loopback() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{} is not a loopback address: the provider serves anybody", arguments.listen),
        ));
    }
    let listener = TcpListener::bind(arguments.listen).await?;
    // Read by scripts that gave port 0.
    writeln!(io::stdout(), "listening on http://{}", listener.local_addr()?)?;
    io::stdout().flush()?;
    let models: &'static [String] = arguments.models.clone().leak();
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // Detached: a connection lives as long as its client; the process ends with its tasks.
        tokio::task::spawn_local(async move {
            let service = service_fn(move |request| answer(request, models));
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            // A client that leaves in the middle is part of every load test.
            let _ = connection.await;
        });
    }
}

async fn answer(request: Request<Incoming>, models: &[String]) -> Result<Answer, Infallible> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return Ok(error(StatusCode::BAD_REQUEST, "the body ended early"));
    };
    let knobs = Knobs::of(&body);
    if knobs.prefill_us > 0 {
        tokio::time::sleep(Duration::from_micros(knobs.prefill_us)).await;
    }
    if let Some(status) = knobs.status {
        return Ok(error(status, "the prompt asked for this error"));
    }
    Ok(match (&head.method, head.uri.path()) {
        (&Method::GET, "/v1/models") => model_list(models),
        // Routers ask before they send anything.
        (&Method::GET, "/health") => healthy(),
        (&Method::POST, "/v1/chat/completions") => match Wanted::of(&body) {
            Some(wanted) if wanted.stream => stream(&wanted, knobs),
            Some(wanted) => whole(&wanted, &knobs, "chat.completion"),
            None => error(StatusCode::BAD_REQUEST, "the body is not a JSON object with a model"),
        },
        (&Method::POST, "/v1/completions") => match Wanted::of(&body) {
            Some(wanted) => whole(&wanted, &knobs, "text_completion"),
            None => error(StatusCode::BAD_REQUEST, "the body is not a JSON object with a model"),
        },
        (&Method::POST, "/v1/embeddings") => embeddings(&body, &knobs),
        _ => error(StatusCode::NOT_FOUND, "no such path"),
    })
}

/// The few members that decide the form of an answer.
#[derive(serde::Deserialize)]
struct Wanted {
    model: String,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
}

#[derive(serde::Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

impl Wanted {
    fn of(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }
}

fn stream(wanted: &Wanted, knobs: Knobs) -> Answer {
    let asked = wanted.stream_options.as_ref().is_some_and(|options| options.include_usage);
    let usage = asked && !knobs.no_usage;
    let mut answer = Response::new(Either::Right(SseBody::new(&wanted.model, knobs, usage)));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

fn whole(wanted: &Wanted, knobs: &Knobs, object: &str) -> Answer {
    const SENTENCE: &str = "Small chunks travel far when nobody copies them twice. ";
    let mut text = SENTENCE.repeat(knobs.size / SENTENCE.len() + 1);
    text.truncate(knobs.size);
    let choice = if object == "chat.completion" {
        json!({
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "logprobs": null,
            "finish_reason": "stop",
        })
    } else {
        json!({"index": 0, "text": text, "logprobs": null, "finish_reason": "stop"})
    };
    let tokens = knobs.size / 4;
    body(
        StatusCode::OK,
        &json!({
            "id": "bench-0123456789abcdef0123456789abcdef",
            "object": object,
            "created": stream::CREATED,
            "model": wanted.model,
            "choices": [choice],
            "usage": {"prompt_tokens": 16, "completion_tokens": tokens, "total_tokens": 16 + tokens},
        }),
    )
}

fn embeddings(request: &[u8], knobs: &Knobs) -> Answer {
    let Ok(request) = serde_json::from_slice::<Value>(request) else {
        return error(StatusCode::BAD_REQUEST, "the body is not JSON");
    };
    let inputs = request["input"].as_array().map_or(1, Vec::len);
    let packed = request["encoding_format"] == "base64";
    let data: Vec<Value> = (0..inputs)
        .map(|index| {
            let numbers = embedding(index, knobs.dims);
            let embedding = if packed {
                let bytes: Vec<u8> =
                    numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                json!(base64::engine::general_purpose::STANDARD.encode(bytes))
            } else {
                json!(numbers)
            };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    body(
        StatusCode::OK,
        &json!({
            "object": "list", "model": request["model"], "data": data,
            "usage": {"prompt_tokens": inputs, "total_tokens": inputs},
        }),
    )
}

/// Input 0 gives 0, 1/64, 2/64 …, input 1 gives 1, 1 + 1/64 …: exact in `f32` and in JSON.
fn embedding(index: usize, dims: usize) -> Vec<f32> {
    let small = |number: usize| u16::try_from(number % 64).map_or(0.0, f32::from);
    (0..dims).map(|at| small(index) + small(at) / 64.0).collect()
}

fn model_list(models: &[String]) -> Answer {
    let data: Vec<Value> = models
        .iter()
        .map(|id| json!({"id": id, "object": "model", "created": stream::CREATED, "owned_by": "bench"}))
        .collect();
    body(StatusCode::OK, &json!({"object": "list", "data": data}))
}

fn healthy() -> Answer {
    body(StatusCode::OK, &json!({}))
}

fn error(status: StatusCode, message: &str) -> Answer {
    let kind = match status {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    };
    let error = json!({"message": message, "type": kind, "param": null, "code": "scripted"});
    body(status, &json!({"error": error}))
}

fn body(status: StatusCode, value: &Value) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(Bytes::from(value.to_string()))));
    *answer.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer
}
