//! The reference page, generated from the schemas so that it cannot fall behind.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value};

use crate::{overlay, schema};

/// Returns `docs/configuration.md`.
pub fn page() -> String {
    let mut page = String::from(HEAD);
    page.push_str("\n## The Edge's file\n");
    Reader { schema: &schema::edge() }.write("edge.yaml", &mut page);
    page.push_str(BETWEEN);
    page.push_str("\n## The Node's file\n");
    Reader { schema: &schema::node() }.write("node.yaml", &mut page);
    page.push_str("\n## Variables\n\nNone is needed; each overrides the file and is overridden by a flag.\n\n| variable | overrides |\n|---|---|\n");
    for (variable, field) in overlay::VARIABLES {
        line(&mut page, format_args!("| `{variable}` | `{field}` |"));
    }
    page
}

/// Reads one file's schema.
#[derive(Clone, Copy)]
struct Reader<'a> {
    schema: &'a Value,
}

impl<'a> Reader<'a> {
    /// Writes the root and then every object below it, once, in the order in which they are met.
    fn write(self, file: &str, page: &mut String) {
        let mut objects = vec![(String::new(), self.schema)];
        let mut next = 0;
        while let Some((path, object)) = objects.get(next).cloned() {
            next += 1;
            let title = if path.is_empty() { file } else { &path };
            line(page, format_args!("\n### `{title}`\n"));
            if let Some(text) = object.get("description").and_then(Value::as_str) {
                line(page, format_args!("{}\n", first_paragraph(text)));
            }
            page.push_str("| key | value | default | |\n|---|---|---|---|\n");
            let Some(properties) = object.get("properties").and_then(Value::as_object) else {
                continue;
            };
            // Sorted here: whether a map of JSON keeps its order is a feature that others may set.
            for (key, property) in properties.iter().collect::<BTreeMap<_, _>>() {
                self.property(object, key, property, page);
                if let Some((suffix, below)) = self.object_below(property) {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    objects.push((format!("{path}{suffix}"), below));
                }
            }
        }
    }

    fn property(self, object: &Value, key: &str, property: &'a Value, page: &mut String) {
        let is_required = object
            .get("required")
            .and_then(Value::as_array)
            .is_some_and(|keys| keys.iter().any(|required| required == key));
        let default = match property.get("default") {
            _ if is_required => "required".to_owned(),
            None | Some(Value::Null) => "absent".to_owned(),
            Some(Value::Object(members)) if !members.is_empty() => "see below".to_owned(),
            Some(Value::String(text)) => format!("`{text}`"),
            Some(other) => format!("`{other}`"),
        };
        let description = property.get("description").and_then(Value::as_str).unwrap_or_default();
        let kind = self.kind(property);
        let description = one_line(description) + &self.choices(property);
        line(page, format_args!("| `{key}` | {kind} | {default} | {description} |"));
    }

    /// Names the kind of a value.
    fn kind(self, property: &'a Value) -> String {
        let target = self.resolve(property);
        if let Some(title) = target.get("title").and_then(Value::as_str) {
            return title.to_owned();
        }
        if let Some(value) = target.get("const") {
            return format!(
                "`{}`",
                value.as_str().map_or_else(|| value.to_string(), str::to_owned)
            );
        }
        if let Some(words) = target.get("enum").and_then(Value::as_array) {
            return words
                .iter()
                .filter_map(Value::as_str)
                .map(|w| format!("`{w}`"))
                .collect::<Vec<_>>()
                .join(" ");
        }
        for choice in ["oneOf", "anyOf"] {
            if let Some(choices) = target.get(choice).and_then(Value::as_array) {
                let kinds: Vec<_> =
                    choices.iter().filter(|c| !is_null(c)).map(|c| self.kind(c)).collect();
                return kinds.join(" or ");
            }
        }
        match target.get("type") {
            Some(Value::String(kind)) => self.named(kind, target),
            Some(Value::Array(kinds)) => {
                let kinds = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null");
                kinds.map(|kind| self.named(kind, target)).collect::<Vec<_>>().join(" or ")
            }
            _ => "anything".to_owned(),
        }
    }

    fn named(self, kind: &str, target: &'a Value) -> String {
        match kind {
            "string" => "text".to_owned(),
            "integer" => "number".to_owned(),
            "boolean" => "`true` `false`".to_owned(),
            "array" => {
                let items = target.get("items").map_or_else(String::new, |items| self.kind(items));
                format!("list of {items}")
            }
            "object" => match target.get("additionalProperties") {
                Some(below @ Value::Object(_)) => format!("map of names to {}", self.kind(below)),
                _ => self.inline(target),
            },
            other => other.to_owned(),
        }
    }

    /// Shows a small object that has no section of its own, like `{ env: text }`.
    fn inline(self, target: &'a Value) -> String {
        match target.get("properties").and_then(Value::as_object) {
            Some(properties) if is_inline(properties) => {
                let fields =
                    properties.iter().map(|(key, value)| format!("{key}: {}", self.kind(value)));
                format!("`{{ {} }}`", fields.collect::<Vec<_>>().join(", "))
            }
            Some(_) | None => "section".to_owned(),
        }
    }

    /// Describes the words of an enum, where each has a text of its own.
    fn choices(self, property: &'a Value) -> String {
        let target = self.resolve(property);
        let Some(choices) = target.get("oneOf").and_then(Value::as_array) else {
            return String::new();
        };
        let mut text = String::new();
        for choice in choices {
            let word = choice.get("const").and_then(Value::as_str);
            let effect = choice.get("description").and_then(Value::as_str);
            if let (Some(word), Some(effect)) = (word, effect) {
                let effect = one_line(effect);
                write!(text, " `{word}`: {}.", effect.trim_end_matches('.'))
                    .expect("a string takes everything");
            }
        }
        text
    }

    /// Finds the object that a value, an item or an entry of it is, where that has a section.
    fn object_below(self, property: &'a Value) -> Option<(&'static str, &'a Value)> {
        let target = self.resolve(property);
        let (suffix, below) = if let Some(items) = target.get("items") {
            ("[]", self.resolve(items))
        } else if let Some(entries @ Value::Object(_)) = target.get("additionalProperties") {
            (".NAME", self.resolve(entries))
        } else {
            ("", target)
        };
        let properties = below.get("properties").and_then(Value::as_object)?;
        (!is_inline(properties)).then_some((suffix, below))
    }

    /// Follows a reference, also one that may be null.
    fn resolve(self, value: &'a Value) -> &'a Value {
        if let Some(name) = value.get("$ref").and_then(Value::as_str) {
            let pointer = name.trim_start_matches('#');
            return self.schema.pointer(pointer).unwrap_or(value);
        }
        match value.get("anyOf").and_then(Value::as_array).map(Vec::as_slice) {
            Some([one, null]) if is_null(null) => self.resolve(one),
            _ => value,
        }
    }
}

/// One key fits into its line.
fn is_inline(properties: &Map<String, Value>) -> bool {
    properties.len() == 1
        && properties.values().all(|value| value.get("type").is_some_and(|kind| kind == "string"))
}

fn is_null(value: &Value) -> bool {
    value.get("type").is_some_and(|kind| kind == "null")
}

fn first_paragraph(text: &str) -> String {
    one_line(text.split("\n\n").next().unwrap_or_default())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a string takes everything");
}

const HEAD: &str = r#"<!-- Generated by iop_config::reference::page(); a test keeps it true. To renew it: UPDATE_DOCS=1 cargo test -p iop-config --test documentation -->
# Configuration

Users write one file for the Edge; Nodes need none of their own as long as the defaults fit. Both are
YAML 1.2 and strict: a key that is not known is an error with its line and column, the nearest known
key and all allowed ones. `iop config check FILE` validates, `iop config example` prints a commented
file, `iop config schema` prints the JSON schema for editors.

A flag wins over an `IOP_*` variable, which wins over the file, which wins over the default.

* *duration*: whole numbers with units, the longer first: `500ms`, `30s`, `5m`, `1h30m`, `30d`.
* *size*: a whole number with a unit: `64KiB`, `32MiB`, `1GiB`.
* *address*: `IP:PORT`, like `127.0.0.1:7400` or `"[::1]:7400"`. Local mode takes loopback addresses
  only; other machines need managed mode (`iop edge init`).
* Secrets are never written into a file: a provider names one of its Node (`api_key`), and the
  Node's file says in which variable or file that is kept; or it names a slot of the Edge
  (`credential`), which `iop credentials set` fills.

The smallest file is `version: 1`. A usual one:

```yaml
version: 1
nodes:
  workstation:
    providers:
      lab:
        adapter: openai_compat
        endpoint: http://127.0.0.1:8000
        api_key: { node_secret: lab }
routes:
  chat:
    candidates:
      - { node: workstation, provider: lab, target: llama-3.2-3b }
```
"#;

const BETWEEN: &str = r#"
### What follows when keys are absent

* A Node without `providers` looks for model servers on its own loopback and offers what it finds; a
  Node that is not named at all does the same.
* `max_concurrency`: ollama 4, openai_compat 8, vllm 256, mock 64.
* `api_key` is sent as `authorization: Bearer SECRET`. A header whose name or value looks like a
  credential is refused.
"#;
