//! With which context length each target was last asked for, and so is loaded.
//!
//! Kept where nothing is forced, for the one who must ask in the same way. The server is asked by
//! others too, of whom nothing is known here.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard};

use iop_dialect::ollama::asked_num_ctx;
use iop_types::Target;

/// More targets than anybody runs on one server; beyond it all are forgotten.
const MOST: usize = 1024;

/// The last requests' context lengths, by target.
#[derive(Default)]
pub(super) struct Contexts(Mutex<BTreeMap<Target, Context>>);

/// What a request asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Context {
    /// Nothing: the server's default.
    Default,
    /// This length.
    Size(NonZeroU32),
    /// Its body was not seen whole, or says what is no length.
    Unread,
}

impl Context {
    /// Reads what a body of Ollama's own API asks for.
    pub(super) fn of_body(body: &[u8]) -> Self {
        match asked_num_ctx(body) {
            Ok(None) => Self::Default,
            Ok(Some(size)) => Self::Size(size),
            Err(_) => Self::Unread,
        }
    }
}

impl Contexts {
    /// Notes what a request is about to ask for.
    pub(super) fn note(&self, target: &Target, context: Context) {
        let mut contexts = self.lock();
        match contexts.get_mut(target) {
            Some(known) => *known = context,
            None => {
                if contexts.len() >= MOST {
                    contexts.clear();
                }
                contexts.insert(target.clone(), context);
            }
        }
    }

    /// Returns what was last asked for; `None` where nothing was.
    pub(super) fn of(&self, target: &Target) -> Option<Context> {
        self.lock().get(target).copied()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Target, Context>> {
        self.0.lock().expect("no code panics while it holds the contexts")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_asks_for_a_length_for_none_or_unreadably() {
        let size = |n| Context::Size(NonZeroU32::new(n).unwrap());
        for (body, context) in [
            (r#"{"model":"m"}"#, Context::Default),
            (r#"{"model":"m","prompt":"what is num_ctx?"}"#, Context::Default),
            (r#"{"model":"m","options":{"num_ctx":8192,"seed":1}}"#, size(8192)),
            (r#"{"model":"m","options":null,"x":"num_ctx"}"#, Context::Default),
            (r#"{"model":"m","options":{"num_ctx":-1}}"#, Context::Unread),
            (r#"{"model":"m","options":{"num_ctx":"8k"}}"#, Context::Unread),
            (r#"{"options":{"num_ctx":1},"options":{"num_ctx":2}}"#, Context::Unread),
            ("num_ctx", Context::Unread),
        ] {
            assert_eq!(Context::of_body(body.as_bytes()), context, "{body}");
        }
    }

    #[test]
    fn the_last_request_counts_and_what_is_kept_is_bounded() {
        let contexts = Contexts::default();
        let target = Target::from("m");
        assert_eq!(contexts.of(&target), None);
        contexts.note(&target, Context::Unread);
        contexts.note(&target, Context::Default);
        assert_eq!(contexts.of(&target), Some(Context::Default));
        for number in 0..=MOST {
            contexts.note(&Target::from(number.to_string()), Context::Default);
        }
        assert!(contexts.lock().len() <= MOST);
    }
}
