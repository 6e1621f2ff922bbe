//! The admin listener: what the command line, scrapers and people ask of a running Edge.
//!
//! Everything but commands and cancelling a run is read off the Edge's own state, at once, however busy
//! its providers are; a command asks a Node. The answers are described by `/api/v1/openapi.json`; a test holds the description against them.

mod gauges;
mod view;

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use iop_store::{FindError, Query, ReadError};
use iop_types::{CommandId, ErrorCode, NodeId, RouteName};
use serde::Serialize;
use serde_json::json;

use crate::command;
use crate::core::Core;
use crate::group::unknown_node;
use crate::live::CancelError;
use crate::surface::errors::ErrorAnswer;
use crate::surface::guard::Guard;
use crate::surface::response::{self, ResponseBody};
use crate::surface::{Methods, Stamp, allow, health};

/// The description of this listener.
const OPENAPI: &str = include_str!("admin/openapi.json");

/// What `/metrics` is rendered in.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers one request on the admin listener.
pub(crate) async fn serve<B>(
    core: Arc<Core>,
    guard: Arc<Guard>,
    request: Request<B>,
) -> Response<ResponseBody>
where
    B: Body<Data = Bytes> + Unpin,
{
    let stamp = Stamp::new(request.headers());
    let answer = match guard.check(request.version(), request.uri(), request.headers()) {
        Ok(_) => route(&core, request).await,
        Err(refusal) => Err(refusal.into()),
    };
    stamp.put(answer.unwrap_or_else(ErrorAnswer::into_response))
}

async fn route<B>(
    core: &Arc<Core>,
    request: Request<B>,
) -> Result<Response<ResponseBody>, ErrorAnswer>
where
    B: Body<Data = Bytes> + Unpin,
{
    if let Some(target) = Target::find(request.uri().path()) {
        return match target {
            Target::Commands(node) => {
                allow(&request, Methods::Post)?;
                Box::pin(command::ask(core, &node, request)).await
            }
            Target::Node(node) => {
                allow(&request, Methods::Read)?;
                one_node(core, &node)
            }
            Target::Command(id) => {
                allow(&request, Methods::Delete)?;
                cancel(core, &id)
            }
            Target::CancelRun(id) => {
                allow(&request, Methods::Post)?;
                cancel_run(core, &id).await
            }
        };
    }
    let path = request.uri().path();
    let read = || allow(&request, Methods::Read);
    match path {
        "/health" => read().map(|()| health::health()),
        "/ready" => read().map(|()| health::ready(&core.desk)),
        "/metrics" => read().map(|()| metrics(core)),
        "/api/v1/openapi.json" => read().map(|()| response::json(OPENAPI)),
        "/api/v1/status" => read().map(|()| show(&view::status(core))),
        "/api/v1/nodes" => read().map(|()| show(&view::nodes(core))),
        "/api/v1/providers" => read().map(|()| show(&view::providers(core))),
        "/api/v1/models" => read().map(|()| show(&view::models(core))),
        "/api/v1/runs" => {
            read()?;
            let query = query(request.uri().query().unwrap_or_default())?;
            Ok(match core.history.list(query).await {
                Ok(runs) => show(&view::runs(core, runs)),
                Err(error) => unreadable(&error),
            })
        }
        _ => match path.strip_prefix("/api/v1/runs/") {
            Some(id) if !id.is_empty() => {
                read()?;
                let id = &*percent_encoding::percent_decode_str(id).decode_utf8_lossy();
                match core.history.find(id).await {
                    Ok(run) => Ok(show(&view::Run::of(core, run))),
                    Err(FindError::Read(error)) => Ok(unreadable(&error)),
                    // What came a moment ago is not written yet.
                    Err(error @ FindError::Unknown { .. }) => match core.live.find(id) {
                        Ok((_, request)) => Ok(show(&view::Run::from(request.progress()))),
                        Err(_) => Err(ErrorAnswer::new(ErrorCode::NotFound, error.to_string())),
                    },
                    Err(error @ FindError::Ambiguous { .. }) => {
                        Err(ErrorAnswer::new(ErrorCode::InvalidRequest, error.to_string()))
                    }
                }
            }
            Some(_) | None => Err(ErrorAnswer::new(
                ErrorCode::NotFound,
                "no such path: GET /api/v1/openapi.json describes what there is",
            )),
        },
    }
}

/// What is asked about one thing that the path names.
enum Target {
    Node(NodeId),
    Commands(NodeId),
    Command(String),
    CancelRun(String),
}

impl Target {
    fn find(path: &str) -> Option<Self> {
        let rest = path.strip_prefix("/api/v1/")?;
        let (noun, rest) = rest.split_once('/')?;
        let decoded = |name: &str| {
            let name = percent_encoding::percent_decode_str(name).decode_utf8().ok()?;
            (!name.is_empty()).then(|| name.into_owned())
        };
        match (noun, rest.split_once('/')) {
            ("nodes", None) => decoded(rest).map(|node| Self::Node(node.into())),
            ("nodes", Some((node, "commands"))) => {
                decoded(node).map(|node| Self::Commands(node.into()))
            }
            ("commands", None) => decoded(rest).map(Self::Command),
            ("runs", Some((run, "cancel"))) => decoded(run).map(Self::CancelRun),
            _ => None,
        }
    }
}

fn one_node(core: &Core, name: &NodeId) -> Result<Response<ResponseBody>, ErrorAnswer> {
    let view = view::nodes(core);
    view.find(name).map(show).ok_or_else(|| unknown_node(name, &view.names()))
}

fn cancel(core: &Core, id: &str) -> Result<Response<ResponseBody>, ErrorAnswer> {
    let unknown = || {
        let message = "no such command is under way: it may have ended";
        ErrorAnswer::new(ErrorCode::NotFound, message)
    };
    let id = CommandId::parse(id).map_err(|_| unknown())?;
    match core.commands.cancel(id) {
        true => Ok(show(&json!({ "id": id, "cancelled": true }))),
        false => Err(unknown()),
    }
}

async fn cancel_run(core: &Core, id: &str) -> Result<Response<ResponseBody>, ErrorAnswer> {
    match core.live.cancel(id) {
        Ok(run_id) => {
            tracing::info!(%run_id, "run cancelled");
            Ok(show(&json!({ "run_id": run_id, "cancelled": true })))
        }
        Err(CancelError::Unknown) => Err(not_under_way(core, id).await),
        Err(error @ CancelError::Over { .. }) => {
            Err(ErrorAnswer::new(ErrorCode::NotFound, error.to_string()))
        }
        Err(error @ CancelError::Ambiguous { .. }) => {
            Err(ErrorAnswer::new(ErrorCode::InvalidRequest, error.to_string()))
        }
    }
}

/// Says what is known of a run that cannot be cancelled because it is not under way.
async fn not_under_way(core: &Core, id: &str) -> ErrorAnswer {
    let (code, message) = match core.history.find(id).await {
        Ok(run) => {
            let run_id = run.receipt.run_id;
            let end = run.terminal.map_or_else(String::new, |terminal| {
                let code = terminal.code.map_or_else(String::new, |code| format!(" {code}"));
                format!(": {}{code}", terminal.kind.as_str())
            });
            (ErrorCode::NotFound, format!("run {run_id} has ended{end}"))
        }
        Err(error @ FindError::Ambiguous { .. }) => (ErrorCode::InvalidRequest, error.to_string()),
        Err(error @ FindError::Unknown { .. }) => (ErrorCode::NotFound, error.to_string()),
        Err(FindError::Read(error)) => {
            (ErrorCode::NotFound, format!("no run `{id}` is under way, and {error}"))
        }
    };
    ErrorAnswer::new(code, message)
}

fn show(value: &impl Serialize) -> Response<ResponseBody> {
    let body = serde_json::to_vec(value).expect("views have string keys and finite numbers");
    response::json(body)
}

fn metrics(core: &Core) -> Response<ResponseBody> {
    let text = core.metrics.render(gauges::read(core));
    let mut response = Response::new(ResponseBody::whole(Bytes::from(text)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(OPENMETRICS));
    *response.status_mut() = StatusCode::OK;
    response
}

/// Reads what selects runs.
fn query(text: &str) -> Result<Query, ErrorAnswer> {
    let mut query = Query::default();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
        let refuse = |expected: &str| {
            ErrorAnswer::new(
                ErrorCode::InvalidRequest,
                format!("query parameter `{name}` is `{value}`: send {expected}"),
            )
        };
        match name {
            "limit" => {
                query.limit = value
                    .parse()
                    .ok()
                    .filter(|limit| (1..=Query::MAX_LIMIT).contains(limit))
                    .ok_or_else(|| refuse("a number from 1 to 1000"))?;
            }
            "route" => query.route = Some(RouteName::from(&*value)),
            "node" => query.node = Some(NodeId::from(&*value)),
            "code" => {
                let code = ErrorCode::parse(&value);
                query.code = Some(code.ok_or_else(|| refuse("a code of docs/errors"))?);
            }
            "since" => {
                let since =
                    value.parse().map_err(|_| refuse("a time like 2026-01-31T08:00:00Z"))?;
                query.since = Some(since);
            }
            _ => {
                return Err(ErrorAnswer::new(
                    ErrorCode::InvalidRequest,
                    format!(
                        "query parameter `{name}` is not known: use limit, route, node, code or since"
                    ),
                ));
            }
        }
    }
    Ok(query)
}

/// History is beside the table of errors: no client ever waits for it.
fn unreadable(error: &ReadError) -> Response<ResponseBody> {
    let error = json!({ "message": error.to_string(), "type": "service_unavailable_error" });
    let mut response = response::json(json!({ "error": error }).to_string());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}
