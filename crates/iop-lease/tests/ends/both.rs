//! An Edge and a Node of one link, on a clock that is moved by hand.

pub(crate) mod layout;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ed25519_dalek::{Signer as _, SigningKey};
use iop_lease::{
    Binding, Checked, EdgeTime, GrantClaims, GrantId, GrantKey, GrantScope, Grants, Issued, Issuer,
    LeaseClaims, LeaseId, Opened, Origin, Signer, Subject, ThisLink, ThisRequest, TrustedSigner,
    Validity, seal,
};
use iop_types::{
    Attempt, EdgeBootId, Generation, LeaseFault, NodeId, Principal, Profile, ProviderKey,
    ProviderRevision, RouteName, RunId, SealedGrant, SealedLease, Slot, Target, TunnelId, WorkKey,
};
use zeroize::Zeroizing;

/// The Edge's time when the link begins.
pub(crate) const START_MS: i64 = 1_800_000_000_000;

pub(crate) const SECRET: &[u8] = b"sk-canary-0123456789";

pub(crate) const LIFE: Duration = Duration::from_secs(30);

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) struct Both {
    pub(crate) start: Instant,
    pub(crate) now: Instant,
    pub(crate) link: ThisLink,
    pub(crate) signer: Arc<Signer>,
    pub(crate) issuer: Issuer,
    pub(crate) grants: Grants,
    pub(crate) random: fastrand::Rng,
}

impl Both {
    pub(crate) fn new() -> Self {
        Self::with_replay_bound(4096)
    }

    pub(crate) fn with_replay_bound(bound: usize) -> Self {
        Self::on(link(), bound)
    }

    /// A link whose two ends agree on all of this. Every link draws its own recipient key.
    pub(crate) fn on(link: ThisLink, bound: usize) -> Self {
        let start = Instant::now();
        let mut random = fastrand::Rng::with_seed(link.generation.0);
        let signer = Arc::new(signer(1));
        let trusted = trusted(&signer);
        let seed = Zeroizing::new(random.u128(..).to_le_bytes().repeat(2).try_into().expect("32"));
        let time = EdgeTime::new(START_MS, start);
        let grants = Grants::new(link.clone(), vec![trusted], time, &seed, bound, start);
        let issuer = Issuer::new(link.clone(), Arc::clone(&signer), grants.recipient());
        Self { start, now: start, link, signer, issuer, grants, random }
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now += by;
    }

    pub(crate) fn now_ms(&self) -> i64 {
        EdgeTime::new(START_MS, self.start).now_ms(self.now)
    }

    /// Issues for [`scope`] and [`subject`].
    pub(crate) fn issue(&mut self) -> Issued {
        self.issue_for(&scope(), subject())
    }

    pub(crate) fn issue_for(&mut self, scope: &GrantScope, subject: Subject) -> Issued {
        let now_ms = self.now_ms();
        let mut random = |bytes: &mut [u8]| self.random.fill(bytes);
        self.issuer.issue(scope, subject, SECRET, LIFE, now_ms, &mut random).expect("issued")
    }

    /// Issues, and hands a grant to the Node.
    pub(crate) fn deliver(&mut self) -> SealedLease {
        let issued = self.issue();
        if let Some(grant) = &issued.grant {
            self.grants.handle_grant(grant, self.now).expect("a grant of this link");
        }
        issued.lease
    }

    /// Makes a grant of any claims, properly signed and sealed to the Node's key.
    pub(crate) fn grant(&mut self, claims: &GrantClaims) -> (SealedGrant, GrantKey) {
        let recipient = self.grants.recipient();
        let mut random = |bytes: &mut [u8]| self.random.fill(bytes);
        seal::grant(claims, &self.link.trust_domain, &recipient, &self.signer, &mut random)
            .expect("sealed")
    }

    pub(crate) fn receive(&mut self, grant: &SealedGrant) -> Result<GrantId, LeaseFault> {
        self.grants.handle_grant(grant, self.now)
    }

    pub(crate) fn check(&mut self, lease: &SealedLease) -> Result<Checked, LeaseFault> {
        self.check_for(lease, &subject(), &binding())
    }

    pub(crate) fn check_for(
        &mut self,
        lease: &SealedLease,
        subject: &Subject,
        binding: &Binding,
    ) -> Result<Checked, LeaseFault> {
        let Subject { principal: _, route: _, target, work, tunnel } = subject;
        let request = ThisRequest { work: *work, tunnel: *tunnel, target, binding };
        self.grants.check(lease, &request, self.now)
    }

    pub(crate) fn open(&mut self, checked: Checked) -> Result<Opened, LeaseFault> {
        self.grants.open(checked, self.now, self.link.generation)
    }

    pub(crate) fn check_and_open(&mut self, lease: &SealedLease) -> Result<Opened, LeaseFault> {
        let checked = self.check(lease)?;
        self.open(checked)
    }

    pub(crate) fn grant_claims(&self) -> GrantClaims {
        GrantClaims {
            id: GrantId([7; 16]),
            edge: self.link.edge.clone(),
            boot: self.link.boot,
            node: self.link.node.clone(),
            generation: self.link.generation,
            recipient: self.grants.recipient().kid(),
            signer: self.signer.kid(),
            scope: scope(),
            validity: self.validity(600),
        }
    }

    pub(crate) fn lease_claims(&self) -> LeaseClaims {
        LeaseClaims {
            id: LeaseId([8; 16]),
            grant: GrantId([7; 16]),
            subject: subject(),
            validity: self.validity(30),
        }
    }

    /// Made now, for so many seconds.
    pub(crate) fn validity(&self, seconds: i64) -> Validity {
        let now_ms = self.now_ms();
        Validity { not_before_ms: now_ms - 5_000, expires_ms: now_ms + seconds * 1_000 }
    }
}

pub(crate) fn link() -> ThisLink {
    ThisLink {
        trust_domain: "home".into(),
        edge: "edge-1".into(),
        boot: EdgeBootId::from_slice(&[1; 16]).expect("16 bytes"),
        node: NodeId::from("attic"),
        generation: Generation(4),
    }
}

pub(crate) fn ca() -> SigningKey {
    SigningKey::from_bytes(&[9; 32])
}

pub(crate) fn signer(seed: u8) -> Signer {
    let vouch = |bytes: &[u8]| Ok::<_, Infallible>(ca().sign(bytes).to_bytes().to_vec());
    let day_ms = 86_400_000;
    match Signer::vouched(&[seed; 32], "edge-1", START_MS - day_ms, START_MS + day_ms, vouch) {
        Ok(signer) => signer,
    }
}

pub(crate) fn trusted(signer: &Signer) -> TrustedSigner {
    let ca = ca().verifying_key().to_bytes();
    TrustedSigner::verify(signer.statement(), "edge-1", &ca).expect("vouched for")
}

pub(crate) fn binding() -> Binding {
    Binding {
        slot: Slot::from("openai"),
        profile: Profile {
            name: "bearer".into(),
            header: "authorization".into(),
            scheme: "Bearer".into(),
        },
        provider: ProviderKey::from("cloud"),
        origin: Origin::of("https://api.example.com/v1").expect("an origin"),
        revision: ProviderRevision(3),
    }
}

pub(crate) fn scope() -> GrantScope {
    GrantScope { binding: binding(), credential_revision: 2 }
}

pub(crate) fn subject() -> Subject {
    Subject {
        principal: Principal::from("team-a"),
        route: RouteName::from("chat"),
        target: Target::from("gpt-x"),
        work: WorkKey {
            run_id: RunId::from_slice(&[5; 16]).expect("16 bytes"),
            attempt: Attempt::FIRST,
        },
        tunnel: Some(TunnelId::from_slice(&[6; 16]).expect("16 bytes")),
    }
}

pub(crate) fn flip(bytes: &Bytes, bit: usize) -> Bytes {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes.into()
}
