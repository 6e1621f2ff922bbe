//! No input panics, and what is accepted means to others what it means to us.

use bytes::Bytes;
use iop_dialect::ndjson;
use iop_dialect::openai::{
    EmbeddingsRequest, ProviderError, StreamReader, TextKind, read_chat_answer,
    read_completion_answer, read_embeddings, read_model_list,
};
use iop_dialect::splice::{Edit, Routing};
use iop_dialect::sse::{ProgressScan, Splitter};
use iop_dialect::usage::{BodyObserver, ChunkFilter, StreamObserver};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Valid texts, from which a few random changes lead to almost valid ones.
const SEEDS: &[&str] = &[
    r#"{"model":"m","stream":true,"stream_options":{"include_usage":false,"x":[{}]},"n":1e3}"#,
    r#"{"model":"e","input":["a",[1,2]],"encoding_format":"base64"}"#,
    r#"{"data":[{"index":0,"embedding":[1.0,-2e9]},{"index":1,"embedding":"AACAPw=="}],"usage":{}}"#,
    r#"{"choices":[{"index":0,"message":{"content":"a","tool_calls":[{"id":"c","function":{"arguments":{}}}]},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}"#,
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"안\"}}]}\r\n\r\nevent: error\ndata: x\n\n: c\r\rdata: [DONE]",
    "data: {\"choices\": [ ],\"usage\":{\"prompt_tokens\":1}}\n\ndata: {\"error\":null,\"object\":\"error\"}\n\n",
];

/// Bytes that mean something to one parser or another.
const TELLING: &[u8] = b"\"\\{}[]:,\n\r \0u0d\xFF\xEF\xBB\xBF";

fn input() -> impl Strategy<Value = Vec<u8>> {
    let change = (
        any::<prop::sample::Index>(),
        prop_oneof![any::<u8>(), proptest::sample::select(TELLING)],
        0..3_u8,
    );
    let changed = (proptest::sample::select(SEEDS), prop::collection::vec(change, 0..6)).prop_map(
        |(seed, changes)| {
            let mut bytes = seed.as_bytes().to_vec();
            for (at, byte, how) in changes {
                let at = at.index(bytes.len().max(1));
                match how {
                    0 if at < bytes.len() => bytes[at] = byte,
                    1 if at < bytes.len() => drop(bytes.remove(at)),
                    _ => bytes.insert(at, byte),
                }
            }
            bytes
        },
    );
    prop_oneof![changed, prop::collection::vec(any::<u8>(), 0..200)]
}

/// JSON values of moderate size.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z\"\\\\안\n]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{0,3}", inner, 0..4)
                .prop_map(|map| Value::from(serde_json::Map::from_iter(map))),
        ]
    })
}

/// Request bodies with every legal shape of the routing members, compact or spread out.
fn body() -> impl Strategy<Value = (Value, String)> {
    let stream = proptest::sample::select(vec![
        None,
        Some(json!(null)),
        Some(json!(true)),
        Some(json!(false)),
    ]);
    let options = proptest::sample::select(vec![
        None,
        Some(json!(null)),
        Some(json!({})),
        Some(json!({"x": {"include_usage": 1}})),
        Some(json!({"include_usage": false, "z": 1})),
        Some(json!({"include_usage": true})),
        Some(json!({"include_usage": null})),
    ]);
    let others = prop::collection::btree_map("[a-z]{0,3}|w[\"안]", json(), 0..4);
    (others, "[a-z/\"안]{1,8}", stream, options, any::<bool>()).prop_map(
        |(others, model, stream, options, is_spread)| {
            let mut body = serde_json::Map::from_iter(others);
            body.insert("model".into(), model.into());
            body.extend(stream.map(|stream| ("stream".to_owned(), stream)));
            body.extend(options.map(|options| ("stream_options".to_owned(), options)));
            let body = Value::from(body);
            let text = if is_spread { format!("\n {body:#} ") } else { body.to_string() };
            (body, text)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_anything_panic(bytes in input(), size in 1_usize..40) {
        if let Ok(routing) = Routing::read(&bytes) {
            let body = Bytes::copy_from_slice(&bytes);
            let edit = Edit { model: Some("other"), stream: Some(true), include_usage: true };
            let edited = Routing::read(&routing.edit(&body, edit)).unwrap();
            prop_assert!(edited.model() == "other" && edited.is_stream() && edited.asks_usage());
        }
        let _ = EmbeddingsRequest::read(&bytes);
        let _ = ProviderError::from_body(&bytes).into_failure(None);
        let _ = read_model_list(&bytes);
        let mut events = Vec::new();
        let _ = read_chat_answer(&bytes, &mut events);
        let _ = read_completion_answer(&bytes, &mut events);
        let _ = read_embeddings(&bytes, 2, &mut events);

        let mut reader = StreamReader::new(TextKind::Chat);
        let (mut splitter, mut lines) = (Splitter::new(16), ndjson::Splitter::new(16));
        let (mut scan, mut filter) = (ProgressScan::new(), ChunkFilter::new());
        let (mut observer, mut body) = (StreamObserver::new(), BodyObserver::new());
        for segment in bytes.chunks(size) {
            let _ = reader.push(segment, &mut events);
            splitter.push(segment, |_| {});
            lines.push(segment, |_| {});
            scan.scan(segment);
            filter.push(Bytes::copy_from_slice(segment), |_| {});
            observer.observe(segment);
            body.observe(segment);
        }
        let _ = reader.finish(&mut events);
        splitter.finish(|_| {});
        lines.finish(|_| {});
        filter.finish(|_| {});
        observer.finish();
        body.finish();
    }

    #[test]
    fn an_edited_body_means_the_same_but_for_the_edit(
        (mut value, text) in body(),
        model in proptest::option::of("[a-z\"안]{1,6}"),
        stream in proptest::option::of(any::<bool>()),
        include_usage in any::<bool>(),
    ) {
        let body = Bytes::from(text);
        let routing = Routing::read(&body).unwrap();
        let edit = Edit { model: model.as_deref(), stream, include_usage };
        let edited = routing.edit(&body, edit);

        let is_stream = stream.unwrap_or(value["stream"] == json!(true));
        if let Some(model) = &model {
            value["model"] = json!(model);
        }
        if value["stream"] != json!(true) && stream == Some(true)
            || value["stream"] == json!(true) && stream == Some(false) {
            value["stream"] = json!(is_stream);
        }
        if include_usage && is_stream {
            value["stream_options"]["include_usage"] = json!(true);
        }
        let edited_value: Value = serde_json::from_slice(&edited).unwrap();
        prop_assert_eq!(&edited_value, &value);
        prop_assert_eq!(edited == body, edited.as_ptr() == body.as_ptr());
    }

    #[test]
    fn a_body_that_is_accepted_is_json_and_has_one_model_for_every_reader(bytes in input()) {
        if let Ok(routing) = Routing::read(&bytes) {
            let value: Value = serde_json::from_slice(&bytes).unwrap();
            let mut models = value.as_object().unwrap().iter().filter(|(key, _)| key.to_lowercase() == "model");
            prop_assert_eq!(models.next().unwrap().1, routing.model());
            prop_assert!(models.next().is_none());
        }
    }
}
