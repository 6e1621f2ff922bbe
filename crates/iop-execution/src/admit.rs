//! The order in which a Node checks a request, in one place.
//!
//! stall field → duplicate → snapshot → registry → *lease claims* → gate → *lease opening* → adapter
//!
//! The steps are types: [`Asked`] is admitted, [`Admitted`] passes the gate, [`Passed`] may call the
//! adapter. Credential leases, once there are any, are compared with an [`Admitted`] and opened with
//! a [`Passed`]. A refusal at any step gives back all that the steps before it took.

use iop_types::{
    Generation, ProviderKey, ProviderRevision, Refusal, RunKind, StallTimeout, WorkKey,
};

use crate::cancel::Cancelled;
use crate::gate::Permit;
use crate::registry::{Bound, Registry};
use crate::work::{Entry, Work};

/// What a request asks of this Node.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The wire's `response_stall_timeout_ms` as it came.
    pub stall_timeout_ms: i64,
    /// The run and the dispatch of it.
    pub work: WorkKey,
    /// The link that brought it.
    pub generation: Generation,
    /// Instance key, or type name, of the provider.
    pub provider: &'a ProviderKey,
    /// Revision of the provider's entry that the Edge decided on.
    pub revision: ProviderRevision,
    /// What the provider's adapter must be able to do.
    pub need: Need<'a>,
}

/// What a request needs its adapter to be capable of.
#[derive(Debug, Clone, Copy)]
pub enum Need<'a> {
    /// A normalized run of a kind.
    Run(RunKind),
    /// A tunnel to an operation.
    Tunnel {
        /// Method in capitals.
        method: &'a str,
        /// Path, with or without a query.
        path_and_query: &'a str,
    },
}

/// Where the checks look.
#[derive(Clone)]
pub struct Checks {
    /// What the Node is working on.
    pub work: Work,
    /// Whom the Node serves.
    pub registry: Registry,
}

impl Checks {
    /// Checks a request up to the gate.
    ///
    /// # Errors
    /// Returns the first refusal; no permit was asked for and nothing is held.
    pub fn admit(&self, asked: &Asked<'_>) -> Result<Admitted, Refusal> {
        let stall_timeout = StallTimeout::from_wire(asked.stall_timeout_ms)?;
        let (entry, cancelled) = self.work.enter(asked.work, asked.generation)?;
        let provider = self.registry.bind(asked.provider, asked.revision)?;
        asked.need.check(&provider)?;
        Ok(Admitted { stall_timeout, entry, cancelled, provider })
    }
}

impl Need<'_> {
    fn check(self, provider: &Bound) -> Result<(), Refusal> {
        match self {
            Self::Run(kind) if provider.capabilities().runs.contains(&kind) => Ok(()),
            Self::Run(kind) => Err(unsupported(format!("{kind:?} runs").to_lowercase())),
            Self::Tunnel { .. } if provider.tunnel().is_none() => {
                Err(unsupported("tunnels".to_owned()))
            }
            Self::Tunnel { method, path_and_query } => {
                let path = path_and_query.split_once('?').map_or(path_and_query, |(path, _)| path);
                if provider.capabilities().allows(method, path) {
                    Ok(())
                } else {
                    Err(unsupported(format!("{method} {path}")))
                }
            }
        }
    }
}

fn unsupported(what: String) -> Refusal {
    Refusal::Unsupported { what }
}

/// A request that is known, new and has its provider; it holds no permit yet.
pub struct Admitted {
    /// Allowed silence of the provider.
    pub stall_timeout: StallTimeout,
    /// The request's place in the table of work.
    pub entry: Entry,
    /// Tells the call to wind up.
    pub cancelled: Cancelled,
    /// Who executes it.
    pub provider: Bound,
}

impl Admitted {
    /// Takes one of the provider's permits.
    ///
    /// # Errors
    /// The provider is full; nothing is held any more.
    pub fn pass_gate(self) -> Result<Passed, Refusal> {
        let permit = self.provider.gate().try_acquire()?;
        let Self { stall_timeout, entry, cancelled, provider } = self;
        Ok(Passed { stall_timeout, permit, entry, cancelled, provider })
    }
}

/// A request that may call its provider now. Drop or consume the parts only once the call returned.
pub struct Passed {
    /// Allowed silence of the provider.
    pub stall_timeout: StallTimeout,
    /// The provider's capacity for this call.
    pub permit: Permit,
    /// The request's place in the table of work.
    pub entry: Entry,
    /// Tells the call to wind up.
    pub cancelled: Cancelled,
    /// Who executes it.
    pub provider: Bound,
}
