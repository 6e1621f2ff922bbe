//! What a file may not say, where the mistake is shown, and what to write instead.

use iop_config::{ConfigError, EdgeConfig, NodeConfig};

fn refusal(text: &str) -> ConfigError {
    EdgeConfig::parse(text, "edge.yaml").expect_err(text)
}

/// The first line of what is said about an Edge's file.
fn said(text: &str) -> String {
    refusal(text).to_string()
}

fn provider(lines: &str) -> String {
    format!(
        "version: 1\nnodes:\n  a:\n    providers:\n      p:\n        adapter: vllm\n        endpoint: http://h\n        {lines}\n"
    )
}

fn route(lines: &str) -> String {
    format!(
        "version: 1\nnodes:\n  a:\n    providers:\n      one: {{ adapter: mock }}\n      two: {{ adapter: mock, targets: [m] }}\n      srv: {{ adapter: vllm, endpoint: \"http://h\" }}\n  b: {{}}\nroutes:\n  r:\n    {lines}\n"
    )
}

#[test]
fn an_unknown_key_names_its_place_the_nearest_key_and_all_allowed_ones() {
    let text = provider("max_concurency: 3");
    assert_eq!(
        said(&text).split(" (allowed: ").next(),
        Some(
            "edge.yaml:8:9: `nodes.a.providers.p.max_concurency`: unknown key; did you mean \
             `max_concurrency`?"
        )
    );
    assert!(
        said(&text).contains("response_stall_timeout, first_response_timeout"),
        "{}",
        said(&text)
    );
    assert!(said("version: 1\nlisten: { client: 127.0.0.1:1 }\n").starts_with(
        "edge.yaml:2:11: `listen.client`: unknown key; did you mean `clients`? (allowed: clients, \
         nodes, admin)"
    ));
    assert!(
        said("version: 1\nzzz: 1\n").starts_with("edge.yaml:2:1: `zzz`: unknown key (allowed: ")
    );
}

#[test]
fn a_key_in_the_wrong_place_says_where_it_belongs() {
    assert!(
        said(&route("response_stall_timeout: 3s")).ends_with(
            "`routes.r.response_stall_timeout`: is no key of this place: it belongs to \
             `nodes.NODE.providers.PROVIDER.response_stall_timeout`"
        ),
        "{}",
        said(&route("response_stall_timeout: 3s"))
    );
    let text = said(&provider("recovery: off"));
    assert!(text.ends_with("it belongs to `routes.ROUTE.recovery`"), "{text}");
}

#[test]
fn a_missing_key_names_its_owner() {
    assert_eq!(said("group: home\n"), "edge.yaml:1:1: `version`: is missing");
    let text = "version: 1\nroutes:\n  r:\n    candidates:\n      - { node: a, provider: p }\n";
    assert_eq!(said(text), "edge.yaml:5:9: `routes.r.candidates[0].target`: is missing");
    assert_eq!(said(""), "edge.yaml:1:1: ends too early: the smallest file is `version: 1`");
}

#[test]
fn a_key_that_is_written_twice_is_refused() {
    let text = "version: 1\nnodes:\n  a: {}\n  a: {}\n";
    assert_eq!(said(text), "edge.yaml:4:3: `a` is written twice: keep one of them");
}

#[test]
fn text_that_is_no_yaml_names_the_place() {
    let text = said("version: 1\nnodes: [\n");
    assert!(text.starts_with("edge.yaml:"), "{text}");
    assert!(said("- 1\n").starts_with("edge.yaml:1:1: "));
    assert!(said("version: 1\n---\nversion: 1\n").contains("edge.yaml:"));
    for garbage in ["\u{0}", "\u{feff}", ":", "&a *a", "%YAML", "\t", "!!binary x", "? [", "{{{{"] {
        assert!(!refusal(garbage).problems.is_empty());
    }
}

#[test]
fn deep_nesting_and_aliases_are_bounded() {
    let deep = format!("version: {}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(EdgeConfig::parse(&deep, "f").is_err());
    let mut bomb = String::from("a0: &a0 [x, x]\n");
    for level in 1..40 {
        let below = level - 1;
        bomb.push_str(&format!("a{level}: &a{level} [*a{below}, *a{below}, *a{below}]\n"));
    }
    assert!(EdgeConfig::parse(&bomb, "f").is_err());
    assert!(said(&"#\n".repeat(3 << 20)).contains("at most 4 MiB"));
}

#[test]
fn a_value_of_the_wrong_kind_names_what_is_expected() {
    let text = said("version: one\n");
    assert!(text.starts_with("edge.yaml:1:10: `version`: "), "{text}");
    let text = said(&provider("max_concurrency: 0"));
    assert!(text.starts_with("edge.yaml:8:9: `nodes.a.providers.p.max_concurrency`: "), "{text}");
    assert!(text.contains("must be more than 0"), "{text}");
    let text = said("version: 1\ndiscovered_routes: maybe\n");
    assert!(text.starts_with("edge.yaml:2:20: `discovered_routes`: "), "{text}");
    let text = said(&provider("targets: all"));
    assert!(text.starts_with("edge.yaml:8:18: `nodes.a.providers.p.targets`: "), "{text}");
}

#[test]
fn an_unknown_word_names_the_nearest_and_all_of_them() {
    assert_eq!(
        said(&route("candidates: [{ node: a, provider: one, target: m }]\n    policy: least_load")),
        "edge.yaml:12:13: `routes.r.policy`: unknown value `least_load`; did you mean `least_loaded`? (allowed: \
         least_loaded, ordered, weighted, affinity)"
    );
    assert!(said("version: 1\nnodes: { a: { providers: { p: { adapter: olama } } } }\n").contains(
        "`nodes.a.providers.p.adapter`: unknown value `olama`; did you mean `ollama`? (allowed: \
         mock, openai_compat, ollama, vllm)"
    ));
}

#[test]
fn durations_sizes_and_addresses_say_how_they_are_written() {
    for (key, value, says) in [
        ("limits", "{ drain: 30 }", "`30` is not a duration"),
        ("limits", "{ json_body: 32 }", "`32` is not a size"),
        ("listen", "{ clients: localhost:7400 }", "`listen.clients`"),
        ("listen", "{ clients: 7400 }", "`listen.clients`"),
    ] {
        let text = said(&format!("version: 1\n{key}: {value}\n"));
        assert!(text.contains(says) && text.starts_with("edge.yaml:2:"), "{text}");
    }
    for value in ["0", "0s", "25h", "86400001ms"] {
        let text = said(&provider(&format!("response_stall_timeout: {value}")));
        assert!(text.contains("`nodes.a.providers.p.response_stall_timeout`: "), "{text}");
        assert!(text.contains(&format!("`{value}` is outside 1 ms … 24 h")), "{text}");
    }
    for (text, says) in [
        (provider("first_response_timeout: 48h"), "`48h` is more than 1d: write at most 1d"),
        (route("hold_head: 301s\n    candidates: []"), "`301s` is more than 5m: write at most 5m"),
    ] {
        assert!(said(&text).contains(says), "{}", said(&text));
    }
    assert!(EdgeConfig::parse(&provider("first_response_timeout: 24h"), "f").is_ok());
    for value in ["1ms", "24h", "5m"] {
        let text = provider(&format!("response_stall_timeout: {value}"));
        assert!(EdgeConfig::parse(&text, "f").is_ok(), "{value}");
    }
}

#[test]
fn keys_of_managed_mode_are_refused_in_local_mode() {
    let text = said(&provider("credential: openrouter"));
    assert!(
        text.contains("providers.p.credential`: needs managed mode (`iop edge init`)"),
        "{text}"
    );
    for key in ["tls: { certificate: a, key: b }", "advertise: a:1", "require_keys: true"] {
        let text = said(&format!("version: 1\n{key}\n"));
        assert!(text.contains("has a meaning in managed mode only"), "{text}");
        assert!(text.starts_with("edge.yaml:2:1: "), "{text}");
    }
}

#[test]
fn a_credential_has_one_owner_and_a_header_that_can_carry_it() {
    let managed = |keys: &str| format!("mode: managed\n{}", provider(keys));
    assert!(EdgeConfig::parse(&managed("credential: paid"), "f").is_ok());
    let profile = "credential: paid\n        profile: { header: x-api-key }";
    assert!(EdgeConfig::parse(&managed(profile), "f").is_ok());
    for (keys, says) in [
        ("credential: paid\n        api_key: { node_secret: x }", "beside `api_key`"),
        ("credential: \"\"", "no slot name"),
        ("profile: { header: x-api-key }", "name one with `credential`"),
        ("credential: a\n        profile: { header: host }", "can carry no key"),
        ("credential: a\n        profile: { header: \"a b\" }", "no header name"),
        ("credential: a\n        profile: { header: a, scheme: \"a b\" }", "is no word"),
    ] {
        let text = said(&managed(keys));
        assert!(text.contains(says), "{keys}: {text}");
    }
}

#[test]
fn managed_mode_opens_addresses_as_far_as_they_are_guarded() {
    let managed = |keys: &str| format!("version: 1\nmode: managed\n{keys}\n");
    let open = "listen: { clients: 0.0.0.0:1, nodes: 0.0.0.0:2 }";
    let config = EdgeConfig::parse(&managed(open), "f").expect("valid");
    assert!(config.requires_keys());
    assert!(!EdgeConfig::parse(&managed(""), "f").expect("valid").requires_keys());
    let admin = said(&managed("listen: { admin: 0.0.0.0:3 }"));
    assert!(admin.contains("over TLS only: add `tls`, or write 127.0.0.1:3"), "{admin}");
    let text = said(&managed("listen: { clients: 0.0.0.0:1 }\nrequire_keys: false"));
    assert!(text.contains("cannot be false"), "{text}");
    for time in ["9s", "8d"] {
        let text = said(&managed(&format!("node_certificate: {time}")));
        assert!(text.contains("outside 10s … 7d"), "{text}");
    }
    let text = said(&managed("advertise: edge"));
    assert!(text.contains("HOST:PORT"), "{text}");
    let text = said(&managed("tls: { certificate: \"\", key: k }"));
    assert!(text.contains("`tls.certificate`: is empty"), "{text}");
}

#[test]
fn what_is_to_come_is_refused_by_name() {
    let text = said(&route("candidates: []\n    priority: batch"));
    assert!(text.contains("`routes.r.priority`: priorities of routes are not available"), "{text}");
}

#[test]
fn local_mode_refuses_addresses_that_others_can_reach() {
    for address in ["0.0.0.0:7400", "192.168.1.4:7400", "\"[::]:7400\"", "\"[2001:db8::1]:7400\""] {
        let text = said(&format!("version: 1\nlisten:\n  clients: {address}\n"));
        assert!(text.starts_with("edge.yaml:3:3: `listen.clients`: "), "{text}");
        assert!(text.contains("managed mode") && text.contains("127.0.0.1:7400"), "{text}");
    }
    for address in ["127.9.9.9:1", "\"[::1]:1\"", "\"[::ffff:127.0.0.1]:1\""] {
        let text = format!("version: 1\nlisten: {{ clients: {address} }}\n");
        assert!(EdgeConfig::parse(&text, "f").is_ok(), "{address}");
    }
}

#[test]
fn one_address_serves_one_purpose() {
    let text = said("version: 1\nlisten: { clients: 127.0.0.1:7402 }\n");
    assert!(text.contains("`listen.admin`: 127.0.0.1:7402 is already `listen.clients`"), "{text}");
    let any =
        "version: 1\nlisten: { clients: 127.0.0.1:0, nodes: 127.0.0.1:0, admin: 127.0.0.1:0 }\n";
    assert!(EdgeConfig::parse(any, "f").is_ok());
}

#[test]
fn a_secret_is_refused_and_never_repeated() {
    for lines in [
        "api_key: SECRET",
        "api_key: [SECRET]",
        "api_key: { node_secret: { value: SECRET } }",
        "headers: { Authorization: SECRET }",
        "headers: { X-Api-Key: SECRET }",
        "headers: { X-Else: Bearer SECRET }",
        "headers: SECRET",
        "targets: { SECRET: 1 }",
        "max_concurrency: SECRET",
    ] {
        let text = said(&provider(lines));
        assert!(!text.contains("SECRET") || lines.contains("SECRET: 1"), "{text}");
        assert!(text.starts_with("edge.yaml:8:"), "{text}");
    }
    for endpoint in ["http://u:SECRET@h", "http://h/?key=SECRET", "ftp://h/SECRET"] {
        let text = format!(
            "version: 1\nnodes: {{ a: {{ providers: {{ p: {{ adapter: vllm, endpoint: \"{endpoint}\" }} }} }} }}\n"
        );
        let text = said(&text);
        assert!(
            !text.contains("SECRET") && text.contains("`nodes.a.providers.p.endpoint`"),
            "{text}"
        );
    }
    assert!(said(&provider("api_key: SECRET")).contains("write `{ node_secret: NAME }`"));
}

#[test]
fn a_key_without_effect_is_refused() {
    for (lines, says) in [
        ("context_size: 8192", "`nodes.a.providers.p.context_size`: has no meaning for `vllm`"),
        ("keep_alive: 5m", "only for `ollama`"),
        ("script: {}", "only for `mock`"),
        ("targets: []", "is empty"),
        ("targets: [\"*\", m]", "write it alone"),
        ("targets: [m, m]", "`m` is listed twice"),
        ("first_response_timeout: 0s", "must be more than 0"),
        ("headers: { Host: h }", "is set by the Node itself"),
    ] {
        let text = said(&provider(lines));
        assert!(text.contains(says), "{text}");
    }
    let mock = |lines: &str| {
        said(&format!(
            "version: 1\nnodes: {{ a: {{ providers: {{ p: {{ adapter: mock, {lines} }} }} }} }}\n"
        ))
    };
    assert!(mock("endpoint: http://h").contains("`mock` has no server"));
    assert!(mock("api_key: { node_secret: x }").contains("only for adapters with a server"));
    for (keep_alive, is_readable) in [
        ("5m", true),
        ("1h30m", true),
        ("-1", true),
        ("0", true),
        ("\"-1m\"", true),
        ("1.5h", true),
        ("500ms", true),
        ("\"-1\"", false),
        ("\"30\"", false),
        ("\"\"", false),
        ("forever", false),
        ("5d", false),
        (".s", false),
    ] {
        let ollama = "adapter: ollama, endpoint: \"http://h\"";
        let text = format!(
            "version: 1\nnodes: {{ a: {{ providers: {{ p: {{ {ollama}, keep_alive: {keep_alive} }} }} }} }}\n"
        );
        let is_refused = EdgeConfig::parse(&text, "edge.yaml").is_err();
        assert_eq!(is_refused, !is_readable, "{keep_alive}");
    }
    let text = said("version: 1\nnodes: { a: { providers: { p: { adapter: ollama } } } }\n");
    assert!(text.contains("`nodes.a.providers.p.endpoint`: is missing: `ollama` needs"), "{text}");
    assert!(text.ends_with("like http://127.0.0.1:11434"), "{text}");
    let text = said("version: 1\nnodes: { a: { providers: { p: { adapter: vllm } } } }\n");
    assert!(text.ends_with("like http://127.0.0.1:8000"), "{text}");
}

#[test]
fn a_route_that_leads_nowhere_is_refused() {
    for (lines, says) in [
        ("candidates: []", "`routes.r.candidates`: is empty"),
        (
            "candidates: [{ node: aa, provider: one, target: m }]",
            "`routes.r.candidates[0].node`: there is no Node `aa`; did you mean `a`?",
        ),
        (
            "candidates: [{ node: a, provider: ones, target: m }]",
            "Node `a` has no provider `ones`; did you mean `one`?: define it under",
        ),
        (
            "candidates: [{ node: a, provider: mock, target: m }]",
            "`mock` is the adapter of several providers of Node `a`: name one of one, two",
        ),
        (
            "candidates: [{ node: a, provider: two, target: x }]",
            "not among the targets of provider",
        ),
        ("candidates: [{ node: a, provider: one, target: m, weight: 0 }]", "must be at least 1"),
        ("candidates: [{ node: a, provider: one, target: m* }]", "the route's name has none"),
        (
            "candidates: [{ node: a, provider: vllm, target: m }, { node: a, provider: srv, target: m }]",
            "`routes.r.candidates[1]`: is the same node, provider and target",
        ),
        (
            "candidates: [{ node: b, provider: x, target: m }]\n    timeout: 0s",
            "must be more than 0",
        ),
    ] {
        let text = said(&route(lines));
        assert!(text.contains(says), "{text}");
    }
    let star =
        route("candidates: [{ node: b, provider: x, target: m }]").replace("  r:", "  \"a*b\":");
    assert!(said(&star).contains("has a `*` in the middle"));
}

#[test]
fn everything_that_is_wrong_is_said_at_once_in_the_order_of_the_file() {
    let error = refusal(
        "version: 2\ngroup: \"a b\"\nlisten: { nodes: 1.2.3.4:5 }\nlimits: { max_streams: 0 }\ncors: { origins: [x] }\nhosts: [\"h:1\"]\n",
    );
    let lines: Vec<_> =
        error.problems.iter().filter_map(|problem| problem.position).map(|at| at.line).collect();
    assert_eq!(lines, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_nodes_file_is_as_strict() {
    let said = |text: &str| NodeConfig::parse(text, "node.yaml").expect_err(text).to_string();
    assert!(said("version: 1\n").contains("`node`: is missing"));
    assert!(said("version: 1\nnode: a\nprovider: {}\n").contains("`provider`: unknown key"));
    assert!(said("version: 1\nnode: a\nedge: 127.0.0.1:0\n").contains("is not HOST:PORT"));
    assert!(
        said("version: 1\nnode: a\negress: [\"http://h\"]\n").contains("without scheme or port")
    );
    assert!(said("version: 1\nnode: a\negress: [300.1]\n").contains("`egress[0]`"));
    assert!(said("version: 1\nnode: a\nsecrets: { k: SECRET }\n").starts_with("node.yaml:3:"));
    assert!(!said("version: 1\nnode: a\nsecrets: { k: SECRET }\n").contains("SECRET"));
    assert!(!said("version: 1\nnode: a\nsecrets: { k: { env: [SECRET] } }\n").contains("SECRET"));
    for source in ["{}", "{ env: a, file: b }", "{ value: x }", "[env]", "5"] {
        let text = said(&format!("version: 1\nnode: a\nsecrets: {{ k: {source} }}\n"));
        assert!(
            text.starts_with("node.yaml:3:") && text.contains("NAME: { env: VARIABLE }"),
            "{text}"
        );
    }
    assert!(said("version: 1\nnode: a\nsecrets: { k: { env: \"\" } }\n").contains("is empty"));
    assert!(said("version: 1\nnode: \"a/b\"\n").contains("`node`: is no Node name"));
    assert!(said("version: 1\nnode: a\ndata_dir: \"\"\n").contains("`data_dir`: is empty"));
}

#[test]
fn a_duration_that_may_be_absent_is_not_written_without_a_value() {
    let texts = [
        provider("first_response_timeout: null"),
        provider("response_stall_timeout: null"),
        route("timeout: null"),
        route("timeout:"),
        route("hold_head: null"),
    ];
    for text in texts {
        assert!(said(&text).contains("has no value: write one, or remove the key"), "{text}");
    }
}
