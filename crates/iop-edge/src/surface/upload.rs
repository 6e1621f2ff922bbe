//! Operations whose body is a form with a file: it streams through, so its model must be known early.
//!
//! The model is looked for in the form as far as [`BEGINNING`], in header `x-iop-model` and in query
//! parameter `model`. Python's official client sends the fields before the file; clients that send
//! the file first, such as those of JavaScript and curl in the order of their documentation, are
//! served where only one model takes the operation, and told what to do where several do.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use http_body::Body;
use iop_dialect::multipart::{self, FormScan};
use iop_types::ErrorCode;
use percent_encoding::percent_decode_str;

use super::errors::ErrorAnswer;
use super::openai::Operation;
use crate::body;
use crate::core::Core;
use crate::relay::{Incoming, Limits, Stop, Upload};

/// How much of a body is read before the winner is chosen. Fields are a few hundred bytes, prompts
/// of transcriptions and edits some thousand.
const BEGINNING: u64 = 64 * 1024;

/// Names the model of a body that names it late, or not at all.
pub(crate) const MODEL: HeaderName = HeaderName::from_static("x-iop-model");

/// Says whether a request of an operation that takes forms brings something other than JSON.
pub(crate) fn is_upload(operation: &Operation, headers: &HeaderMap) -> bool {
    operation.takes_form && !super::headers::is_json(headers)
}

/// Reads the beginning of an upload and finds its model.
///
/// # Errors
/// The body cannot be taken, or does not say who it is for.
pub(crate) async fn begin<B>(
    core: &Arc<Core>,
    operation: &Operation,
    parts: &Parts,
    body: B,
    waits: bool,
) -> Result<(String, Upload), ErrorAnswer>
where
    B: Body<Data = bytes::Bytes> + Send + Unpin + 'static,
{
    let limits = Limits { bytes: core.file.limits.other_body, pause: core.timing.body_pause };
    let declared = body.size_hint().exact();
    let form = form(&parts.headers)?;
    let named = named(parts)?;
    let source: Box<dyn Incoming> = Box::new(body);
    let mut upload = Upload::new(source, declared, form, limits, &core.budget);
    if declared.is_some_and(|bytes| bytes > limits.bytes) {
        if !waits {
            body::drain_source(upload.into_source()).await;
        }
        return Err(ErrorAnswer::from_failure(&Stop::TooLarge(limits.bytes).failure()));
    }
    let beginning = std::future::poll_fn(|cx| upload.poll_beginning(cx, crate::now(), BEGINNING));
    let read = tokio::time::timeout(limits.pause, beginning).await;
    let model = match read.unwrap_or(Err(Stop::Paused(limits.pause))) {
        Ok(()) => agree(named, upload.model()).and_then(|model| match model {
            Some(model) => Ok(model),
            None => only_model(core, operation),
        }),
        Err(stop) => Err(ErrorAnswer::from_failure(&stop.failure())),
    };
    match model {
        Ok(model) => {
            upload.route_to(&model);
            Ok((model, upload))
        }
        Err(answer) => {
            body::drain_source(upload.into_source()).await;
            Err(answer)
        }
    }
}

fn form(headers: &HeaderMap) -> Result<Option<FormScan>, ErrorAnswer> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let Some(only) = types.next() else { return Ok(None) };
    // A form that is not seen here would be one for the server behind us, with another model in it.
    let (Ok(content_type), None) = (only.to_str(), types.next()) else {
        return Err(invalid("`content-type` is sent twice, or is no text: send one".to_owned()));
    };
    match multipart::boundary(content_type) {
        None => Ok(None),
        Some(Ok(boundary)) => Ok(Some(FormScan::new(&boundary))),
        Some(Err(error)) => Err(invalid(error.to_string())),
    }
}

/// The name that header or query give.
fn named(parts: &Parts) -> Result<Option<String>, ErrorAnswer> {
    let mut named = None;
    for value in parts.headers.get_all(&MODEL) {
        match value.to_str() {
            Ok(name) if !name.is_empty() => named = agree(named, Some(name))?,
            Ok(_) | Err(_) => {
                return Err(invalid("header `x-iop-model` is no name of a model".to_owned()));
            }
        }
    }
    for pair in parts.uri.query().unwrap_or_default().split('&') {
        let Some((key, value)) = pair.split_once('=') else { continue };
        if decoded(key) == "model" && !value.is_empty() {
            named = agree(named, Some(&decoded(value)))?;
        }
    }
    Ok(named)
}

fn decoded(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

/// Two names must be one: servers behind us would take either.
fn agree(first: Option<String>, second: Option<&str>) -> Result<Option<String>, ErrorAnswer> {
    match (first, second) {
        (Some(first), Some(second)) if first != second => Err(invalid(format!(
            "the request names two models, `{}` and `{}`: name one",
            shown(&first),
            shown(second)
        ))),
        (first, second) => Ok(first.or_else(|| second.map(str::to_owned))),
    }
}

/// The one model that some provider would take this operation for.
fn only_model(core: &Core, operation: &Operation) -> Result<String, ErrorAnswer> {
    let all = core.desk.tell(|admission, _| admission.models_for(&operation.need));
    let configured: Vec<_> =
        all.iter().filter(|name| core.file.routes.contains_key(*name)).collect();
    match (configured.as_slice(), all.as_slice()) {
        ([only], _) => Ok(only.to_string()),
        ([], [only]) => Ok(only.to_string()),
        (_, several) => {
            let names: Vec<_> = several.iter().take(5).map(|name| shown(name.as_str())).collect();
            let names = match names.is_empty() {
                true => "no model takes this now".to_owned(),
                false => format!("models that take this: {}", names.join(", ")),
            };
            Err(invalid(format!(
                "no model is named in the first {BEGINNING} bytes: send form field `model` before \
                 the file, or name it in header `x-iop-model` ({names})"
            )))
        }
    }
}

fn invalid(problem: String) -> ErrorAnswer {
    ErrorAnswer::new(ErrorCode::InvalidRequest, problem).about(Some("model"))
}

fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named_by(uri: &str, header: Option<&'static str>) -> Result<Option<String>, String> {
        let mut request = http::Request::builder().uri(uri);
        if let Some(header) = header {
            request = request.header(MODEL, header);
        }
        named(&request.body(()).unwrap().into_parts().0)
            .map_err(|answer| answer.message().to_owned())
    }

    #[test]
    fn header_and_query_may_name_the_model_and_must_not_disagree() {
        let path = "/v1/audio/transcriptions";
        assert_eq!(named_by(path, None), Ok(None));
        assert_eq!(named_by(path, Some("w")), Ok(Some("w".to_owned())));
        let query = format!("{path}?x=1&model=org%2Fw+1");
        assert_eq!(named_by(&query, None), Ok(Some("org/w 1".to_owned())));
        assert_eq!(named_by(&query, Some("org/w 1")), Ok(Some("org/w 1".to_owned())));
        let refused = named_by(&query, Some("other")).unwrap_err();
        assert!(refused.contains("`other`") && refused.contains("`org/w 1`"), "{refused}");
        assert!(named_by(path, Some("")).is_err());
        assert!(named_by(&format!("{path}?model=w&model=other"), None).is_err());
        assert!(named_by(&format!("{path}?%6dodel=other"), Some("w")).is_err());
        assert_eq!(named_by(&format!("{path}?model=&model=w"), None), Ok(Some("w".to_owned())));
    }

    #[test]
    fn a_content_type_that_may_hide_a_form_is_refused() {
        let formed = |types: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in types {
                headers.append(CONTENT_TYPE, http::HeaderValue::from_bytes(value).unwrap());
            }
            form(&headers).map(|form| form.is_some()).map_err(|answer| answer.message().to_owned())
        };
        assert_eq!(formed(&[]), Ok(false));
        assert_eq!(formed(&[b"audio/wav"]), Ok(false));
        assert_eq!(formed(&[b"multipart/form-data; boundary=a"]), Ok(true));
        assert!(formed(&[b"audio/wav", b"multipart/form-data; boundary=a"]).is_err());
        assert!(formed(&[b"multipart/form-data; boundary=a; x=\xE9"]).is_err());
    }
}
