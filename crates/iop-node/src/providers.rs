//! The providers of this Node: built from what the Edge configured and from what runs here, started,
//! swapped in, looked at.
//!
//! This is the only module that holds the registry's bootstrap, and so the only one that starts or
//! stops a provider. A configuration keeps the instances of entries that did not change, so that a
//! reconnect costs neither pooled connections nor what is known of a server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::join_all;
use iop_adapters::{ProviderSettings, Secret, Targets, Tools};
use iop_execution::registry::{Bootstrap, Bound, Draft, Draining};
use iop_execution::{DiscoverError, Discovery, Provider, Registry};
use iop_types::{
    AdapterType, Capabilities, ConfigRevision, EdgeBootId, ProviderKey, ProviderRevision,
    ProviderStatus,
};
use iop_wire::v1;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::board::{Board, Calls, Listing, Serves};
use crate::bridge;
use crate::call::now;
use crate::local::LocalServer;
use crate::permission::Permissions;
use crate::settings::{ManageModels, Secrets};

/// How long a look may take. A list of models is a few kilobytes from memory; a server that needs
/// longer is loading or busy, and the next look comes soon.
const LOOK_BOUND: Duration = Duration::from_secs(5);

/// How long the first looks of a new configuration may keep the Node from saying that it is ready.
const FIRST_LOOK_BOUND: Duration = Duration::from_secs(2);

/// Everything a Node knows and holds of its providers.
pub(crate) struct Providers {
    registry: Registry,
    /// Serializes configurations; `None` after the shutdown.
    setup: tokio::sync::Mutex<Option<Setup>>,
    board: Mutex<Board>,
    tools: Tools,
    secrets: Secrets,
    permissions: Permissions,
}

struct Setup {
    bootstrap: Bootstrap,
    configured: BTreeMap<ProviderKey, v1::ProviderConfig>,
    found: Vec<Found>,
    revision: Option<ConfigRevision>,
    discover: bool,
}

/// A model server that was found, and what speaks to it.
#[derive(Clone)]
struct Found {
    place: LocalServer,
    adapter: AdapterType,
}

impl Providers {
    pub(crate) fn new(tools: Tools, secrets: Secrets, manage_models: ManageModels) -> Self {
        let (bootstrap, registry) = iop_execution::registry();
        Self {
            registry,
            setup: tokio::sync::Mutex::new(Some(Setup {
                bootstrap,
                configured: BTreeMap::new(),
                found: Vec::new(),
                revision: None,
                discover: false,
            })),
            board: Mutex::new(Board::default()),
            tools,
            secrets,
            permissions: Permissions::new(manage_models),
        }
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Applies a whole configuration, looks at every provider once, and returns what was left over
    /// from the one before.
    pub(crate) async fn configure(
        &self,
        boot: EdgeBootId,
        config: &v1::NodeConfig,
    ) -> Option<Draining> {
        let draining = {
            let mut guard = self.setup.lock().await;
            let setup = guard.as_mut()?;
            let revision = ConfigRevision { boot, counter: config.revision };
            setup.revision = Some(revision);
            setup.discover = config.discover;
            if !config.discover {
                setup.found.clear();
            }
            let entries = config
                .providers
                .iter()
                .map(|entry| (ProviderKey::from(entry.key.as_str()), entry.clone()))
                .collect();
            let before = std::mem::replace(&mut setup.configured, entries);
            self.swap(setup, revision, &before).await
        };
        // A server that does not answer in time is told of later, by status.
        let _ = timeout(FIRST_LOOK_BOUND, self.look(self.registry.providers())).await;
        Some(draining)
    }

    /// Takes every provider out and returns what must be finished.
    pub(crate) async fn shutdown(&self) -> Option<Draining> {
        let setup = self.setup.lock().await.take()?;
        Some(setup.bootstrap.shutdown())
    }

    /// Looks at every provider; returns the statuses that changed.
    pub(crate) async fn look_at_all(&self) -> Vec<ProviderStatus> {
        self.look(self.registry.providers()).await
    }

    /// Looks at one provider; returns its status when it changed.
    pub(crate) async fn look_at(&self, bound: Bound) -> Vec<ProviderStatus> {
        self.look(vec![bound]).await
    }

    /// Says where commands may change which models are held.
    pub(crate) const fn permissions(&self) -> &Permissions {
        &self.permissions
    }

    /// Looks for model servers on this machine, where the Edge allows it; returns what was left
    /// over, the statuses that changed, and whether anything is new.
    pub(crate) async fn look_around(
        &self,
        places: &[LocalServer],
    ) -> (Option<Draining>, Vec<ProviderStatus>) {
        let known = {
            let guard = self.setup.lock().await;
            let Some(setup) = guard.as_ref() else { return (None, Vec::new()) };
            if !setup.discover || setup.revision.is_none() {
                return (None, Vec::new());
            }
            setup.found.clone()
        };
        let is_known = |place: &&LocalServer| known.iter().any(|found| found.place == **place);
        let looks = places.iter().filter(|place| !is_known(place)).map(|place| async move {
            let endpoint = place.endpoint();
            let recognised = iop_adapters::recognise(&endpoint, &self.tools);
            let adapter = timeout(LOOK_BOUND, recognised).await.ok()??;
            Some(Found { place: place.clone(), adapter })
        });
        let new: Vec<_> = join_all(looks).await.into_iter().flatten().collect();
        if new.is_empty() {
            return (None, Vec::new());
        }
        let draining = {
            let mut guard = self.setup.lock().await;
            let Some(setup) = guard.as_mut() else { return (None, Vec::new()) };
            let Some(revision) = setup.revision.filter(|_| setup.discover) else {
                return (None, Vec::new());
            };
            for found in new {
                let Found { place, adapter } = &found;
                info!(provider = %place.provider, endpoint = place.endpoint(), %adapter, "found a model server");
                setup.found.push(found);
            }
            let unchanged = setup.configured.clone();
            self.swap(setup, revision, &unchanged).await
        };
        (Some(draining), self.look_at_all().await)
    }

    /// Frees zombies whose time has passed; returns the statuses that changed.
    pub(crate) fn count_calls(&self, now: std::time::Instant) -> Vec<ProviderStatus> {
        let providers = self.registry.providers();
        let mut board = self.board();
        let mut changed = Vec::new();
        for bound in &providers {
            bound.gate().expire_zombies(now);
            if board.count(bound.key(), calls(bound)) {
                changed.extend(board.status(bound.key()));
            }
        }
        changed
    }

    pub(crate) fn statuses(&self) -> Vec<ProviderStatus> {
        self.board().statuses()
    }

    /// Looks at the providers that deserve it before the usual time; returns the statuses that
    /// changed.
    pub(crate) async fn look_at_restless(&self) -> Vec<ProviderStatus> {
        let mut providers = self.registry.providers();
        {
            let board = self.board();
            providers.retain(|bound| board.is_restless(bound.key()));
        }
        self.look(providers).await
    }

    /// Says whether there is no provider at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.board().is_empty()
    }

    /// A request was refused because this provider's gate was full.
    pub(crate) fn note_full(&self, key: &ProviderKey) {
        self.board().note_full(key);
    }

    async fn look(&self, providers: Vec<Bound>) -> Vec<ProviderStatus> {
        let looks = providers.iter().map(|bound| async move {
            let began = now();
            let look = timeout(LOOK_BOUND, bound.discover()).await.unwrap_or_else(|_| {
                let bound = LOOK_BOUND.as_secs();
                Err(DiscoverError::Unreachable(format!("no list of models within {bound} s")))
            });
            if look.as_ref().is_ok_and(|found| found.is_idle) {
                settle_zombies(bound, began);
            }
            self.take_in(bound, look)
        });
        join_all(looks).await.into_iter().flatten().collect()
    }

    fn take_in(
        &self,
        bound: &Bound,
        look: Result<Discovery, DiscoverError>,
    ) -> Option<ProviderStatus> {
        let mut board = self.board();
        let changed = board.see(bound.key(), look, calls(bound));
        let status = board.status(bound.key()).filter(|_| changed)?;
        drop(board);
        let reason = status.reason.as_str();
        info!(provider = %status.provider, state = %status.state, reason, targets = status.targets.len(), "provider changed");
        Some(status)
    }

    /// Builds the next snapshot from what is configured and found, starts it and swaps it in.
    async fn swap(
        &self,
        setup: &mut Setup,
        revision: ConfigRevision,
        before: &BTreeMap<ProviderKey, v1::ProviderConfig>,
    ) -> Draining {
        let mut listed = Vec::new();
        let mut draft = setup.bootstrap.draft(revision);
        for (key, entry) in &setup.configured {
            let is_same = before.get(key).is_some_and(|old| is_unchanged(old, entry));
            if self.seat_configured(&mut draft, key, entry, is_same) {
                listed.push(key.clone());
            }
        }
        for found in &setup.found {
            let key = &found.place.provider;
            // A configured provider keeps its name; what was found under the same one is the same.
            if setup.configured.contains_key(key) {
                continue;
            }
            self.seat_found(&mut draft, found);
            listed.push(key.clone());
        }
        let entries = setup.configured.iter();
        self.permissions.replace(entries.map(|(key, entry)| (key.clone(), entry.manage_models)));
        let started = draft.start().await;
        for failure in started.failures() {
            warn!(provider = %failure.provider, reason = %failure.error, "provider cannot start");
        }
        self.board().retain(|key| listed.contains(key));
        started.swap()
    }

    /// Seats one configured provider; says whether it is listed at all.
    fn seat_configured(
        &self,
        draft: &mut Draft<'_>,
        key: &ProviderKey,
        entry: &v1::ProviderConfig,
        is_same: bool,
    ) -> bool {
        let Some(adapter) = AdapterType::parse(&entry.adapter) else {
            warn!(provider = %key, adapter = entry.adapter, "this version has no such adapter");
            return false;
        };
        let revision = ProviderRevision(entry.revision);
        let mut listing = listing(adapter, revision, entry);
        if is_same
            && let Ok(bound) = self.registry.find(key)
            && draft.keep(key, revision, listing.capacity) == Ok(true)
        {
            draft.limit_first_response(key, first_response_timeout(entry));
            listing.capabilities = bound.capabilities().clone();
            self.board().list(key.clone(), listing);
            return true;
        }
        match self.build(adapter, key, entry) {
            Ok(provider) => {
                listing.capabilities = provider.capabilities().clone();
                self.board().retain(|other| other != key);
                self.board().list(key.clone(), listing.clone());
                if draft.add(key.clone(), revision, listing.capacity, provider).is_err() {
                    self.board().fail(key.clone(), listing, "its key is used twice".to_owned());
                }
                draft.limit_first_response(key, first_response_timeout(entry));
            }
            Err(reason) => {
                warn!(provider = %key, reason, "provider cannot work as configured");
                self.board().fail(key.clone(), listing, reason);
            }
        }
        true
    }

    fn seat_found(&self, draft: &mut Draft<'_>, found: &Found) {
        let key = found.place.provider.clone();
        let revision = ProviderRevision::default();
        let capacity = found.adapter.default_max_concurrency();
        if draft.keep(&key, revision, capacity) == Ok(true) {
            return;
        }
        let mut settings = ProviderSettings::new(key.clone(), found.adapter);
        settings.endpoint = Some(found.place.endpoint());
        let Ok(provider) = iop_adapters::build(&settings, &self.tools) else { return };
        let listing = Listing {
            adapter: found.adapter,
            revision,
            capabilities: provider.capabilities().clone(),
            capacity,
            serves: Serves::All,
        };
        if draft.add(key.clone(), revision, capacity, provider).is_ok() {
            self.board().list(key, listing);
        }
    }

    fn build(
        &self,
        adapter: AdapterType,
        key: &ProviderKey,
        entry: &v1::ProviderConfig,
    ) -> Result<Arc<dyn Provider>, String> {
        let mut settings = ProviderSettings::new(key.clone(), adapter);
        settings.endpoint = (!entry.endpoint.is_empty()).then(|| entry.endpoint.clone());
        settings.targets = Targets::from_list(entry.targets.iter().map(String::as_str));
        settings.headers = bridge::headers(&entry.headers);
        settings.forced = bridge::forced(entry);
        settings.is_hosted = bridge::is_hosted(entry);
        settings.script = (!entry.script.is_empty()).then(|| entry.script.clone());
        if !entry.node_secret.is_empty() {
            let name = &entry.node_secret;
            let value = self.secrets.find(name)?;
            let secret = Secret::new(value).map_err(|error| format!("secret `{name}`: {error}"))?;
            settings.secret = Some(secret);
        }
        iop_adapters::build(&settings, &self.tools).map_err(|error| error.to_string())
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().expect("no code panics while it holds the board")
    }
}

/// The server works at nothing: whatever was not seen to return before it was asked has returned.
pub(crate) fn settle_zombies(bound: &Bound, asked: std::time::Instant) {
    let settled = bound.gate().settle_zombies(asked);
    if settled > 0 {
        info!(provider = %bound.key(), settled, "the server is idle: zombies are free");
    }
}

fn calls(bound: &Bound) -> Calls {
    Calls { in_use: bound.gate().in_use(), zombies: bound.gate().zombies() }
}

fn first_response_timeout(entry: &v1::ProviderConfig) -> Option<Duration> {
    match entry.first_response_timeout_ms {
        0 => None,
        ms => Some(Duration::from_millis(ms)),
    }
}

/// Says whether an entry means the same as before; its number alone may have grown.
fn is_unchanged(old: &v1::ProviderConfig, new: &v1::ProviderConfig) -> bool {
    v1::ProviderConfig { revision: new.revision, ..old.clone() } == *new
}

fn listing(
    adapter: AdapterType,
    revision: ProviderRevision,
    entry: &v1::ProviderConfig,
) -> Listing {
    let names = entry.targets.iter().map(String::as_str);
    Listing {
        adapter,
        revision,
        capabilities: Capabilities::default(),
        capacity: match entry.max_concurrency {
            0 => adapter.default_max_concurrency(),
            configured => configured,
        },
        serves: match Targets::from_list(names) {
            Targets::All => Serves::All,
            Targets::Only(targets) => Serves::Only(targets),
        },
    }
}
