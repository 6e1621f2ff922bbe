//! Grants and leases on a Node, whatever an Edge sends and however a message is spoilt on its way.
//!
//! Nothing panics. What was not made by the Edge of this link never opens, a lease opens once, and one
//! that opens gives the secret that was sealed. The foreign bytes of an input are signed as well, so
//! that what reads claims sees them.
//!
//! An input is a list of steps: a byte for what is done, then what that takes.

#![no_main]

use std::convert::Infallible;
use std::time::{Duration, Instant};

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use ed25519_dalek::{Signer as _, SigningKey};
use iop_lease::{
    Binding, Checked, EdgeTime, GrantClaims, GrantScope, Grants, Issuer, LeaseClaims, LeaseId,
    Origin, Signer, Subject, ThisLink, ThisRequest, TrustedSigner,
};
use iop_types::{
    Attempt, EdgeBootId, Generation, LeaseFault, NodeId, Principal, Profile, ProviderKey,
    ProviderRevision, Revocation, RouteName, RunId, SealedGrant, SealedLease, Slot, Target,
    WorkKey,
};
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

const START_MS: i64 = 1_800_000_000_000;
const SECRET: &[u8] = b"sk-0123456789";

struct World {
    now: Instant,
    time: EdgeTime,
    issuer: Issuer,
    grants: Grants,
    drawn: u64,
    grant: Option<SealedGrant>,
    leases: Vec<(LeaseId, SealedLease)>,
    checked: Vec<Checked>,
    opened: Vec<LeaseId>,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let ca = SigningKey::from_bytes(&[9; 32]);
        let vouch = |bytes: &[u8]| Ok::<_, Infallible>(ca.sign(bytes).to_bytes().to_vec());
        let until_ms = START_MS + 86_400_000;
        let Ok(signer) = Signer::vouched(&[1; 32], "edge", START_MS - 5_000, until_ms, vouch);
        let ca_public = ca.verifying_key().to_bytes();
        let trusted =
            TrustedSigner::verify(signer.statement(), "edge", &ca_public).expect("vouched for");
        let link = ThisLink {
            trust_domain: "home".into(),
            edge: "edge".into(),
            boot: EdgeBootId::from_slice(&[1; 16]).expect("16 bytes"),
            node: NodeId::from("node"),
            generation: Generation(1),
        };
        let time = EdgeTime::new(START_MS, now);
        let seed = Zeroizing::new([2; 32]);
        let grants = Grants::new(link.clone(), vec![trusted], time, &seed, 16, now);
        let issuer = Issuer::new(link, signer.into(), grants.recipient());
        Self {
            now,
            time,
            issuer,
            grants,
            drawn: 0,
            grant: None,
            leases: Vec::new(),
            checked: Vec::new(),
            opened: Vec::new(),
        }
    }

    fn step(&mut self, input: &mut Unstructured) -> Result<()> {
        match input.int_in_range(0..=9)? {
            0 => self.issue(),
            1 => {
                if let Some(grant) = &self.grant {
                    let _ = self.grants.handle_grant(grant, self.now);
                }
            }
            2 => {
                if let Some(lease) = self.pick(input)? {
                    self.check(&lease);
                }
            }
            3 => {
                if let Some(checked) = self.checked.pop() {
                    self.open(checked);
                }
            }
            4 => self.now += Duration::from_millis(input.int_in_range(0..=700_000)?),
            5 => {
                let revocation = match input.int_in_range(0..=3)? {
                    0 => Revocation::Slot(Slot::from("slot")),
                    1 => Revocation::Principal(Principal::from("caller")),
                    2 => {
                        Revocation::Below { slot: Slot::from("slot"), revision: input.arbitrary()? }
                    }
                    _ => Revocation::Lease(input.arbitrary()?),
                };
                self.grants.handle_revocation(revocation, self.now);
            }
            6 => self
                .grants
                .handle_edge_time(START_MS + i64::from(input.arbitrary::<u32>()?), self.now),
            7 => self.spoilt_grant(input)?,
            8 => self.spoilt_lease(input)?,
            _ => self.foreign(input)?,
        }
        Ok(())
    }

    fn issue(&mut self) {
        let drawn = &mut self.drawn;
        let mut random = |bytes: &mut [u8]| {
            for byte in bytes.chunks_mut(8) {
                *drawn += 1;
                let next = drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
                byte.copy_from_slice(&next[..byte.len()]);
            }
        };
        let life = Duration::from_secs(30);
        let now_ms = self.time.now_ms(self.now);
        let issued = self
            .issuer
            .issue(&scope(), subject(), SECRET, life, now_ms, &mut random)
            .expect("a good key and secret");
        self.grant = issued.grant.or(self.grant.take());
        self.leases.push((issued.lease_id, issued.lease));
    }

    fn pick(&self, input: &mut Unstructured) -> Result<Option<SealedLease>> {
        if self.leases.is_empty() {
            return Ok(None);
        }
        Ok(Some(input.choose(&self.leases)?.1.clone()))
    }

    fn check(&mut self, lease: &SealedLease) {
        let (subject, scope) = (subject(), scope());
        let request = ThisRequest {
            work: subject.work,
            tunnel: subject.tunnel,
            target: &subject.target,
            binding: &scope.binding,
        };
        if let Ok(checked) = self.grants.check(lease, &request, self.now) {
            self.checked.push(checked);
        }
    }

    fn open(&mut self, checked: Checked) {
        let Ok(opened) = self.grants.open(checked, self.now, Generation(1)) else { return };
        assert_eq!(opened.secret.expose(), [b"Bearer ", SECRET].concat());
        let id = opened.scope.lease;
        assert!(self.leases.iter().any(|(issued, _)| *issued == id), "nobody issued {id}");
        assert!(!self.opened.contains(&id), "opened twice: {id}");
        self.opened.push(id);
    }

    fn spoilt_grant(&mut self, input: &mut Unstructured) -> Result<()> {
        let Some(grant) = self.grant.clone() else { return Ok(()) };
        let spoilt = match input.int_in_range(0..=2)? {
            0 => SealedGrant { claims: spoil(&grant.claims, input)?, ..grant.clone() },
            1 => {
                SealedGrant { encapsulation: spoil(&grant.encapsulation, input)?, ..grant.clone() }
            }
            _ => SealedGrant { signature: spoil(&grant.signature, input)?, ..grant.clone() },
        };
        let received = self.grants.handle_grant(&spoilt, self.now);
        assert!(spoilt == grant || received.is_err(), "{spoilt:?}");
        Ok(())
    }

    fn spoilt_lease(&mut self, input: &mut Unstructured) -> Result<()> {
        let Some(lease) = self.pick(input)? else { return Ok(()) };
        let spoilt = match input.int_in_range(0..=2)? {
            0 => SealedLease { claims: spoil(&lease.claims, input)?, ..lease.clone() },
            1 => SealedLease { sealed: spoil(&lease.sealed, input)?, ..lease.clone() },
            _ => SealedLease {
                principal: Principal::from(input.arbitrary::<&str>()?),
                ..lease.clone()
            },
        };
        let before = self.checked.len();
        self.check(&spoilt);
        if spoilt != lease && self.checked.len() > before {
            let checked = self.checked.pop().expect("one more");
            let opened = self.grants.open(checked, self.now, Generation(1));
            assert!(opened.is_err(), "{spoilt:?}");
        }
        Ok(())
    }

    /// Claims that nobody here made, signed by the signer that is trusted.
    fn foreign(&mut self, input: &mut Unstructured) -> Result<()> {
        let length = input.int_in_range(0..=400)?.min(input.len());
        let claims = Bytes::copy_from_slice(input.bytes(length)?);
        if let Ok(read) = LeaseClaims::decode(&claims) {
            assert!(claims.starts_with(&read.encode()), "{read:?} has two spellings");
        }
        let read = GrantClaims::decode(&claims);
        if let Ok(read) = &read {
            assert!(claims.starts_with(&read.encode()), "{read:?} has two spellings");
        }
        let length = u32::try_from(claims.len()).expect("short").to_be_bytes();
        let hash = Sha256::digest([b"IOP/grant/claims/v1\0", &length[..], &claims].concat());
        let encapsulation = [9; 32];
        let message =
            [b"IOP/grant/sig/v1\0", &hash[..], &32_u32.to_be_bytes(), &encapsulation].concat();
        let signature = SigningKey::from_bytes(&[1; 32]).sign(&message).to_bytes();
        let grant = SealedGrant {
            claims,
            encapsulation: Bytes::copy_from_slice(&encapsulation),
            signature: Bytes::copy_from_slice(&signature),
        };
        let received = self.grants.handle_grant(&grant, self.now);
        match read {
            Err(fault) => assert_eq!(received, Err(fault)),
            Ok(_) => assert_ne!(received, Err(LeaseFault::BadSignature)),
        }
        Ok(())
    }
}

fuzz_target!(|input: &[u8]| {
    let mut world = World::new();
    let mut input = Unstructured::new(input);
    while !input.is_empty() && world.leases.len() < 64 {
        if world.step(&mut input).is_err() {
            break;
        }
    }
});

/// Cuts, or changes one byte.
fn spoil(bytes: &Bytes, input: &mut Unstructured) -> Result<Bytes> {
    let at = input.choose_index(bytes.len())?;
    if input.arbitrary()? {
        return Ok(bytes.slice(..at));
    }
    let mut bytes = bytes.to_vec();
    bytes[at] = input.arbitrary()?;
    Ok(bytes.into())
}

fn scope() -> GrantScope {
    GrantScope {
        binding: Binding {
            slot: Slot::from("slot"),
            profile: Profile {
                name: "bearer".into(),
                header: "authorization".into(),
                scheme: "Bearer".into(),
            },
            provider: ProviderKey::from("cloud"),
            origin: Origin::of("https://api.example.com").expect("an origin"),
            revision: ProviderRevision(1),
        },
        credential_revision: 1,
    }
}

fn subject() -> Subject {
    Subject {
        principal: Principal::from("caller"),
        route: RouteName::from("chat"),
        target: Target::from("gpt-x"),
        work: WorkKey {
            run_id: RunId::from_slice(&[5; 16]).expect("16 bytes"),
            attempt: Attempt::FIRST,
        },
        tunnel: None,
    }
}
