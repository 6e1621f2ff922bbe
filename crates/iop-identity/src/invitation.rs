//! Whether an attempt to join succeeds.
//!
//! ```text
//!  presented ── recognise ──▶ Burn ── burn in the store, then settle ──▶ Joining
//!       └──────────────┴──────────────── JoinRefusal ─────┘
//! ```
//!
//! The invitation is burnt before anything else is judged, and by one atomic step of the store, so
//! that of two who use it at once one comes through, and whoever found a token cannot try it twice.
//! A wrong secret burns nothing. Whoever is refused learns [`OUTSIDE`] and no more; the reason is for
//! the audit log.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use iop_types::NodeId;
use ipnet::IpNet;

use crate::key::PublicKey;
use crate::request::{RequestError, SigningRequest};
use crate::token::{InvitationId, JoinSecret, SecretHash};

/// What a refused peer is told, whatever the reason.
pub const OUTSIDE: &str = "the edge does not accept this join token: it may be used, expired or wrong; \
     ask for a new one (`iop nodes invite`)";

/// How long an invitation stands unless asked otherwise: 1 hour.
pub const INVITATION_LIFE: Duration = Duration::from_secs(3600);

/// An invitation as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invitation {
    /// Its public name.
    pub id: InvitationId,
    /// What its secret hashes to.
    pub secret: SecretHash,
    /// Who joins by it; not the newcomer's choice.
    pub node: NodeId,
    /// Until when it stands.
    pub expires: SystemTime,
    /// From where it may be used, from everywhere if absent.
    pub from: Option<IpNet>,
}

impl Invitation {
    /// Compares the secret of an attempt, in constant time, with the invitation that its id found.
    ///
    /// # Errors
    /// There is no such invitation, or the secret is another.
    pub fn recognise(found: Option<Self>, presented: &JoinSecret) -> Result<Burn, JoinRefusal> {
        let hash = presented.hash();
        let invitation = found.ok_or(JoinRefusal::Unknown)?;
        if invitation.secret == hash { Ok(Burn(invitation)) } else { Err(JoinRefusal::WrongSecret) }
    }
}

/// An invitation whose secret was right: to be removed from the store before it is [settled](Self::settle).
#[derive(Debug)]
#[must_use = "burn the invitation in the store, then settle"]
pub struct Burn(Invitation);

impl Burn {
    /// Returns what is to be removed, in one step that says whether it was still there.
    pub fn id(&self) -> InvitationId {
        self.0.id
    }

    /// Judges the attempt after the store has said whether this attempt `burnt` the invitation.
    ///
    /// # Errors
    /// Somebody else burnt it before, or it may not be used so; it is gone either way.
    pub fn settle(self, burnt: bool, attempt: &Attempt<'_>) -> Result<Joining, JoinRefusal> {
        if !burnt {
            return Err(JoinRefusal::Used);
        }
        let Self(invitation) = self;
        if attempt.now >= invitation.expires {
            return Err(JoinRefusal::Expired(invitation.node));
        }
        let address = attempt.address.to_canonical();
        if invitation.from.is_some_and(|from| !from.contains(&address)) {
            return Err(JoinRefusal::Address(invitation.node));
        }
        let request = SigningRequest::read(attempt.request);
        let key =
            request.map_err(|error| JoinRefusal::Request(invitation.node.clone(), error))?.key();
        Ok(Joining { node: invitation.node, key })
    }
}

/// What is known of an attempt besides its token.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The newcomer's signing request, as it came.
    pub request: &'a [u8],
    /// Where it comes from.
    pub address: IpAddr,
    /// When.
    pub now: SystemTime,
}

/// Somebody who may join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joining {
    /// As whom.
    pub node: NodeId,
    /// With which key; the newcomer was seen to hold it.
    pub key: PublicKey,
}

impl Joining {
    /// Refuses a key that another identity of the group has.
    ///
    /// # Errors
    /// `known` is another Node.
    pub fn with_own_key(self, known: Option<&NodeId>) -> Result<Self, JoinRefusal> {
        match known {
            Some(other) if *other != self.node => {
                Err(JoinRefusal::KeyInUse { node: self.node, other: other.clone() })
            }
            Some(_) | None => Ok(self),
        }
    }
}

/// Why an attempt to join was refused: for the audit log only.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefusal {
    /// What was presented has no form.
    #[error("what was presented is no join token")]
    Malformed,
    /// This address has tried too often.
    #[error("this address has tried too often")]
    TooOften,
    /// No such invitation.
    #[error("no invitation has this id: it was used, withdrawn or never given")]
    Unknown,
    /// Another secret.
    #[error("the secret is not that of the invitation")]
    WrongSecret,
    /// Burnt by another attempt at the same time.
    #[error("the invitation was used a moment before")]
    Used,
    /// Too late.
    #[error("the invitation of node `{0}` had expired")]
    Expired(NodeId),
    /// From elsewhere.
    #[error("the invitation of node `{0}` does not count from this address")]
    Address(NodeId),
    /// Nothing to certify.
    #[error("the invitation of node `{0}` was used with a bad request")]
    Request(NodeId, #[source] RequestError),
    /// The key is another Node's.
    #[error("node `{node}` presented the key of node `{other}`")]
    KeyInUse {
        /// Who was invited.
        node: NodeId,
        /// Whose key it is.
        other: NodeId,
    },
}

impl JoinRefusal {
    /// Returns the stable word for the audit log.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Malformed => "token_malformed",
            Self::TooOften => "too_many_attempts",
            Self::Unknown => "token_unknown",
            Self::WrongSecret => "token_wrong_secret",
            Self::Used => "token_used",
            Self::Expired(_) => "token_expired",
            Self::Address(_) => "token_address",
            Self::Request(..) => "bad_request",
            Self::KeyInUse { .. } => "key_in_use",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::IdentityKey;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn secret() -> JoinSecret {
        JoinSecret::new([8; 32])
    }

    fn invitation() -> Invitation {
        Invitation {
            id: InvitationId([1; 16]),
            secret: secret().hash(),
            node: NodeId::from("lab"),
            expires: now() + INVITATION_LIFE,
            from: Some("10.0.0.0/8".parse().unwrap()),
        }
    }

    fn settle(burnt: bool, change: impl FnOnce(&mut Attempt<'_>)) -> Result<Joining, JoinRefusal> {
        let request = SigningRequest::write(&IdentityKey::from_seed(&[5; 32]));
        let mut attempt =
            Attempt { request: &request, address: "10.1.2.3".parse().unwrap(), now: now() };
        change(&mut attempt);
        Invitation::recognise(Some(invitation()), &secret()).unwrap().settle(burnt, &attempt)
    }

    #[test]
    fn whoever_burns_an_invitation_joins_as_the_node_that_was_invited() {
        let joining = settle(true, |_| {}).unwrap();
        assert_eq!(joining.node, NodeId::from("lab"));
        assert_eq!(joining.key, IdentityKey::from_seed(&[5; 32]).public());
        let mapped = settle(true, |attempt| attempt.address = "::ffff:10.1.2.3".parse().unwrap());
        assert!(mapped.is_ok());
    }

    #[test]
    fn a_wrong_secret_burns_nothing() {
        let other = JoinSecret::new([9; 32]);
        let refused = Invitation::recognise(Some(invitation()), &other).unwrap_err();
        assert_eq!(refused, JoinRefusal::WrongSecret);
        assert_eq!(Invitation::recognise(None, &other).unwrap_err(), JoinRefusal::Unknown);
    }

    #[test]
    fn every_reason_to_refuse_has_its_own_word() {
        let node = || NodeId::from("lab");
        let late = settle(true, |attempt| attempt.now = now() + INVITATION_LIFE);
        assert_eq!(late, Err(JoinRefusal::Expired(node())));
        let far = settle(true, |attempt| attempt.address = "11.0.0.1".parse().unwrap());
        assert_eq!(far, Err(JoinRefusal::Address(node())));
        let bad = settle(true, |attempt| attempt.request = b"x");
        assert_eq!(bad, Err(JoinRefusal::Request(node(), RequestError::Malformed)));
    }

    #[test]
    fn whoever_comes_second_learns_nothing_of_what_else_was_wrong() {
        let second = settle(false, |attempt| attempt.request = b"x");
        assert_eq!(second, Err(JoinRefusal::Used));
    }

    #[test]
    fn the_key_of_another_node_is_refused_and_ones_own_is_not() {
        let joining = || settle(true, |_| {}).unwrap();
        assert!(joining().with_own_key(None).is_ok());
        assert!(joining().with_own_key(Some(&NodeId::from("lab"))).is_ok());
        let refused = joining().with_own_key(Some(&NodeId::from("den"))).unwrap_err();
        assert_eq!(refused.as_str(), "key_in_use");
    }
}
