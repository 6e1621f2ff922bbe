//! What is spliced into a body changes what was asked for and nothing else, as another reader of JSON
//! sees it.

#![no_main]

use bytes::Bytes;
use iop_dialect::splice::{Edit, Routing};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(|body: &[u8]| {
    let Ok(routing) = Routing::read(body) else { return };
    // What is accepted is JSON to others too; only numbers beyond a double may differ.
    let Ok(Value::Object(before)) = serde_json::from_slice(body) else { return };
    assert_eq!(before["model"], routing.model());
    assert_eq!(before.get("stream").is_some_and(|stream| *stream == true), routing.is_stream());

    let bytes = Bytes::copy_from_slice(body);
    assert_eq!(routing.edit(&bytes, Edit::default()), bytes);
    for stream in [None, Some(true), Some(false)] {
        let edit = Edit { model: Some("other \"model\"\n"), stream, include_usage: true };
        let edited = routing.edit(&bytes, edit);
        let after: Value = serde_json::from_slice(&edited).expect("an edited body is JSON");
        let mut expected = Value::Object(before.clone());
        expected["model"] = json!("other \"model\"\n");
        if let Some(stream) = stream.filter(|stream| *stream != routing.is_stream()) {
            expected["stream"] = json!(stream);
        }
        if stream.unwrap_or(routing.is_stream()) {
            let options = expected.get("stream_options").cloned().unwrap_or_default();
            let mut options = if options.is_null() { json!({}) } else { options };
            options["include_usage"] = json!(true);
            expected["stream_options"] = options;
        }
        assert_eq!(after, expected);
    }
});
