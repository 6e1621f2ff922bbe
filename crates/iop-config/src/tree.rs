//! Which place of a text belongs to which field, in both directions.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use crate::error::Position;
use crate::path::Path;

/// Every field of a text with its place.
#[derive(Debug, Default)]
pub(crate) struct Tree(Vec<Mark>);

/// One field.
#[derive(Debug)]
struct Mark {
    path: Path,
    key: Option<Position>,
    value: Option<Position>,
}

impl Tree {
    /// Reads the places of a text, whatever it means.
    ///
    /// # Errors
    /// Fails when the text is no YAML.
    pub(crate) fn of(text: &str) -> Result<Self, serde_saphyr::Error> {
        let options = serde_saphyr::options! { with_snippet: false };
        let root: Spanned<Node> = serde_saphyr::from_str_with_options(text, options)?;
        let mut tree = Self::default();
        tree.add(Path::root(), None, &root);
        Ok(tree)
    }

    /// Returns the place of a field, or of the nearest field above it.
    pub(crate) fn position(&self, path: &Path) -> Option<Position> {
        let mut wanted = Some(path.clone());
        while let Some(path) = wanted {
            if let Some(mark) = self.0.iter().find(|mark| mark.path == path) {
                return mark.key.or(mark.value);
            }
            wanted = path.parent();
        }
        None
    }

    /// Finds the field whose key stands at a place.
    pub(crate) fn key_at(&self, position: Position) -> Option<&Path> {
        self.0.iter().find(|mark| mark.key == Some(position)).map(|mark| &mark.path)
    }

    /// Finds the outermost field whose value begins at a place.
    pub(crate) fn value_at(&self, position: Position) -> Option<&Path> {
        self.0.iter().find(|mark| mark.value == Some(position)).map(|mark| &mark.path)
    }

    /// Finds the last field that begins at a place or before it on its line.
    pub(crate) fn before(&self, position: Position) -> Option<&Path> {
        let begin = |mark: &Mark| mark.key.max(mark.value).filter(|begin| *begin <= position);
        self.0
            .iter()
            .filter(|mark| begin(mark).is_some_and(|begin| begin.line == position.line))
            .max_by_key(|mark| begin(mark))
            .map(|mark| &mark.path)
    }

    /// Adds a value and what lies below it, outermost first.
    fn add(&mut self, path: Path, key: Option<Position>, value: &Spanned<Node>) {
        self.0.push(Mark { path: path.clone(), key, value: place(value.referenced) });
        match &value.value {
            Node::Leaf => {}
            Node::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    self.add(path.index(at), None, item);
                }
            }
            Node::Map(entries) => {
                for (key, value) in entries {
                    self.add(path.key(&key.value), place(key.referenced), value);
                }
            }
        }
    }
}

/// Returns a place as this crate says it; an unknown one has line 0.
pub(crate) fn place(location: Location) -> Option<Position> {
    (location.line() > 0).then(|| Position { line: location.line(), column: location.column() })
}

/// The shape of a text without its values.
#[derive(Debug)]
enum Node {
    Leaf,
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<String>, Spanned<Self>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Shape)
    }
}

struct Shape;

impl<'de> Visitor<'de> for Shape {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Node, D::Error> {
        Node::deserialize(from)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, from: D) -> Result<Node, D::Error> {
        Node::deserialize(from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key()? {
            map.push((key, entries.next_value()?));
        }
        Ok(Node::Map(map))
    }

    fn visit_enum<A: serde::de::EnumAccess<'de>>(self, data: A) -> Result<Node, A::Error> {
        data.variant::<IgnoredAny>()?;
        Ok(Node::Leaf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "version: 1\nroutes:\n  chat:\n    candidates:\n      - { node: a, n: 2 }\n";

    fn at(line: u64, column: u64) -> Position {
        Position { line, column }
    }

    #[test]
    fn fields_are_found_by_place_and_places_by_field() {
        let tree = Tree::of(TEXT).expect("valid");
        let node = Path::root().key("routes").key("chat").key("candidates").index(0).key("node");
        assert_eq!(tree.position(&node), Some(at(5, 11)));
        assert_eq!(tree.key_at(at(5, 11)), Some(&node));
        assert_eq!(tree.value_at(at(5, 17)), Some(&node));
        assert_eq!(tree.value_at(at(5, 9)), node.parent().as_ref());
    }

    #[test]
    fn a_field_that_is_absent_has_the_place_of_what_lacks_it() {
        let tree = Tree::of(TEXT).expect("valid");
        let absent = Path::root().key("routes").key("chat").key("queue").key("timeout");
        assert_eq!(tree.position(&absent), Some(at(3, 3)));
    }
}
