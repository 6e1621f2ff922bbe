//! What is known of each provider, from looks at it: the source of every ProviderStatus.
//!
//! ```text
//!             lists targets            two looks in a row unanswered, no call in use;
//!                                      or the server says that it cannot serve
//! starting ────────────────► ready ───────────────────────────────────────► absent
//!     ▲  (not there yet)       ▲ └─ a look that fails while calls run changes nothing      │
//!     │                        └──────────────────── lists targets ───────────────────────┘
//!   failed: cannot work as configured, or this Node may not connect to it; waiting changes neither
//! ```
//!
//! Busy is not dead: a server that is evaluating a long prompt may answer no look for a while, so a
//! call in use outweighs a look that timed out. It does not outweigh the server's own word. What is
//! decided here is pure; the looking itself is in `watch.rs`.
//!
//! The statuses of all providers travel in one message when the Node says that it is ready, and a
//! message that is too long would close the link for all of them. So there is room for names: a list
//! that does not fit is not taken in, and its provider says so.

use std::collections::BTreeMap;

use iop_execution::{DiscoverError, Discovery};
use iop_types::{
    AdapterType, Capabilities, ProviderKey, ProviderRevision, ProviderState, ProviderStatus, Target,
};

/// Unanswered looks in a row that make a ready provider absent: one may be lost to a hiccup.
const MISSES_UNTIL_ABSENT: u32 = 2;

/// What the names of all providers together may take: half of the longest control message (1 MiB),
/// some ten thousand names. The other half is for everything else that statuses say.
const ROOM_FOR_NAMES: usize = 512 * 1024;
/// What a name takes beside its bytes: tag and length.
const PER_NAME: usize = 4;

/// The providers of a Node and where each stands.
#[derive(Debug, Default)]
pub struct Board {
    entries: BTreeMap<ProviderKey, Entry>,
}

/// What does not change with looks.
#[derive(Debug, Clone)]
pub struct Listing {
    /// Dialect of the server.
    pub adapter: AdapterType,
    /// Configuration counter at which the entry last changed.
    pub revision: ProviderRevision,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Calls it takes at once.
    pub capacity: u32,
    /// Which targets the entry allows; the adapter leaves the others out of what it lists.
    pub serves: Serves,
}

/// Which targets a provider's entry allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Serves {
    /// Whatever the server lists.
    All,
    /// These, where the server lists them.
    Only(Vec<Target>),
}

#[derive(Debug)]
struct Entry {
    listing: Listing,
    state: ProviderState,
    reason: String,
    found: Discovery,
    misses: u32,
    calls: Calls,
    /// What the Edge was last told of the queue.
    told_queued: Option<u32>,
    /// Whether a request was refused for want of capacity since the Edge last heard of any.
    was_full: bool,
}

/// A provider's figures from its gate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// Permits taken, zombies included.
    pub in_use: u32,
    /// Calls that have not been seen to return.
    pub zombies: u32,
}

impl Board {
    /// Lists a provider that is about to be looked at. One that is listed already keeps what is
    /// known of it when nothing of the listing changed but its number.
    pub fn list(&mut self, key: ProviderKey, listing: Listing) {
        let starting = Entry {
            listing: listing.clone(),
            state: ProviderState::Starting,
            reason: "not looked at yet".to_owned(),
            found: Discovery::default(),
            misses: 0,
            calls: Calls::default(),
            told_queued: None,
            was_full: false,
        };
        let entry = self.entries.entry(key).or_insert(starting);
        if entry.state == ProviderState::Failed {
            entry.state = ProviderState::Starting;
        }
        entry.listing = listing;
    }

    /// Lists a provider that cannot work as configured.
    pub fn fail(&mut self, key: ProviderKey, listing: Listing, reason: String) {
        let entry = Entry {
            listing,
            state: ProviderState::Failed,
            reason,
            found: Discovery::default(),
            misses: 0,
            calls: Calls::default(),
            told_queued: None,
            was_full: false,
        };
        self.entries.insert(key, entry);
    }

    /// Keeps only the providers that `is_listed` names.
    pub fn retain(&mut self, is_listed: impl Fn(&ProviderKey) -> bool) {
        self.entries.retain(|key, _| is_listed(key));
    }

    /// Takes in a look; says whether the Edge must hear of it.
    pub fn see(
        &mut self,
        key: &ProviderKey,
        look: Result<Discovery, DiscoverError>,
        calls: Calls,
    ) -> bool {
        let look = look.and_then(|found| self.admit(key, found));
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let before = entry.told();
        entry.calls = calls;
        entry.see(look);
        let changed = before != entry.told() || has_moved(entry.told_queued, entry.queued());
        if changed {
            entry.told_queued = entry.queued();
        }
        changed
    }

    /// Lets a list through that fits beside those of the other providers.
    fn admit(&self, key: &ProviderKey, found: Discovery) -> Result<Discovery, DiscoverError> {
        let others = self.entries.iter().filter(|(other, _)| *other != key);
        let taken: usize = others.map(|(_, entry)| room_of(&entry.found)).sum();
        let needed = room_of(&found);
        if taken + needed <= ROOM_FOR_NAMES {
            return Ok(found);
        }
        Err(DiscoverError::Unusable(format!(
            "the server lists {} models, whose names take {} KiB where {} are left: name those to \
             serve in the provider's `targets`",
            found.targets.len(),
            needed.div_ceil(1024),
            ROOM_FOR_NAMES.saturating_sub(taken) / 1024,
        )))
    }

    /// Takes in a gate's figures; says whether the Edge must hear of it. It counts its own calls; what
    /// it cannot know is zombies, and that a gate which refused it has room again, because calls of
    /// an earlier link returned.
    pub fn count(&mut self, key: &ProviderKey, calls: Calls) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let has_room = calls.in_use < entry.listing.capacity;
        let was_full = has_room && std::mem::take(&mut entry.was_full);
        let changed = was_full || entry.calls.zombies != calls.zombies;
        entry.calls = calls;
        changed
    }

    /// A request was refused because the gate was full.
    pub fn note_full(&mut self, key: &ProviderKey) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.was_full = true;
        }
    }

    /// Returns one provider as the Edge is told of it.
    pub fn status(&self, key: &ProviderKey) -> Option<ProviderStatus> {
        self.entries.get(key).map(|entry| entry.status(key))
    }

    /// Returns every provider in the order of their keys.
    pub fn statuses(&self) -> Vec<ProviderStatus> {
        self.entries.iter().map(|(key, entry)| entry.status(key)).collect()
    }

    /// Says whether a provider deserves a look before the usual time: one that is not up yet or away,
    /// because requests may be waiting for it; one that did not answer the last, to know; and one that
    /// tells its queue, while that can move.
    pub fn is_restless(&self, key: &ProviderKey) -> bool {
        self.entries.get(key).is_some_and(|entry| match entry.state {
            ProviderState::Starting | ProviderState::Absent => true,
            ProviderState::Ready => {
                let moves = |queued| queued > 0 || entry.calls.in_use > 0;
                entry.misses > 0 || entry.found.queued.is_some_and(moves)
            }
            ProviderState::Failed | ProviderState::Draining => false,
        })
    }

    /// Says whether no provider is known at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Entry {
    fn see(&mut self, look: Result<Discovery, DiscoverError>) {
        match look {
            Ok(found) => self.found(found),
            Err(DiscoverError::Unusable(reason)) => match &self.listing.serves {
                // A server without a list still serves what its entry names.
                Serves::Only(targets) if !targets.is_empty() => {
                    let targets = targets.clone();
                    self.ready(Discovery { targets, ..Discovery::default() });
                }
                Serves::Only(_) | Serves::All => self.missed(reason),
            },
            Err(DiscoverError::Unreachable(reason)) => self.missed(reason),
            // Only a host name can leave this state again, by what it resolves to.
            Err(DiscoverError::Forbidden(reason)) => {
                self.state = ProviderState::Failed;
                self.reason = reason;
                self.misses = 0;
            }
            // Its own word, not our guess: nothing outweighs it.
            Err(DiscoverError::Unwell(reason)) => {
                self.misses = 0;
                self.away(reason);
            }
        }
    }

    fn found(&mut self, found: Discovery) {
        if found.targets.is_empty() {
            let reason = match &self.listing.serves {
                Serves::All => "the server lists no models yet".to_owned(),
                Serves::Only(targets) => {
                    let names: Vec<_> = targets.iter().map(Target::as_str).collect();
                    format!(
                        "the server lists none of the configured targets ({})",
                        names.join(", ")
                    )
                }
            };
            self.misses = 0;
            self.away(reason);
        } else {
            self.ready(found);
        }
    }

    fn ready(&mut self, found: Discovery) {
        self.state = ProviderState::Ready;
        self.reason.clear();
        self.misses = 0;
        self.found = found;
    }

    fn missed(&mut self, reason: String) {
        match self.state {
            ProviderState::Ready => {
                if self.calls.in_use > 0 {
                    return;
                }
                self.misses += 1;
                if self.misses >= MISSES_UNTIL_ABSENT {
                    self.away(reason);
                }
            }
            ProviderState::Starting | ProviderState::Absent => self.reason = reason,
            ProviderState::Failed | ProviderState::Draining => {}
        }
    }

    fn away(&mut self, reason: String) {
        self.state = match self.state {
            ProviderState::Ready | ProviderState::Absent => ProviderState::Absent,
            ProviderState::Starting => ProviderState::Starting,
            ProviderState::Failed => ProviderState::Failed,
            ProviderState::Draining => ProviderState::Draining,
        };
        self.reason = reason;
    }

    /// What the Edge decides by, but for the queue; any change of it is told.
    fn told(&self) -> (ProviderState, String, Discovery, u32) {
        let found = Discovery { queued: None, is_idle: false, ..self.found.clone() };
        (self.state, self.reason.clone(), found, self.calls.zombies)
    }

    /// Returns the queue of a server that is there.
    fn queued(&self) -> Option<u32> {
        self.found.queued.filter(|_| self.state == ProviderState::Ready)
    }

    fn status(&self, key: &ProviderKey) -> ProviderStatus {
        let is_ready = self.state == ProviderState::Ready;
        ProviderStatus {
            provider: key.clone(),
            adapter: self.listing.adapter,
            state: self.state,
            reason: self.reason.clone(),
            targets: if is_ready { self.found.targets.clone() } else { Vec::new() },
            loaded: if is_ready { self.found.loaded.clone() } else { Vec::new() },
            capacity: self.listing.capacity,
            in_use: self.calls.in_use,
            zombies: self.calls.zombies,
            queued: self.queued(),
            revision: self.listing.revision,
            capabilities: self.listing.capabilities.clone(),
        }
    }
}

/// Says whether a queue changed so much that the Edge must hear of it: between unknown, empty and not
/// empty, and otherwise by a quarter. A queue of 100 that breathes by a few would else send a status,
/// with all names, at every look.
fn has_moved(told: Option<u32>, now: Option<u32>) -> bool {
    match (told, now) {
        (Some(told), Some(now)) if told > 0 && now > 0 => {
            u64::from(told.abs_diff(now)) * 4 >= u64::from(told.max(now))
        }
        (told, now) => told != now,
    }
}

/// What the names of a list take in a message.
fn room_of(found: &Discovery) -> usize {
    let names = found.targets.iter().chain(&found.loaded);
    names.map(|name| name.as_str().len() + PER_NAME).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(serves: Serves) -> Listing {
        Listing {
            adapter: AdapterType::OpenaiCompat,
            revision: ProviderRevision(1),
            capabilities: Capabilities::default(),
            capacity: 8,
            serves,
        }
    }

    fn board(serves: Serves) -> (Board, ProviderKey) {
        let key = ProviderKey::from("lab");
        let mut board = Board::default();
        board.list(key.clone(), listing(serves));
        (board, key)
    }

    fn lists(targets: &[&str]) -> Result<Discovery, DiscoverError> {
        Ok(Discovery {
            targets: targets.iter().map(|name| Target::from(*name)).collect(),
            ..Discovery::default()
        })
    }

    fn queues(queued: u32) -> Result<Discovery, DiscoverError> {
        Ok(Discovery { queued: Some(queued), ..lists(&["m"])? })
    }

    fn silent() -> Result<Discovery, DiscoverError> {
        Err(DiscoverError::Unreachable("connection refused".to_owned()))
    }

    fn state(board: &Board, key: &ProviderKey) -> ProviderState {
        board.status(key).unwrap().state
    }

    const IDLE: Calls = Calls { in_use: 0, zombies: 0 };
    const BUSY: Calls = Calls { in_use: 1, zombies: 0 };

    #[test]
    fn a_provider_is_starting_until_it_lists_a_target() {
        let (mut board, key) = board(Serves::All);
        assert!(board.see(&key, silent(), IDLE));
        assert_eq!(state(&board, &key), ProviderState::Starting);
        assert!(board.see(&key, lists(&[]), IDLE), "the reason changed");
        assert_eq!(state(&board, &key), ProviderState::Starting);
        assert!(board.see(&key, lists(&["m"]), IDLE));
        assert_eq!(state(&board, &key), ProviderState::Ready);
        assert!(!board.see(&key, lists(&["m"]), IDLE), "nothing new");
    }

    #[test]
    fn what_the_node_may_not_reach_has_failed_and_says_why_until_it_answers() {
        let (mut board, key) = board(Serves::Only(vec![Target::from("m")]));
        let forbidden = || Err(DiscoverError::Forbidden("`egress` lacks it".to_owned()));
        assert!(board.see(&key, forbidden(), IDLE));
        assert_eq!(state(&board, &key), ProviderState::Failed);
        assert!(!board.is_restless(&key), "nobody waits for it");
        assert!(!board.see(&key, forbidden(), IDLE), "nothing new");
        board.see(&key, silent(), IDLE);
        assert_eq!(board.status(&key).unwrap().reason, "`egress` lacks it");
        board.see(&key, lists(&["m"]), IDLE);
        assert_eq!(state(&board, &key), ProviderState::Ready);
        assert!(board.see(&key, forbidden(), BUSY), "a call in use does not outweigh it");
        assert_eq!(state(&board, &key), ProviderState::Failed);
        assert!(board.status(&key).unwrap().targets.is_empty());
    }

    #[test]
    fn two_unanswered_looks_make_it_absent_and_one_answer_brings_it_back() {
        let (mut board, key) = board(Serves::All);
        board.see(&key, lists(&["m"]), IDLE);
        assert!(!board.see(&key, silent(), IDLE));
        assert!(board.see(&key, silent(), IDLE));
        assert_eq!(state(&board, &key), ProviderState::Absent);
        assert!(board.status(&key).unwrap().targets.is_empty());
        assert!(board.see(&key, lists(&["m"]), IDLE));
        assert_eq!(state(&board, &key), ProviderState::Ready);
    }

    #[test]
    fn one_that_is_not_up_or_away_and_one_whose_queue_can_move_are_looked_at_sooner() {
        let (mut board, key) = board(Serves::All);
        assert!(board.is_restless(&key));
        board.see(&key, lists(&["m"]), BUSY);
        assert!(!board.is_restless(&key), "it tells no queue");
        board.see(&key, queues(0), IDLE);
        assert!(!board.is_restless(&key), "nothing moves");
        board.count(&key, BUSY);
        assert!(board.is_restless(&key));
        board.see(&key, queues(3), IDLE);
        assert!(board.is_restless(&key), "others wait");
        board.see(&key, queues(0), IDLE);
        board.see(&key, silent(), IDLE);
        assert!(board.is_restless(&key), "one look was missed");
        board.see(&key, silent(), IDLE);
        assert!(board.is_restless(&key));
    }

    #[test]
    fn a_queue_is_told_when_it_appears_empties_or_moves_by_a_quarter() {
        let (mut board, key) = board(Serves::All);
        assert!(board.see(&key, queues(0), IDLE));
        assert!(!board.see(&key, queues(0), IDLE));
        assert!(board.see(&key, queues(1), IDLE));
        assert!(board.see(&key, queues(100), IDLE));
        for breath in [97, 103, 90, 110] {
            assert!(!board.see(&key, queues(breath), IDLE), "{breath}");
        }
        assert!(board.see(&key, queues(134), IDLE), "a quarter more than what was told");
        assert!(board.see(&key, queues(0), IDLE));
        assert!(board.see(&key, lists(&["m"]), IDLE), "unknown is not empty");
        assert_eq!(board.status(&key).unwrap().queued, None);
    }

    #[test]
    fn a_gate_that_refused_and_has_room_again_is_told_once() {
        let (mut board, key) = board(Serves::All);
        let full = Calls { in_use: 8, zombies: 0 };
        board.count(&key, full);
        board.note_full(&key);
        assert!(!board.count(&key, full), "still full");
        assert!(board.count(&key, BUSY));
        assert!(!board.count(&key, IDLE));
    }

    #[test]
    fn a_busy_provider_that_answers_no_look_stays_ready() {
        let (mut board, key) = board(Serves::All);
        board.see(&key, lists(&["m"]), IDLE);
        for _ in 0..10 {
            assert!(!board.see(&key, silent(), BUSY));
        }
        assert_eq!(state(&board, &key), ProviderState::Ready);
    }

    #[test]
    fn a_server_that_says_it_cannot_serve_is_taken_at_its_word_even_while_calls_run() {
        let unwell = || Err(DiscoverError::Unwell("health answered 503".to_owned()));
        let (mut board, key) = board(Serves::Only(vec![Target::from("m")]));
        assert!(board.see(&key, unwell(), IDLE));
        assert_eq!(state(&board, &key), ProviderState::Starting);
        board.see(&key, lists(&["m"]), BUSY);
        assert!(board.see(&key, unwell(), BUSY));
        let status = board.status(&key).unwrap();
        assert_eq!(
            (status.state, status.reason.as_str()),
            (ProviderState::Absent, "health answered 503")
        );
        assert!(board.see(&key, lists(&["m"]), BUSY));
        assert_eq!(state(&board, &key), ProviderState::Ready);
    }

    #[test]
    fn a_server_that_lists_none_of_the_configured_targets_says_so() {
        let (mut board, key) = board(Serves::Only(vec![Target::from("a"), Target::from("b")]));
        board.see(&key, lists(&["b"]), IDLE);
        assert_eq!(board.status(&key).unwrap().targets, [Target::from("b")]);
        board.see(&key, lists(&[]), IDLE);
        let status = board.status(&key).unwrap();
        assert_eq!(status.state, ProviderState::Absent);
        assert!(status.reason.contains("none of the configured targets (a, b)"));
    }

    #[test]
    fn a_server_without_a_list_serves_what_its_entry_names() {
        let unusable = || Err(DiscoverError::Unusable("404".to_owned()));
        let (mut named, key) = board(Serves::Only(vec![Target::from("a")]));
        named.see(&key, unusable(), IDLE);
        assert_eq!(named.status(&key).unwrap().targets, [Target::from("a")]);
        let (mut open, key) = board(Serves::All);
        open.see(&key, unusable(), IDLE);
        assert_eq!(state(&open, &key), ProviderState::Starting);
    }

    #[test]
    fn a_change_of_zombies_is_told_and_a_change_of_calls_is_not() {
        let (mut board, key) = board(Serves::All);
        assert!(!board.count(&key, BUSY));
        assert!(board.count(&key, Calls { in_use: 1, zombies: 1 }));
        assert_eq!(board.status(&key).unwrap().zombies, 1);
    }

    #[test]
    fn a_list_that_no_message_could_carry_is_not_taken_in_and_says_what_to_do() {
        let (mut board, lab) = board(Serves::All);
        let name = |at: usize| Target::from(format!("{at:0>100}").as_str());
        let list = |count: usize| {
            Ok(Discovery { targets: (0..count).map(name).collect(), ..Discovery::default() })
        };
        board.see(&lab, list(3_000), Calls::default());
        assert_eq!(state(&board, &lab), ProviderState::Ready);

        // Each would fit alone.
        let other = ProviderKey::from("other");
        board.list(other.clone(), listing(Serves::All));
        board.see(&other, list(3_000), Calls::default());
        let status = board.status(&other).unwrap();
        assert_eq!((status.state, status.targets.len()), (ProviderState::Starting, 0));
        assert!(status.reason.contains("3000 models"), "{}", status.reason);
        assert!(status.reason.contains("`targets`"), "{}", status.reason);

        // A server that lists less again is served, and one that lists more keeps its old list for
        // the calls that run.
        assert!(board.see(&other, list(10), Calls::default()));
        assert_eq!(state(&board, &other), ProviderState::Ready);
        assert!(!board.see(&other, list(20_000), BUSY));
        assert_eq!(board.status(&other).unwrap().targets.len(), 10);
    }
}
