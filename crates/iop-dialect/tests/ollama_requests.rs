//! OpenAI requests in Ollama's words: what is carried, where it stands, and what is refused by name.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::num::NonZeroU32;

use iop_dialect::ollama::{Forced, chat_body, completion_body, embed_body};
use serde_json::{Value, json};

fn forced(num_ctx: u32, keep_alive: Option<&str>) -> Forced {
    let num_ctx = NonZeroU32::new(num_ctx);
    Forced { num_ctx, keep_alive: keep_alive.map(str::to_owned) }
}

/// A chat request with these members beside one message.
fn chat(members: &Value) -> Value {
    let mut body = json!({"model": "client", "messages": [{"role": "user", "content": "hi"}]});
    merge(&mut body, members);
    body
}

fn merge(body: &mut Value, members: &Value) {
    let members = members.as_object().expect("the test writes an object");
    body.as_object_mut().expect("the test writes an object").extend(members.clone());
}

fn translated(body: &Value, forced: &Forced) -> Result<Value, String> {
    let body = chat_body(body.to_string().as_bytes(), "m:latest", forced);
    body.map(|body| serde_json::from_slice(&body).unwrap()).map_err(|error| error.to_string())
}

/// The body that these members give when nothing is forced.
fn with(members: Value) -> Value {
    translated(&chat(&members), &Forced::default()).unwrap()
}

fn refused(members: Value) -> String {
    translated(&chat(&members), &Forced::default()).unwrap_err()
}

/// The messages that these give.
fn messages(messages: Value) -> Result<Value, String> {
    let body = json!({"model": "client", "messages": messages});
    translated(&body, &Forced::default()).map(|mut body| body["messages"].take())
}

#[test]
fn a_plain_chat_has_the_target_its_messages_and_nothing_invented() {
    let expected = json!({
        "model": "m:latest", "stream": true, "messages": [{"role": "user", "content": "hi"}],
    });
    assert_eq!(with(json!({})), expected);
    // What clients send for what they leave out.
    let nothing = json!({
        "stream": false, "stream_options": {"include_usage": true}, "n": 1, "logit_bias": {},
        "tools": [], "tool_choice": "auto", "temperature": null, "stop": null, "options": null,
        "keep_alive": null, "think": null, "response_format": {"type": "text"},
        "modalities": ["text"], "reasoning_effort": null, "max_tokens": null,
    });
    assert_eq!(with(nothing), expected);
}

#[test]
fn sampling_parameters_become_options_and_keep_their_values() {
    let body = with(json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "seed": 7, "stop": "END",
        "frequency_penalty": 0.1, "presence_penalty": -0.1, "max_completion_tokens": 9,
        "options": {"mirostat": 1, "num_ctx": 4096},
    }));
    assert_eq!(
        body["options"],
        json!({
            "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "seed": 7,
            "stop": ["END"], "frequency_penalty": 0.1, "presence_penalty": -0.1, "num_predict": 9,
            "mirostat": 1, "num_ctx": 4096,
        })
    );
    assert_eq!(body["temperature"], Value::Null, "moved, not copied");
    assert_eq!(with(json!({"stop": ["a", "b"]}))["options"]["stop"], json!(["a", "b"]));
    assert_eq!(with(json!({"max_tokens": 5}))["options"], json!({"num_predict": 5}));
}

#[test]
fn numbers_stay_as_they_were_written() {
    let body = br#"{"model":"c","messages":[],"seed":9007199254740993,"temperature":1.0e-3,
        "x_vendor":{"big":123456789012345678901234567890}}"#;
    let body = chat_body(body, "m", &Forced::default()).unwrap();
    let text = std::str::from_utf8(&body).unwrap();
    for number in ["9007199254740993", "1.0e-3", "123456789012345678901234567890"] {
        assert!(text.contains(number), "{text}");
    }
}

#[test]
fn a_parameter_under_two_names_must_have_one_value() {
    let same = json!({"max_tokens": 5, "max_completion_tokens": 5, "options": {"num_predict": 5}});
    assert_eq!(with(same)["options"], json!({"num_predict": 5}));
    for (members, names) in [
        (
            json!({"max_tokens": 5, "max_completion_tokens": 6}),
            ["max_tokens", "max_completion_tokens"],
        ),
        (
            json!({"temperature": 1, "options": {"temperature": 0}}),
            ["temperature", "options.temperature"],
        ),
        (json!({"num_ctx": 1, "options": {"num_ctx": 2}}), ["num_ctx", "options.num_ctx"]),
        (json!({"think": true, "reasoning_effort": "low"}), ["think", "reasoning_effort"]),
        (
            json!({"format": "json", "response_format": {"type": "json_object"}}),
            ["format", "response_format"],
        ),
    ] {
        let error = refused(members);
        for name in names {
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
        assert!(error.contains("send one of them"), "{error}");
    }
}

#[test]
fn fc_049_and_fc_051_calls_of_the_history_carry_objects_and_a_broken_one_is_named() {
    let call = |arguments: Value| {
        json!([
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}},
            ]},
        ])
    };
    for (arguments, object) in [
        (json!("{\"a\":1}"), json!({"a": 1})),
        (json!(" {\"a\" : [1,null]} \n"), json!({"a": [1, null]})),
        (json!(""), json!({})),
        (json!({"a": 1}), json!({"a": 1})),
        (Value::Null, json!({})),
    ] {
        let messages = messages(call(arguments)).unwrap();
        let expected = json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "c1", "function": {"name": "f", "arguments": object}},
        ]});
        assert_eq!(messages[1], expected);
    }
    for (arguments, problem) in [
        (json!("{\"a\":1}{\"b\":2}"), "is not the text of a JSON object: trailing characters"),
        (json!("{\"a\":"), "is not the text of a JSON object"),
        (json!("[1]"), "is JSON but no object"),
        (json!(7), "is a number: send a text"),
    ] {
        let error = messages(call(arguments)).unwrap_err();
        let path = "`messages[1].tool_calls[0].function.arguments`";
        assert!(error.starts_with(path) && error.contains(problem), "{error}");
    }
}

#[test]
fn a_tools_result_says_which_function_it_is_of() {
    let history = |result: Value| {
        json!([
            {"role": "assistant", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "first", "arguments": "{}"}},
                {"id": "c2", "type": "function", "function": {"name": "second", "arguments": "{}"}},
            ]},
            result,
        ])
    };
    let result = |members: Value| messages(history(members)).unwrap()[1].clone();
    assert_eq!(
        result(json!({"role": "tool", "tool_call_id": "c2", "content": "22 C"})),
        json!({"role": "tool", "content": "22 C", "tool_name": "second", "tool_call_id": "c2"})
    );
    let named =
        result(json!({"role": "tool", "tool_call_id": "c1", "name": "own", "content": "x"}));
    assert_eq!(named["tool_name"], "own");
    let unknown = result(json!({"role": "tool", "tool_call_id": "gone", "content": "x"}));
    assert_eq!(unknown, json!({"role": "tool", "content": "x", "tool_call_id": "gone"}));
}

#[test]
fn tools_pass_and_a_choice_that_cannot_be_made_is_refused() {
    let tools = json!([{"type": "function", "function": {
        "name": "f", "strict": true, "parameters": {"type": "object", "properties": {}}}}]);
    assert_eq!(with(json!({"tools": tools}))["tools"], tools);
    assert_eq!(with(json!({"tools": tools, "tool_choice": "none"}))["tools"], Value::Null);
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "f"}})] {
        let error = refused(json!({"tools": tools, "tool_choice": choice}));
        assert!(error.starts_with("`tool_choice` asks for a call"), "{error}");
    }
    let error = refused(json!({"tools": [{"type": "web_search"}]}));
    assert!(error.starts_with("`tools[0].type` is no function"), "{error}");
    assert!(refused(json!({"functions": []})).contains("send `tools`"));
}

#[test]
fn fc_053_thinking_stands_at_the_top_and_keeps_its_type() {
    for think in [json!(false), json!(true), json!("low")] {
        let body = with(json!({"think": think, "temperature": 0}));
        assert_eq!(body["think"], think);
        assert_eq!(body["options"], json!({"temperature": 0}));
    }
    assert_eq!(with(json!({"reasoning_effort": "high"}))["think"], "high");
    assert_eq!(with(json!({"reasoning_effort": "none"}))["think"], false);
    assert_eq!(with(json!({"reasoning": {"effort": "low"}}))["think"], "low");
}

#[test]
fn fc_054_and_fc_055_what_nobody_knows_stays_where_it_was() {
    let members = json!({
        "thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": false},
        "guided_json": {"a": 1}, "x_vendor": {"a": [1, null]}, "user": "u", "logprobs": true,
        "top_logprobs": 3, "parallel_tool_calls": false, "truncate": false,
    });
    let body = with(members.clone());
    for (key, value) in members.as_object().unwrap() {
        assert_eq!(&body[key], value, "{key}");
    }
    let message = json!({"role": "user", "content": "x", "x_vendor": [1], "name": "n"});
    assert_eq!(messages(json!([message])).unwrap()[0], message);
}

#[test]
fn fc_056_a_schema_is_the_format_itself() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "r", "schema": schema}});
    let body = with(json!({"response_format": format}));
    assert_eq!((&body["format"], &body["response_format"]), (&schema, &Value::Null));
    assert_eq!(with(json!({"response_format": {"type": "json_object"}}))["format"], "json");
    assert_eq!(with(json!({"format": schema}))["format"], schema);
    for (format, at) in [
        (json!({"type": "grammar"}), "response_format.type"),
        (json!({"type": "json_schema"}), "response_format.json_schema"),
        (
            json!({"type": "json_schema", "json_schema": {"schema": 1}}),
            "response_format.json_schema.schema",
        ),
        (json!("json"), "response_format"),
    ] {
        let error = refused(json!({"response_format": format}));
        assert!(error.starts_with(&format!("`{at}`")), "{error}");
    }
}

#[test]
fn fc_057_what_cannot_be_carried_is_refused_by_name() {
    for (members, at) in [
        (json!({"n": 2}), "n"),
        (json!({"logit_bias": {"50256": -100}}), "logit_bias"),
        (json!({"audio": {"voice": "x"}}), "audio"),
        (json!({"modalities": ["text", "audio"]}), "modalities[1]"),
        (json!({"function_call": "auto"}), "function_call"),
        (json!({"options": [1]}), "options"),
        (json!({"stop": 7}), "stop"),
        (json!({"reasoning_effort": 1}), "reasoning_effort"),
        (json!({"messages": "hi"}), "messages"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": [1]}), "messages[0]"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "function", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": 7}]}), "messages[0].content"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            "messages[0].content[0].text",
        ),
    ] {
        let error = refused(members);
        assert!(error.starts_with(&format!("`{at}` ")), "{error}");
    }
}

#[test]
fn a_member_in_another_spelling_cannot_take_the_place_of_one_that_is_written() {
    for body in [
        r#"{"model":"c","messages":[],"Options":{"num_ctx":1}}"#,
        r#"{"model":"c","messages":[],"KEEP_ALIVE":-1}"#,
        r#"{"model":"c","messages":[],"Model":"other"}"#,
        r#"{"model":"c","messages":[],"Messages":[]}"#,
        r#"{"model":"c","messages":[],"options":{"Num_Ctx":1}}"#,
        r#"{"model":"c","messages":[],"options":{"num_ctx":1,"num_ctx":2}}"#,
        r#"{"model":"c","messages":[],"keep_alive":1,"keep_alive":2}"#,
        r#"{"model":"c","messages":[],"temperature":1,"temperature":2}"#,
        "[]",
        "nonsense",
        "",
    ] {
        assert!(chat_body(body.as_bytes(), "m", &Forced::default()).is_err(), "{body}");
    }
}

#[test]
fn fc_059_and_fc_060_the_context_size_of_the_operator_wins_and_0_adds_none() {
    for (forced_to, requested, expected) in [
        (8192, json!({"num_ctx": 4096}), json!({"num_ctx": 8192})),
        (8192, json!({"num_ctx": 65536, "seed": 1}), json!({"num_ctx": 8192, "seed": 1})),
        (8192, Value::Null, json!({"num_ctx": 8192})),
        (0, json!({"num_ctx": 4096}), json!({"num_ctx": 4096})),
        (0, Value::Null, Value::Null),
    ] {
        let forced = forced(forced_to, None);
        let input = json!({"model": "c", "messages": [], "prompt": "p", "input": "i",
            "options": requested})
        .to_string();
        let bodies = [
            chat_body(input.as_bytes(), "m", &forced).unwrap(),
            completion_body(input.as_bytes(), "m", &forced).unwrap(),
            embed_body(input.as_bytes(), "m", &forced).unwrap().json,
        ];
        for body in bodies {
            let body: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["options"], expected, "{forced_to} {requested}");
        }
    }
    let flat = translated(&chat(&json!({"num_ctx": 4096})), &forced(8192, None)).unwrap();
    assert_eq!(flat["options"], json!({"num_ctx": 8192}));
    assert_eq!(flat["num_ctx"], Value::Null);
}

#[test]
fn fc_062_and_fc_063_keep_alive_keeps_its_type_and_the_operators_wins() {
    for keep_alive in [json!(-1), json!(0), json!("10m")] {
        let body = chat(&json!({"keep_alive": keep_alive}));
        assert_eq!(translated(&body, &Forced::default()).unwrap()["keep_alive"], keep_alive);
        let five = forced(0, Some("\"5m\""));
        assert_eq!(translated(&body, &five).unwrap()["keep_alive"], "5m");
    }
    assert_eq!(with(json!({}))["keep_alive"], Value::Null);
    assert_eq!(translated(&chat(&json!({})), &forced(0, Some("-1"))).unwrap()["keep_alive"], -1);
}

#[test]
fn fc_064_images_leave_their_data_urls_and_a_remote_one_is_refused() {
    let parts = |url: Value| {
        json!([{"role": "user", "content": [
            {"type": "text", "text": "what is"}, {"type": "image_url", "image_url": url},
            {"type": "text", "text": "this?"},
        ]}])
    };
    let url = "data:image/png;base64,iVBORw0KGgo=";
    for url in [json!({"url": url, "detail": "low"}), json!(url)] {
        assert_eq!(
            messages(parts(url)).unwrap()[0],
            json!({"role": "user", "content": "what is\nthis?", "images": ["iVBORw0KGgo="]})
        );
    }
    let error = messages(parts(json!({"url": "https://example.org/a.png"}))).unwrap_err();
    assert!(
        error.starts_with("`messages[0].content[1].image_url.url` is a remote address"),
        "{error}"
    );
}

#[test]
fn ollamas_own_images_are_base64_too_and_a_remote_one_is_refused() {
    let given =
        |images: Value| messages(json!([{"role": "user", "content": "x", "images": images}]));
    let expected = json!({"role": "user", "content": "x", "images": ["aGk=", "aGk="]});
    let images = json!(["aGk=", "data:image/png;base64,aGk="]);
    assert_eq!(given(images.clone()).unwrap()[0], expected);
    assert_eq!(completion(&json!({"images": images})).unwrap()["images"], expected["images"]);
    for (images, at, problem) in [
        (json!(["http://example.org/a.png"]), "images[0]", "remote address"),
        (json!(["aGk=", "//example.org/a"]), "images[1]", "remote address"),
        (json!(["aGk"]), "images[0]", "remote address"),
        (json!([{"url": "aGk="}]), "images[0]", "is an object"),
        (json!("aGk="), "images", "is a string"),
    ] {
        let error = given(images.clone()).unwrap_err();
        assert!(error.starts_with(&format!("`messages[0].{at}` ")), "{error}");
        assert!(error.contains(problem), "{error}");
        let error = completion(&json!({"images": images})).unwrap_err();
        assert!(error.starts_with(&format!("`{at}` ")) && error.contains(problem), "{error}");
    }
}

#[test]
fn roles_and_earlier_thoughts_have_ollamas_names() {
    let given = json!([
        {"role": "developer", "content": "be brief"},
        {"role": "assistant", "content": "a", "reasoning_content": "because"},
        {"role": "assistant", "content": null, "refusal": "no"},
        {"role": "control", "content": "thinking"},
    ]);
    let expected = json!([
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": "a", "thinking": "because"},
        {"role": "assistant", "content": "no"},
        {"role": "control", "content": "thinking"},
    ]);
    assert_eq!(messages(given).unwrap(), expected);
}

fn completion(members: &Value) -> Result<Value, String> {
    let mut body = json!({"model": "client", "prompt": "once"});
    merge(&mut body, members);
    let body = completion_body(body.to_string().as_bytes(), "m", &Forced::default());
    body.map(|body| serde_json::from_slice(&body).unwrap()).map_err(|error| error.to_string())
}

#[test]
fn a_completion_is_generated_from_prompt_and_suffix() {
    let expected = json!({"model": "m", "prompt": "once", "stream": true});
    let nothing = json!({"n": 1, "best_of": 1, "echo": false, "stream": false, "logit_bias": null});
    assert_eq!(completion(&nothing).unwrap(), expected);
    assert_eq!(completion(&json!({"prompt": ["once"]})).unwrap(), expected);
    let body = completion(&json!({"suffix": "end", "raw": true, "max_tokens": 3, "logprobs": 2}));
    assert_eq!(
        body.unwrap(),
        json!({"model": "m", "prompt": "once", "suffix": "end", "raw": true, "stream": true,
            "options": {"num_predict": 3}, "logprobs": true, "top_logprobs": 2})
    );
    assert_eq!(completion(&json!({"logprobs": true})).unwrap()["logprobs"], true);
}

#[test]
fn a_completion_that_cannot_be_generated_is_refused_by_name() {
    for (members, at, problem) in [
        (json!({"prompt": ["a", "b"]}), "prompt", "holds 2 prompts"),
        (json!({"prompt": [1, 2]}), "prompt", "takes no tokens"),
        (json!({"prompt": [[1, 2]]}), "prompt", "takes no tokens"),
        (json!({"prompt": []}), "prompt", "is empty"),
        (json!({"prompt": null}), "prompt", "is missing"),
        (json!({"echo": true}), "echo", "cannot be done"),
        (json!({"best_of": 3}), "best_of", "asks for 3"),
        (json!({"n": 2}), "n", "asks for 2"),
        (json!({"logit_bias": {"1": 1}}), "logit_bias", "cannot be carried"),
        (json!({"logprobs": "many"}), "logprobs", "is no count"),
        (json!({"logprobs": 1, "top_logprobs": 2}), "top_logprobs", "send one of them"),
    ] {
        let error = completion(&members).unwrap_err();
        assert!(error.starts_with(&format!("`{at}` ")) && error.contains(problem), "{error}");
    }
}

fn embedding(body: &Value) -> Result<(Value, usize), String> {
    let body = embed_body(body.to_string().as_bytes(), "m", &Forced::default());
    body.map(|body| (serde_json::from_slice(&body.json).unwrap(), body.inputs))
        .map_err(|error| error.to_string())
}

#[test]
fn fc_066_embeddings_ask_for_vectors_and_their_encoding_is_no_concern_of_ollama() {
    let body = json!({"model": "c", "input": ["a", "b"], "encoding_format": "base64",
        "dimensions": 64, "truncate": false, "user": "u"});
    assert_eq!(
        embedding(&body).unwrap(),
        (
            json!({"model": "m", "input": ["a", "b"], "dimensions": 64, "truncate": false, "user": "u"}),
            2
        )
    );
    let one = embedding(&json!({"model": "c", "input": "a"})).unwrap();
    assert_eq!(one, (json!({"model": "m", "input": "a"}), 1));
    for (input, at) in [
        (json!([1, 2]), "input[0]"),
        (json!(["a", [1]]), "input[1]"),
        (json!([]), "input"),
        (json!(7), "input"),
        (Value::Null, "input"),
    ] {
        let error = embedding(&json!({"model": "c", "input": input})).unwrap_err();
        assert!(error.starts_with(&format!("`{at}` ")), "{error}");
    }
}
