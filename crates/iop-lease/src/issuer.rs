//! What an Edge keeps for one link: the grants that are still good, so that most requests only need a
//! lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use iop_types::{Revocation, SealedGrant, SealedLease};

use crate::claims::{GrantClaims, GrantScope, LeaseClaims, Subject};
use crate::grant_key::GrantKey;
use crate::id::{GrantId, LeaseId};
use crate::link::ThisLink;
use crate::recipient::RecipientPublic;
use crate::seal::{Random, SealError, grant, lease};
use crate::secret::check_secret;
use crate::signer::Signer;
use crate::time::{GRANT_LIFE, LEASE_LIFE_MAX, Validity, millis};

/// A grant with less than this left is not used any more, nor is one that would end before its lease.
const RENEWED_BEFORE: Duration = Duration::from_secs(60);

/// Issues grants and leases for one link.
///
/// One request's [`Issued`] must be on its way before the next is made: the grant of the first is what
/// the leases after it stand on. So lock the issuer, issue, queue grant and head, unlock.
pub struct Issuer {
    link: ThisLink,
    signer: Arc<Signer>,
    recipient: RecipientPublic,
    held: BTreeMap<GrantScope, Held>,
}

/// A grant that the Node has, or will have before any lease that stands on it.
struct Held {
    id: GrantId,
    key: GrantKey,
    expires_ms: i64,
}

/// What one attempt is sent with.
#[derive(Debug)]
pub struct Issued {
    /// Goes first, where there is one.
    pub grant: Option<SealedGrant>,
    /// Goes into the request's head.
    pub lease: SealedLease,
    /// Names the lease for the audit log.
    pub lease_id: LeaseId,
    /// Names its grant.
    pub grant_id: GrantId,
}

impl Issuer {
    /// Begins for a link whose Node has proven its recipient key.
    pub const fn new(link: ThisLink, signer: Arc<Signer>, recipient: RecipientPublic) -> Self {
        Self { link, signer, recipient, held: BTreeMap::new() }
    }

    /// Issues a lease for one attempt, and a grant where none is good for long enough.
    ///
    /// The lease lives for `life`, at most [`LEASE_LIFE_MAX`]: as long as the head may wait on its way
    /// to the Node. `now_ms` is the Edge's time.
    ///
    /// # Errors
    /// Fails when nothing can be sealed to the Node's key, or the secret is none for a header.
    pub fn issue(
        &mut self,
        scope: &GrantScope,
        subject: Subject,
        secret: &[u8],
        life: Duration,
        now_ms: i64,
        random: Random<'_>,
    ) -> Result<Issued, SealError> {
        check_secret(secret)?;
        let life = life.min(LEASE_LIFE_MAX);
        let needed_ms = now_ms.saturating_add(millis(life.max(RENEWED_BEFORE)));
        let made = match self.held.get(scope) {
            Some(held) if held.expires_ms >= needed_ms => None,
            Some(_) | None => Some(self.make_grant(scope, now_ms, random)?),
        };
        let held = self.held.get(scope).expect("there before, or made just now");
        let claims = LeaseClaims {
            id: LeaseId(sixteen(random)),
            grant: held.id,
            subject,
            validity: Validity::from_now(now_ms, life),
        };
        let lease = lease(&claims, secret, &held.key)?;
        Ok(Issued { grant: made, lease, lease_id: claims.id, grant_id: held.id })
    }

    /// Takes the Node's next recipient key: what was sealed to the one before is not used any more.
    pub fn handle_recipient_key(&mut self, recipient: RecipientPublic) {
        self.recipient = recipient;
        self.held.clear();
    }

    /// Forgets the grants that a revocation hits. The Node is to be sent the revocation as well.
    pub fn handle_revocation(&mut self, revocation: &Revocation) {
        self.held.retain(|scope, held| {
            let binding = &scope.binding;
            !match revocation {
                Revocation::Grant(id) => held.id.0 == *id,
                Revocation::Slot(slot) => binding.slot == *slot,
                Revocation::Profile(name) => binding.profile.name == *name,
                Revocation::Below { slot, revision } => {
                    binding.slot == *slot && scope.credential_revision < *revision
                }
                Revocation::Lease(_) | Revocation::Principal(_) => false,
            }
        });
    }

    /// Forgets the grant of a scope, after the Node refused a lease of it: the next request brings a
    /// grant of its own.
    pub fn forget(&mut self, scope: &GrantScope) {
        self.held.remove(scope);
    }

    fn make_grant(
        &mut self,
        scope: &GrantScope,
        now_ms: i64,
        random: Random<'_>,
    ) -> Result<SealedGrant, SealError> {
        self.held.retain(|_, held| held.expires_ms > now_ms);
        let ThisLink { trust_domain, edge, boot, node, generation } = &self.link;
        let claims = GrantClaims {
            id: GrantId(sixteen(random)),
            edge: edge.clone(),
            boot: *boot,
            node: node.clone(),
            generation: *generation,
            recipient: self.recipient.kid(),
            signer: self.signer.kid(),
            scope: scope.clone(),
            validity: Validity::from_now(now_ms, GRANT_LIFE),
        };
        let (sealed, key) = grant(&claims, trust_domain, &self.recipient, &self.signer, random)?;
        let held = Held { id: claims.id, key, expires_ms: claims.validity.expires_ms };
        self.held.insert(scope.clone(), held);
        Ok(sealed)
    }
}

fn sixteen(random: Random<'_>) -> [u8; 16] {
    let mut bytes = [0; 16];
    random(&mut bytes);
    bytes
}
