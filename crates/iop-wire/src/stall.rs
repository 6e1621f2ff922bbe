//! Stalls and health observations on the wire.

use std::time::Duration;

use iop_types::{HealthEvidence, HealthObservation, Ownership, Stall, StallPhase};

use crate::v1;

impl From<Stall> for v1::Stall {
    fn from(stall: Stall) -> Self {
        Self {
            timeout_ms: millis(stall.timeout),
            silent_ms: millis(stall.silent),
            phase: v1::StallPhase::from(stall.phase).into(),
            health: v1::HealthEvidence::from(stall.health).into(),
            health_observation_seq: stall.observation_seq,
            retryable: stall.is_retryable().then_some(true),
        }
    }
}

/// Reads a stall; `None` where the Node says of its phase what this version does not know. The
/// failure that carries it is a stall all the same.
pub(crate) fn read(stall: &v1::Stall) -> Option<Stall> {
    let phase = match stall.phase() {
        v1::StallPhase::Unspecified => return None,
        v1::StallPhase::Sending => StallPhase::Sending,
        v1::StallPhase::BeforeHead => StallPhase::BeforeHead,
        v1::StallPhase::MidStream => StallPhase::MidStream,
    };
    Some(Stall {
        timeout: Duration::from_millis(stall.timeout_ms),
        silent: Duration::from_millis(stall.silent_ms),
        phase,
        ownership: match stall.retryable {
            Some(true) => Ownership::Confirmed,
            Some(false) | None => Ownership::Unconfirmed,
        },
        health: stall.health().into(),
        observation_seq: stall.health_observation_seq,
    })
}

impl From<StallPhase> for v1::StallPhase {
    fn from(phase: StallPhase) -> Self {
        match phase {
            StallPhase::Sending => Self::Sending,
            StallPhase::BeforeHead => Self::BeforeHead,
            StallPhase::MidStream => Self::MidStream,
        }
    }
}

impl From<HealthEvidence> for v1::HealthEvidence {
    fn from(health: HealthEvidence) -> Self {
        match health {
            HealthEvidence::Available => Self::AvailableRequestStalled,
            HealthEvidence::Unavailable => Self::UnavailableProviderUnhealthy,
            HealthEvidence::Unknown => Self::UnknownHealthUnknown,
        }
    }
}

impl From<v1::HealthEvidence> for HealthEvidence {
    /// What is not known to mean something means nothing.
    fn from(health: v1::HealthEvidence) -> Self {
        match health {
            v1::HealthEvidence::AvailableRequestStalled => Self::Available,
            v1::HealthEvidence::UnavailableProviderUnhealthy => Self::Unavailable,
            v1::HealthEvidence::UnknownHealthUnknown | v1::HealthEvidence::Unspecified => {
                Self::Unknown
            }
        }
    }
}

impl From<HealthObservation> for v1::HealthObservation {
    fn from(observation: HealthObservation) -> Self {
        Self {
            adapter: observation.provider.as_str().to_owned(),
            target: observation.target.as_str().to_owned(),
            health: v1::HealthEvidence::from(observation.health).into(),
            health_observation_seq: observation.seq,
        }
    }
}

impl From<v1::HealthObservation> for HealthObservation {
    fn from(observation: v1::HealthObservation) -> Self {
        Self {
            health: observation.health().into(),
            provider: observation.adapter.as_str().into(),
            target: observation.target.as_str().into(),
            seq: observation.health_observation_seq,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall(ownership: Ownership) -> Stall {
        Stall {
            timeout: Duration::from_millis(3_000),
            silent: Duration::from_millis(3_004),
            phase: StallPhase::BeforeHead,
            ownership,
            health: HealthEvidence::Unavailable,
            observation_seq: Some(7),
        }
    }

    #[test]
    fn a_stall_survives_the_wire() {
        for ownership in [Ownership::Confirmed, Ownership::Unconfirmed] {
            let written = v1::Stall::from(stall(ownership));
            assert_eq!(read(&written), Some(stall(ownership)));
        }
    }

    #[test]
    fn the_retryable_hint_is_absent_unless_the_return_was_confirmed() {
        assert_eq!(v1::Stall::from(stall(Ownership::Unconfirmed)).retryable, None);
        assert_eq!(v1::Stall::from(stall(Ownership::Confirmed)).retryable, Some(true));
    }

    #[test]
    fn an_unknown_health_is_no_evidence_and_an_unknown_phase_no_stall() {
        let mut written = v1::Stall { health: 99, ..stall(Ownership::Confirmed).into() };
        assert_eq!(read(&written).unwrap().health, HealthEvidence::Unknown);
        written.phase = 99;
        assert_eq!(read(&written), None);
    }

    #[test]
    fn an_observation_survives_the_wire() {
        let observation = HealthObservation {
            provider: "ollama".into(),
            target: "llama3.2:3b".into(),
            health: HealthEvidence::Available,
            seq: 1,
        };
        let written = v1::HealthObservation::from(observation.clone());
        assert_eq!(HealthObservation::from(written), observation);
    }
}
