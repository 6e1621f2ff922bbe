//! An independent look at one target of a provider, and what it proves.
//!
//! A probe asks the server over connections of its own, outside the gate, and costs it little: its
//! own word on its health, its list, at most one generated token. What an answer means is the
//! dialect's ([`Probe`]); what the look as a whole means is decided here, beside what is known of the
//! provider's other calls.

use std::time::Duration;

use iop_types::{HealthEvidence, Target};

use crate::neighbours::Company;
use crate::provider::BoxFuture;

/// What an adapter offers to look at a target's health.
pub trait Probe: Send + Sync {
    /// Looks once and says, within the look's time, what was seen by then. Never uses a pooled
    /// connection, a leased credential or one of a client.
    fn probe(&self, look: Look) -> BoxFuture<'_, ProbeOutcome>;

    /// Says whether a look may ever be [`ProbeOutcome::Served`]. Never where others pay for a token,
    /// or where none is needed.
    fn may_serve(&self) -> bool {
        false
    }
}

/// What is looked at, and how hard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The exact target.
    pub target: Target,
    /// Whether a token may be generated. A server that is hosted by others is not asked for one in any
    /// case.
    pub may_generate: bool,
    /// When the look has to be over. A server that has said nothing at all by then is silent.
    pub within: Duration,
}

/// What a look saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The target generated a token: the server took in a request that was just made.
    Served,
    /// The engine is well and has the target, by its own word.
    Available,
    /// The server cannot be connected to, breaks off, says that it is not well, or lists other targets.
    Unavailable,
    /// Nothing at all was answered in time.
    Silent,
    /// Something was answered, and nothing can be concluded.
    Unknown,
}

impl ProbeOutcome {
    /// Concludes from the look and from how the provider's other calls get on.
    ///
    /// Progress of another call is a sign of life that outweighs silence, since a busy server may be
    /// slow to answer; it does not outweigh what the server says of itself.
    pub const fn evidence(self, company: Company) -> HealthEvidence {
        match (self, company) {
            (Self::Served | Self::Available, _)
            | (Self::Silent | Self::Unknown, Company::Progressing) => HealthEvidence::Available,
            (Self::Unavailable, _) | (Self::Silent, Company::Alone | Company::Quiet) => {
                HealthEvidence::Unavailable
            }
            (Self::Unknown, Company::Alone | Company::Quiet) => HealthEvidence::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbours_progress_outweighs_silence_and_not_the_servers_own_word() {
        let concluded = |outcome: ProbeOutcome| {
            [Company::Alone, Company::Quiet, Company::Progressing]
                .map(|company| outcome.evidence(company))
        };
        use HealthEvidence::{Available, Unavailable, Unknown};
        assert_eq!(concluded(ProbeOutcome::Served), [Available; 3]);
        assert_eq!(concluded(ProbeOutcome::Available), [Available; 3]);
        assert_eq!(concluded(ProbeOutcome::Unavailable), [Unavailable; 3]);
        assert_eq!(concluded(ProbeOutcome::Silent), [Unavailable, Unavailable, Available]);
        assert_eq!(concluded(ProbeOutcome::Unknown), [Unknown, Unknown, Available]);
    }
}
