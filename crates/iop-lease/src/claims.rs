//! What a grant and a lease say, and how that becomes the bytes that are signed and sealed.

use bytes::Bytes;
use iop_types::{
    Attempt, EdgeBootId, Generation, LeaseFault, NodeId, Principal, Profile, ProviderKey,
    ProviderRevision, RouteName, RunId, Slot, Target, TunnelId, WorkKey,
};
use iop_wire::claims as wire;

use crate::domain;
use crate::id::{GrantId, Kid, LeaseId};
use crate::origin::Origin;
use crate::time::{GRANT_LIFE, LEASE_LIFE_MAX, Validity};
use crate::transcript::{Hash, Transcript};

/// Longest claims that are read. Names are far shorter; the bound is for what is none.
pub(crate) const MAX_CLAIMS: usize = 4 * 1024;

/// Version of the claims.
const VERSION: u32 = 1;

/// DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305, Ed25519.
const SUITE: u32 = 1;

/// How an entry of a provider names its credential: which one, put where, and sent to whom.
///
/// The Edge has it from its configuration, a Node from the snapshot that the request runs on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Binding {
    /// Place of the credential at the Edge.
    pub slot: Slot,
    /// How it is written into a request.
    pub profile: Profile,
    /// Instance key of the provider.
    pub provider: ProviderKey,
    /// Where the provider is.
    pub origin: Origin,
    /// Revision of the provider's entry.
    pub revision: ProviderRevision,
}

/// What one grant is good for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrantScope {
    /// The provider's entry.
    pub binding: Binding,
    /// Which credential of the slot.
    pub credential_revision: u64,
}

/// Claims of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantClaims {
    /// This grant.
    pub id: GrantId,
    /// The Edge, as its certificate names it.
    pub edge: String,
    /// Which start of the Edge.
    pub boot: EdgeBootId,
    /// The Node, as its certificate names it.
    pub node: NodeId,
    /// Which link of the Node.
    pub generation: Generation,
    /// The key that it is sealed to.
    pub recipient: Kid,
    /// The key that signs it.
    pub signer: Kid,
    /// What it is good for.
    pub scope: GrantScope,
    /// When it is good.
    pub validity: Validity,
}

/// Who asks for what: one attempt of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The caller.
    pub principal: Principal,
    /// The route that was asked for.
    pub route: RouteName,
    /// The target that the provider is asked for.
    pub target: Target,
    /// The run and the attempt.
    pub work: WorkKey,
    /// The tunnel; `None` for a normalized run.
    pub tunnel: Option<TunnelId>,
}

/// Claims of a lease. What its grant says holds for it too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseClaims {
    /// This lease.
    pub id: LeaseId,
    /// The grant that it stands on.
    pub grant: GrantId,
    /// What it is good for.
    pub subject: Subject,
    /// When it is good.
    pub validity: Validity,
}

impl GrantClaims {
    /// Encodes the claims. Done once: the bytes are what is signed.
    pub fn encode(&self) -> Bytes {
        let Self { id, edge, boot, node, generation, recipient, signer, scope, validity } = self;
        let GrantScope { binding, credential_revision } = scope;
        let Binding { slot, profile, provider, origin, revision } = binding;
        let Profile { name, header, scheme } = profile;
        let space = if scheme.is_empty() { "" } else { " " };
        wire::encode(&wire::GrantClaims {
            v: VERSION,
            suite: SUITE,
            grant_id: Bytes::copy_from_slice(&id.0),
            edge_id: edge.clone(),
            edge_boot_id: Bytes::copy_from_slice(boot.as_bytes()),
            node_id: node.as_str().to_owned(),
            generation: Some(generation.0),
            recipient_kid: Bytes::copy_from_slice(&recipient.0),
            signer_kid: Bytes::copy_from_slice(&signer.0),
            slot: slot.as_str().to_owned(),
            profile: name.clone(),
            inject: format!("{header}{space}{scheme}"),
            adapter: provider.as_str().to_owned(),
            endpoint_origin: origin.as_str().to_owned(),
            credential_revision: Some(*credential_revision),
            provider_revision: Some(revision.0),
            not_before_ms: validity.not_before_ms,
            expires_ms: validity.expires_ms,
        })
    }

    /// Reads claims as they were received.
    ///
    /// # Errors
    /// [`LeaseFault::Unsupported`] when they are too long or of another version or suite, and
    /// [`LeaseFault::Malformed`] when they are no claims, or claim too long a life.
    pub fn decode(bytes: &Bytes) -> Result<Self, LeaseFault> {
        if bytes.len() > MAX_CLAIMS {
            return Err(LeaseFault::Unsupported);
        }
        match wire::version_and_suite(bytes) {
            Ok((VERSION, SUITE)) => {}
            Ok(_) => return Err(LeaseFault::Unsupported),
            Err(_) => return Err(LeaseFault::Malformed),
        }
        let claims: wire::GrantClaims = wire::decode(bytes).map_err(|_| LeaseFault::Malformed)?;
        Self::understand(claims).ok_or(LeaseFault::Malformed)
    }

    fn understand(claims: wire::GrantClaims) -> Option<Self> {
        let (header, scheme) = match claims.inject.split_once(' ') {
            None => (claims.inject.as_str(), ""),
            Some((header, scheme)) if !scheme.is_empty() => (header, scheme),
            Some(_) => return None,
        };
        let profile =
            Profile { name: claims.profile, header: header.to_owned(), scheme: scheme.to_owned() };
        let origin = Origin::of(&claims.endpoint_origin).ok()?;
        let validity =
            Validity { not_before_ms: claims.not_before_ms, expires_ms: claims.expires_ms };
        let is_sound = !profile.header.is_empty()
            && origin.as_str() == claims.endpoint_origin
            && validity.is_within(GRANT_LIFE);
        is_sound.then_some(())?;
        Some(Self {
            id: GrantId(array(&claims.grant_id)?),
            edge: claims.edge_id,
            boot: EdgeBootId::from_slice(&claims.edge_boot_id).ok()?,
            node: NodeId::from(claims.node_id),
            generation: Generation(claims.generation?),
            recipient: Kid(array(&claims.recipient_kid)?),
            signer: Kid(array(&claims.signer_kid)?),
            scope: GrantScope {
                binding: Binding {
                    slot: Slot::from(claims.slot),
                    profile,
                    provider: ProviderKey::from(claims.adapter),
                    origin,
                    revision: ProviderRevision(claims.provider_revision?),
                },
                credential_revision: claims.credential_revision?,
            },
            validity,
        })
    }
}

impl LeaseClaims {
    /// Encodes the claims. Done once: the bytes are what is sealed.
    pub fn encode(&self) -> Bytes {
        let Self { id, grant, subject, validity } = self;
        let Subject { principal, route, target, work, tunnel } = subject;
        let tunnel = tunnel.as_ref().map_or(&NO_TUNNEL, TunnelId::as_bytes);
        wire::encode(&wire::LeaseClaims {
            lease_id: Bytes::copy_from_slice(&id.0),
            grant_id: Bytes::copy_from_slice(&grant.0),
            principal: principal.as_str().to_owned(),
            route: route.as_str().to_owned(),
            target: target.as_str().to_owned(),
            run_id: Bytes::copy_from_slice(work.run_id.as_bytes()),
            tunnel_id: Bytes::copy_from_slice(tunnel),
            attempt: work.attempt.0,
            not_before_ms: validity.not_before_ms,
            expires_ms: validity.expires_ms,
        })
    }

    /// Reads claims as they were received.
    ///
    /// # Errors
    /// [`LeaseFault::Unsupported`] when they are too long, and [`LeaseFault::Malformed`] when they
    /// are no claims, or claim too long a life.
    pub fn decode(bytes: &Bytes) -> Result<Self, LeaseFault> {
        if bytes.len() > MAX_CLAIMS {
            return Err(LeaseFault::Unsupported);
        }
        let claims: wire::LeaseClaims = wire::decode(bytes).map_err(|_| LeaseFault::Malformed)?;
        Self::understand(claims).ok_or(LeaseFault::Malformed)
    }

    fn understand(claims: wire::LeaseClaims) -> Option<Self> {
        let validity =
            Validity { not_before_ms: claims.not_before_ms, expires_ms: claims.expires_ms };
        validity.is_within(LEASE_LIFE_MAX).then_some(())?;
        let tunnel: [u8; 16] = array(&claims.tunnel_id)?;
        Some(Self {
            id: LeaseId(array(&claims.lease_id)?),
            grant: GrantId(array(&claims.grant_id)?),
            subject: Subject {
                principal: Principal::from(claims.principal),
                route: RouteName::from(claims.route),
                target: Target::from(claims.target),
                work: WorkKey {
                    run_id: RunId::from_slice(&claims.run_id).ok()?,
                    attempt: Attempt(claims.attempt),
                },
                tunnel: match tunnel {
                    NO_TUNNEL => None,
                    id => Some(TunnelId::from_slice(&id).ok()?),
                },
            },
            validity,
        })
    }
}

/// Stands for a normalized run. A tunnel of that id has no lease: it never equals what is read here.
const NO_TUNNEL: [u8; 16] = [0; 16];

pub(crate) fn grant_hash(claims: &[u8]) -> Hash {
    Transcript::new(domain::GRANT_CLAIMS).part(claims).hash()
}

pub(crate) fn lease_hash(claims: &[u8]) -> Hash {
    Transcript::new(domain::LEASE_CLAIMS).part(claims).hash()
}

fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.try_into().ok()
}
