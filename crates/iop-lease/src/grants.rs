//! What a Node keeps for one link, and the checks before a secret opens.
//!
//! ```text
//!            handle_grant                    check                    open
//!  grant ───────────────────► known     lease ─────► Checked ──(gate)─────► OpenSecret
//!                               │                       │
//!            revoked or expired │                dropped: nothing is consumed
//!                               ▼
//!                    known without its key, until no lease of it can be in date
//! ```
//!
//! A lease is checked twice: before the gate, so that a request that may not have its credential never
//! takes a permit; and when it opens, right before the provider is called, because time has passed and
//! a revocation may have come. Only the second check consumes the lease. Everything that a link knew
//! ends with it: a new link has a new key and a new generation.
//!
//! All methods take `&mut self`: the host keeps one `Grants` per link in a mutex that it never holds
//! across an await. The lock is what makes exactly one of two openings win.

mod refused;
mod replay;
mod revoked;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hpke::aead::ExportOnlyAead;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::{Deserializable, Kem, OpModeR, setup_receiver};
use iop_types::{
    Generation, LeaseFault, Principal, Revocation, SealedGrant, SealedLease, Slot, Target,
    TunnelId, WorkKey,
};
use zeroize::Zeroizing;

use self::refused::Refused;
use self::replay::Replay;
use self::revoked::Revoked;
use crate::claims::{Binding, GrantClaims, LeaseClaims, Subject, grant_hash};
use crate::domain;
use crate::grant_key::{GrantKey, MAX_SEALED};
use crate::id::{GrantId, LeaseId};
use crate::link::ThisLink;
use crate::recipient::{Recipient, RecipientPublic};
use crate::seal::{hpke_info, signed_bytes};
use crate::secret::OpenSecret;
use crate::signer::TrustedSigner;
use crate::time::{EdgeTime, LEASE_LIFE_MAX, millis};
use crate::transcript::Hash;

/// Grants that one link knows at once. Each is a credential of a provider; a Node has tens of these.
const MAX_GRANTS: usize = 4096;

/// How long a recipient key is used: who steals a Node's memory reads what came since its making.
const ROTATED_AFTER: Duration = Duration::from_secs(3600);

/// How long the key before is kept when no grant comes under the new one: longer than a link lives on
/// which nothing arrives.
const PREVIOUS_KEPT: Duration = Duration::from_secs(60);

/// How many leases a link remembers, for so many requests in flight at once.
///
/// Each opened lease is remembered until 5 s after its end, however short its request was. So what
/// counts is the rate: 4096 leases of 30 s would be spent by 117 requests a second. 262 144 allow
/// 7 400, in some 10 MB when they are reached.
pub const fn replay_bound(max_in_flight: usize) -> usize {
    let at_least = 262_144;
    let by_flight = max_in_flight.saturating_mul(4);
    if by_flight > at_least { by_flight } else { at_least }
}

/// The Node's side of grants and leases, for one link.
pub struct Grants {
    link: ThisLink,
    time: EdgeTime,
    signers: Vec<TrustedSigner>,
    recipient: Recipient,
    made: Instant,
    previous: Option<(Recipient, Instant)>,
    known: BTreeMap<GrantId, Known>,
    refused: Refused,
    revoked: Revoked,
    replay: Replay,
}

/// A grant that passed its checks once.
struct Known {
    claims: GrantClaims,
    hash: Hash,
    encapsulation: [u8; 32],
    /// Gone when the grant was revoked or its time is over.
    key: Option<GrantKey>,
}

/// What the Node itself knows of a request: everything that its lease must say too.
#[derive(Debug, Clone, Copy)]
pub struct ThisRequest<'a> {
    /// The run and the attempt.
    pub work: WorkKey,
    /// The tunnel; `None` for a normalized run.
    pub tunnel: Option<TunnelId>,
    /// The target that the provider will be asked for.
    pub target: &'a Target,
    /// How the provider's entry in the request's snapshot names its credential.
    pub binding: &'a Binding,
}

/// A lease that may be opened once its request has passed the gate. Dropping it consumes nothing.
#[derive(Debug)]
pub struct Checked {
    claims: LeaseClaims,
    /// The claims as they came.
    bytes: Bytes,
    sealed: Bytes,
    /// Hash of the grant's claims.
    grant: Hash,
}

/// A lease that was opened: its secret, and what it stands on.
#[derive(Debug)]
pub struct Opened {
    /// The credential.
    pub secret: OpenSecret,
    /// Says later whether a revocation hits the call that uses it.
    pub scope: OpenScope,
}

/// What an opened credential stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenScope {
    /// The lease.
    pub lease: LeaseId,
    /// Its grant.
    pub grant: GrantId,
    /// The caller.
    pub principal: Principal,
    /// Place of the credential at the Edge.
    pub slot: Slot,
    /// Name of the profile.
    pub profile: String,
    /// Which credential of the slot.
    pub credential_revision: u64,
}

impl OpenScope {
    /// Says whether a revocation names this credential, so that a call under way may be cut.
    pub fn is_hit_by(&self, revocation: &Revocation) -> bool {
        match revocation {
            Revocation::Lease(id) => self.lease.0 == *id,
            Revocation::Grant(id) => self.grant.0 == *id,
            Revocation::Slot(slot) => self.slot == *slot,
            Revocation::Profile(name) => self.profile == *name,
            Revocation::Principal(principal) => self.principal == *principal,
            Revocation::Below { slot, revision } => {
                self.slot == *slot && self.credential_revision < *revision
            }
        }
    }
}

impl Grants {
    /// Begins for a link that was just registered, with a random seed for its recipient key.
    ///
    /// `replay_bound` is how many opened leases are remembered; see [`replay_bound`].
    pub fn new(
        link: ThisLink,
        signers: Vec<TrustedSigner>,
        time: EdgeTime,
        seed: &Zeroizing<[u8; 32]>,
        replay_bound: usize,
        now: Instant,
    ) -> Self {
        Self {
            link,
            time,
            signers,
            recipient: Recipient::from_seed(seed),
            made: now,
            previous: None,
            known: BTreeMap::new(),
            refused: Refused::default(),
            revoked: Revoked::default(),
            replay: Replay::new(replay_bound),
        }
    }

    /// Returns the link that this is for.
    pub const fn link(&self) -> &ThisLink {
        &self.link
    }

    /// Returns the public key that the Edge is to be told, with a proof.
    pub const fn recipient(&self) -> RecipientPublic {
        self.recipient.public()
    }

    /// Takes in the Edge's time from a heartbeat that was read at `now`.
    ///
    /// Call it with every heartbeat: it is also when keys that are over are wiped.
    pub fn handle_edge_time(&mut self, edge_ms: i64, now: Instant) {
        self.time.observe(edge_ms, now);
        self.forget(now);
    }

    /// Makes the next recipient key from a random seed once the present one is an hour old.
    ///
    /// Returns what the Edge is to be told, or `None` when it is too early. Grants that were sealed to
    /// the key before are still accepted until one under the new key has come.
    pub fn rotate(&mut self, seed: &Zeroizing<[u8; 32]>, now: Instant) -> Option<RecipientPublic> {
        if now.saturating_duration_since(self.made) < ROTATED_AFTER {
            return None;
        }
        let previous = std::mem::replace(&mut self.recipient, Recipient::from_seed(seed));
        self.previous = Some((previous, now + PREVIOUS_KEPT));
        self.made = now;
        Some(self.recipient.public())
    }

    /// Receives a grant.
    ///
    /// # Errors
    /// Says what is wrong with it. The fault is also the one of the requests that stand on it, so a
    /// host need only log it, as an alert where [`LeaseFault::is_alert`] says so.
    pub fn handle_grant(
        &mut self,
        grant: &SealedGrant,
        now: Instant,
    ) -> Result<GrantId, LeaseFault> {
        self.forget(now);
        let claims = GrantClaims::decode(&grant.claims)?;
        let id = claims.id;
        self.accept(claims, grant, now)
            .inspect_err(|fault| self.refused.remember(id, *fault))
            .map(|()| id)
    }

    fn accept(
        &mut self,
        claims: GrantClaims,
        grant: &SealedGrant,
        now: Instant,
    ) -> Result<(), LeaseFault> {
        let now_ms = self.time.now_ms(now);
        let encapsulation: [u8; 32] =
            grant.encapsulation[..].try_into().map_err(|_| LeaseFault::Malformed)?;
        let signature: [u8; 64] =
            grant.signature[..].try_into().map_err(|_| LeaseFault::Malformed)?;

        let signer = self
            .signers
            .iter()
            .find(|signer| signer.kid() == claims.signer && signer.is_in_date(now_ms))
            .filter(|_| claims.edge == self.link.edge)
            .ok_or(LeaseFault::UntrustedSigner)?;
        let hash = grant_hash(&grant.claims);
        if !signer.is_signed(&signed_bytes(&hash, &encapsulation), &signature) {
            return Err(LeaseFault::BadSignature);
        }
        let recipient = self
            .recipient_of(&claims)
            .filter(|_| claims.node == self.link.node)
            .ok_or(LeaseFault::WrongRecipient)?;
        if (claims.boot, claims.generation) != (self.link.boot, self.link.generation) {
            return Err(LeaseFault::Stale);
        }
        claims.validity.check(now_ms)?;
        if let Some(known) = self.known.get(&claims.id) {
            return if (known.hash, known.encapsulation) != (hash, encapsulation) {
                Err(LeaseFault::GrantConflict)
            } else if known.key.is_none() {
                Err(LeaseFault::Revoked)
            } else {
                Ok(())
            };
        }
        if self.known.len() >= MAX_GRANTS {
            return Err(LeaseFault::ReplayCacheFull);
        }
        let key = if self.revoked.hits_grant(&claims) {
            None
        } else {
            Some(self.key(recipient, &encapsulation, hash)?)
        };
        if claims.recipient == self.recipient.public().kid() {
            self.previous = None;
        }
        let is_revoked = key.is_none();
        self.refused.forget(claims.id);
        self.known.insert(claims.id, Known { claims, hash, encapsulation, key });
        if is_revoked { Err(LeaseFault::Revoked) } else { Ok(()) }
    }

    /// Takes in what is void from now on, whether or not it has arrived yet.
    ///
    /// Leases that were checked and not yet opened are hit too. For calls that already have their
    /// secret see [`OpenScope::is_hit_by`].
    pub fn handle_revocation(&mut self, revocation: Revocation, now: Instant) {
        self.revoked.insert(revocation, self.time.now_ms(now));
        for known in self.known.values_mut() {
            if self.revoked.hits_grant(&known.claims) {
                known.key = None;
            }
        }
    }

    /// Checks a lease against its request, before the gate. Consumes nothing.
    ///
    /// # Errors
    /// Says why this request may not have this credential.
    pub fn check(
        &mut self,
        lease: &SealedLease,
        request: &ThisRequest<'_>,
        now: Instant,
    ) -> Result<Checked, LeaseFault> {
        if lease.sealed.len() > MAX_SEALED {
            return Err(LeaseFault::Unsupported);
        }
        let claims = LeaseClaims::decode(&lease.claims)?;
        let known = self.known(claims.grant)?;
        if !is_for(&claims, lease, request)
            || known.claims.scope.binding != *request.binding
            || claims.validity.expires_ms > known.claims.validity.expires_ms
        {
            return Err(LeaseFault::Mismatch);
        }
        self.check_now(known, &claims, now)?;
        Ok(Checked {
            grant: known.hash,
            claims,
            bytes: lease.claims.clone(),
            sealed: lease.sealed.clone(),
        })
    }

    /// Opens a lease, after the gate and right before the provider is called. It opens once.
    ///
    /// `generation` is the link's as the host knows it now.
    ///
    /// # Errors
    /// Says why the credential may not be had any more, or never could.
    pub fn open(
        &mut self,
        checked: Checked,
        now: Instant,
        generation: Generation,
    ) -> Result<Opened, LeaseFault> {
        let Checked { claims, bytes, sealed, grant } = checked;
        if generation != self.link.generation {
            return Err(LeaseFault::Stale);
        }
        let known = self.known(claims.grant)?;
        if known.hash != grant {
            return Err(LeaseFault::UnknownGrant);
        }
        self.check_now(known, &claims, now)?;
        let now_ms = self.time.now_ms(now);
        self.replay.insert(claims.id, claims.validity.expires_ms, now_ms)?;

        let known = self.known(claims.grant)?;
        let key = known.key.as_ref().ok_or(LeaseFault::Revoked)?;
        let GrantClaims { scope, .. } = &known.claims;
        let profile = &scope.binding.profile;
        let secret = key.open(&bytes, &sealed, |secret| OpenSecret::new(profile, secret))?;
        let scope = OpenScope {
            lease: claims.id,
            grant: claims.grant,
            principal: claims.subject.principal,
            slot: scope.binding.slot.clone(),
            profile: profile.name.clone(),
            credential_revision: scope.credential_revision,
        };
        Ok(Opened { secret, scope })
    }

    fn known(&self, id: GrantId) -> Result<&Known, LeaseFault> {
        self.known
            .get(&id)
            .ok_or_else(|| self.refused.fault(id).unwrap_or(LeaseFault::UnknownGrant))
    }

    /// What may change between the two checks: time and revocations.
    fn check_now(
        &self,
        known: &Known,
        claims: &LeaseClaims,
        now: Instant,
    ) -> Result<(), LeaseFault> {
        let now_ms = self.time.now_ms(now);
        known.claims.validity.check(now_ms)?;
        claims.validity.check(now_ms)?;
        if known.key.is_none() || self.revoked.hits_lease(claims) {
            return Err(LeaseFault::Revoked);
        }
        Ok(())
    }

    fn recipient_of(&self, claims: &GrantClaims) -> Option<&Recipient> {
        let previous = self.previous.as_ref().map(|(recipient, _)| recipient);
        [Some(&self.recipient), previous]
            .into_iter()
            .flatten()
            .find(|recipient| recipient.public().kid() == claims.recipient)
    }

    fn key(
        &self,
        recipient: &Recipient,
        encapsulation: &[u8; 32],
        hash: Hash,
    ) -> Result<GrantKey, LeaseFault> {
        let encapsulation = <X25519HkdfSha256 as Kem>::EncappedKey::from_bytes(encapsulation)
            .map_err(|_| LeaseFault::Malformed)?;
        let info = hpke_info(&self.link.trust_domain, &recipient.public(), &hash);
        let context = setup_receiver::<ExportOnlyAead, HkdfSha256, X25519HkdfSha256>(
            &OpModeR::Base,
            recipient.secret(),
            &encapsulation,
            &info,
        )
        .map_err(|_| LeaseFault::Malformed)?;
        let mut key = Zeroizing::new([0; 32]);
        context.export(domain::GRANT_KEY, &mut *key).map_err(|_| LeaseFault::Malformed)?;
        Ok(GrantKey::new(&key, hash))
    }

    /// Wipes keys that are over, and forgets grants of which no lease can be in date.
    fn forget(&mut self, now: Instant) {
        let now_ms = self.time.now_ms(now);
        self.previous.take_if(|(_, until)| *until <= now);
        self.revoked.forget(now_ms);
        self.known.retain(|_, known| {
            let expires_ms = known.claims.validity.expires_ms;
            if expires_ms <= now_ms {
                known.key = None;
            }
            expires_ms.saturating_add(millis(LEASE_LIFE_MAX)) > now_ms
        });
    }
}

/// Says whether a lease speaks of this request. Taken apart, so that no claim is forgotten.
fn is_for(claims: &LeaseClaims, lease: &SealedLease, request: &ThisRequest<'_>) -> bool {
    let Subject { principal, route, target, work, tunnel } = &claims.subject;
    let ThisRequest { work: asked, tunnel: through, target: wanted, binding: _ } = request;
    *principal == lease.principal
        && *route == lease.route
        && target == *wanted
        && work == asked
        && tunnel == through
}
