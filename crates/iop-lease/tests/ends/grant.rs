//! Grants: who may make one, for whom, and what happens to it.

use std::time::Duration;

use crate::both::{Both, SECOND, START_MS, binding, flip, layout, link, scope, signer, subject};
use bytes::Bytes;
use ed25519_dalek::{Signer as _, SigningKey};
use iop_lease::{
    Binding, EdgeTime, GrantClaims, GrantScope, Grants, Issuer, Kid, Origin, Recipient,
    RecipientPublic, SealError, ThisLink, UnprovenKey, Validity, seal,
};
use iop_types::{
    EdgeBootId, Generation, LeaseFault, NodeId, Profile, ProviderKey, ProviderRevision,
    RecipientKey, Revocation, SealedGrant, Slot,
};
use zeroize::Zeroizing;

#[test]
fn a_grant_of_this_link_is_received() {
    let mut both = Both::new();
    let (grant, _) = both.grant(&both.grant_claims());
    assert_eq!(both.receive(&grant), Ok(both.grant_claims().id));
    assert_eq!(both.receive(&grant), Ok(both.grant_claims().id), "the same bytes again");
}

#[test]
fn claims_are_read_as_they_were_written() {
    let claims = Both::new().grant_claims();
    assert_eq!(GrantClaims::decode(&claims.encode()), Ok(claims.clone()));
    let mut bare = claims;
    bare.scope.binding.profile.scheme = String::new();
    bare.generation = Generation(0);
    bare.scope.credential_revision = 0;
    bare.scope.binding.revision = ProviderRevision(0);
    assert_eq!(GrantClaims::decode(&bare.encode()), Ok(bare));
}

#[test]
fn every_claim_of_a_grant_is_checked_or_bound() {
    let good = Both::new().grant_claims();
    let GrantClaims { id, edge, boot, node, generation, recipient, signer, scope, validity } =
        good.clone();
    let GrantScope { binding, credential_revision } = scope;
    let Binding { slot, profile, provider, origin, revision } = binding;
    let Profile { name, header, scheme } = profile;
    let Validity { not_before_ms, expires_ms } = validity;
    // Names what was taken apart above: a new claim does not compile without a row.
    let _ = (id, edge, boot, node, generation, recipient, signer, credential_revision);
    let _ = (slot, name, header, scheme, provider, origin, revision, not_before_ms, expires_ms);
    type Change = fn(&mut GrantClaims);
    let at_receipt: &[(&str, Change, LeaseFault)] = &[
        ("edge", |claims| claims.edge = "edge-2".into(), LeaseFault::UntrustedSigner),
        ("signer", |claims| claims.signer = Kid([0; 8]), LeaseFault::UntrustedSigner),
        ("node", |claims| claims.node = NodeId::from("cellar"), LeaseFault::WrongRecipient),
        ("recipient", |claims| claims.recipient = Kid([0; 8]), LeaseFault::WrongRecipient),
        ("boot", |claims| claims.boot = boot_id(2), LeaseFault::Stale),
        ("generation", |claims| claims.generation = Generation(3), LeaseFault::Stale),
        (
            "not before",
            |claims| {
                claims.validity.not_before_ms += 10_002;
                claims.validity.expires_ms += 10_002;
            },
            LeaseFault::NotYetValid,
        ),
        (
            "expires",
            |claims| claims.validity.expires_ms = claims.validity.not_before_ms + 5_001,
            LeaseFault::Expired,
        ),
        ("life", |claims| claims.validity.expires_ms += 1, LeaseFault::Malformed),
    ];
    for (claim, change, fault) in at_receipt {
        let mut both = Both::new();
        let mut claims = both.grant_claims();
        change(&mut claims);
        both.advance(Duration::from_millis(1));
        let (grant, _) = both.grant(&claims);
        assert_eq!(both.receive(&grant), Err(*fault), "{claim}");
    }
    let at_the_request: &[(&str, Change)] = &[
        ("slot", |claims| claims.scope.binding.slot = Slot::from("other")),
        ("profile", |claims| claims.scope.binding.profile.name = "other".into()),
        ("header", |claims| claims.scope.binding.profile.header = "x-api-key".into()),
        ("scheme", |claims| claims.scope.binding.profile.scheme = "Basic".into()),
        ("provider", |claims| claims.scope.binding.provider = ProviderKey::from("other")),
        ("origin", |claims| {
            claims.scope.binding.origin = Origin::of("https://evil.example").expect("an origin");
        }),
        ("revision", |claims| claims.scope.binding.revision = ProviderRevision(4)),
    ];
    for (claim, change) in at_the_request {
        let mut both = Both::new();
        let mut claims = both.grant_claims();
        change(&mut claims);
        let (grant, key) = both.grant(&claims);
        both.receive(&grant).expect("a grant of this link");
        let lease = seal::lease(&both.lease_claims(), b"sk", &key).expect("sealed");
        assert_eq!(both.check(&lease).map(|_| ()), Err(LeaseFault::Mismatch), "{claim}");
    }
}

#[test]
fn the_old_boot_with_the_same_generation_is_stale() {
    let mut both = Both::new();
    let mut claims = both.grant_claims();
    claims.boot = boot_id(2);
    let (grant, _) = both.grant(&claims);
    assert_eq!(both.receive(&grant), Err(LeaseFault::Stale));
}

#[test]
fn a_grant_of_an_earlier_link_is_for_another_recipient() {
    let mut before = Both::new();
    let (grant, _) = before.grant(&before.grant_claims());
    let mut after = Both::on(ThisLink { generation: Generation(5), ..link() }, 4096);
    assert_eq!(after.receive(&grant), Err(LeaseFault::WrongRecipient));
}

#[test]
fn another_signer_of_the_group_is_not_trusted_unless_it_was_named() {
    let mut both = Both::new();
    let other = signer(2);
    let mut claims = both.grant_claims();
    claims.signer = other.kid();
    let recipient = both.grants.recipient();
    let mut random = |bytes: &mut [u8]| bytes.fill(3);
    let (grant, _) = seal::grant(&claims, "home", &recipient, &other, &mut random).expect("sealed");
    assert_eq!(both.receive(&grant), Err(LeaseFault::UntrustedSigner));

    // The same grant, with the kid of the signer that is trusted.
    claims.signer = both.signer.kid();
    let (grant, _) = seal::grant(&claims, "home", &recipient, &other, &mut random).expect("sealed");
    assert_eq!(both.receive(&grant), Err(LeaseFault::BadSignature));
}

#[test]
fn a_signer_out_of_date_is_not_trusted() {
    let mut both = Both::new();
    both.advance(Duration::from_secs(86_400));
    let (grant, _) = both.grant(&both.grant_claims());
    assert_eq!(both.receive(&grant), Err(LeaseFault::UntrustedSigner));
}

#[test]
fn a_signer_that_is_in_date_does_not_make_an_old_recipient_key_good() {
    let mut both = Both::new();
    let (old, _) = both.grant(&both.grant_claims());
    both.advance(Duration::from_secs(3600));
    both.grants.rotate(&Zeroizing::new([77; 32]), both.now).expect("an hour has passed");
    both.advance(Duration::from_secs(60));
    assert_eq!(both.receive(&old), Err(LeaseFault::WrongRecipient));
}

#[test]
fn the_same_id_with_other_bytes_is_a_conflict() {
    let mut both = Both::new();
    let (grant, key) = both.grant(&both.grant_claims());
    both.receive(&grant).expect("a grant of this link");
    let (again, _) = both.grant(&both.grant_claims());
    assert_eq!(again.claims, grant.claims, "only the encapsulation differs");
    assert_eq!(both.receive(&again), Err(LeaseFault::GrantConflict));
    let mut claims = both.grant_claims();
    claims.scope.credential_revision += 1;
    let (other, _) = both.grant(&claims);
    assert_eq!(both.receive(&other), Err(LeaseFault::GrantConflict));

    let lease = seal::lease(&both.lease_claims(), b"sk", &key).expect("sealed");
    assert!(both.check_and_open(&lease).is_ok(), "the first stays what it was");
}

#[test]
fn a_request_says_why_its_grant_was_refused() {
    let mut both = Both::new();
    let issued = both.issue();
    let grant = issued.grant.expect("the first");
    let forged = SealedGrant { signature: flip(&grant.signature, 9), ..grant.clone() };
    assert_eq!(both.check(&issued.lease).map(|_| ()), Err(LeaseFault::UnknownGrant));
    assert_eq!(both.receive(&forged), Err(LeaseFault::BadSignature));
    assert_eq!(both.check(&issued.lease).map(|_| ()), Err(LeaseFault::BadSignature));
    both.receive(&grant).expect("nothing was spoilt");
    assert!(both.check(&issued.lease).is_ok());
}

#[test]
fn every_bit_of_a_grant_counts() {
    let mut both = Both::new();
    let (grant, _) = both.grant(&both.grant_claims());
    let bits = |bytes: &Bytes| 0..bytes.len() * 8;
    let mut refuse = |grant: SealedGrant| {
        assert!(both.grants.handle_grant(&grant, both.now).is_err(), "{grant:?}");
    };
    for bit in bits(&grant.claims) {
        refuse(SealedGrant { claims: flip(&grant.claims, bit), ..grant.clone() });
    }
    for bit in bits(&grant.encapsulation) {
        refuse(SealedGrant { encapsulation: flip(&grant.encapsulation, bit), ..grant.clone() });
    }
    for bit in bits(&grant.signature) {
        refuse(SealedGrant { signature: flip(&grant.signature, bit), ..grant.clone() });
    }
    both.receive(&grant).expect("the grant itself is good");
}

#[test]
fn a_truncated_grant_is_refused() {
    let mut both = Both::new();
    let (grant, _) = both.grant(&both.grant_claims());
    for end in 0..grant.claims.len() {
        let cut = SealedGrant { claims: grant.claims.slice(..end), ..grant.clone() };
        assert_eq!(both.receive(&cut), Err(LeaseFault::Malformed), "{end}");
    }
    for end in 0..32 {
        let cut = SealedGrant { encapsulation: grant.encapsulation.slice(..end), ..grant.clone() };
        assert_eq!(both.receive(&cut), Err(LeaseFault::Malformed), "{end}");
    }
    for end in 0..64 {
        let cut = SealedGrant { signature: grant.signature.slice(..end), ..grant.clone() };
        assert_eq!(both.receive(&cut), Err(LeaseFault::Malformed), "{end}");
    }
}

#[test]
fn an_oversized_grant_is_refused_unread() {
    let mut both = Both::new();
    let (grant, _) = both.grant(&both.grant_claims());
    let large = SealedGrant { claims: vec![8; 4097].into(), ..grant };
    assert_eq!(both.receive(&large), Err(LeaseFault::Unsupported));
}

#[test]
fn a_key_of_low_order_seals_nothing_and_opens_nothing() {
    let both = Both::new();
    let node = SigningKey::from_bytes(&[4; 32]);
    for low in low_order() {
        let key = proven(&low, &node);
        let mut issuer = Issuer::new(both.link.clone(), both.signer.clone(), key);
        let mut random = |bytes: &mut [u8]| bytes.fill(3);
        let issued = issuer.issue(&scope(), subject(), b"sk", SECOND, both.now_ms(), &mut random);
        assert_eq!(issued.map(|_| ()), Err(SealError::RecipientKey), "{low:?}");
    }
    for low in low_order() {
        let mut both = Both::new();
        let grant = layout::sign(both.grant_claims().encode(), &low);
        assert_eq!(both.receive(&grant), Err(LeaseFault::Malformed), "{low:?}");
    }
}

#[test]
fn unknown_claims_behind_the_known_are_covered_and_tolerated() {
    let mut both = Both::new();
    let mut claims = both.grant_claims().encode().to_vec();
    claims.extend([0x98, 0x01, 7]); // 19: 7
    let grant = layout::sign(claims.into(), &[9; 32]);
    assert!(both.receive(&grant).is_ok());
}

#[test]
fn another_version_or_suite_is_unsupported_and_never_verified() {
    let mut both = Both::new();
    for at in [1, 3] {
        let mut claims = both.grant_claims().encode().to_vec();
        claims[at] = 2;
        let grant = layout::sign(claims.into(), &[9; 32]);
        assert_eq!(both.receive(&grant), Err(LeaseFault::Unsupported));
    }
}

#[test]
fn a_grant_that_is_repeated_in_another_spelling_is_malformed_though_signed() {
    let mut both = Both::new();
    let claims = both.grant_claims().encode();
    let mut doubled = vec![8, 1];
    doubled.extend_from_slice(&claims);
    let mut swapped = claims[2..4].to_vec();
    swapped.extend_from_slice(&claims[..2]);
    swapped.extend_from_slice(&claims[4..]);
    for claims in [doubled, swapped] {
        let grant = layout::sign(claims.into(), &[9; 32]);
        assert_eq!(both.receive(&grant), Err(LeaseFault::Malformed));
    }
}

#[test]
fn a_revocation_that_overtakes_its_grant_hits_it() {
    for revocation in revocations_of_the_grant() {
        let mut both = Both::new();
        let issued = both.issue();
        both.grants.handle_revocation(revocation.clone(), both.now);
        let grant = issued.grant.expect("the first");
        assert_eq!(both.receive(&grant), Err(LeaseFault::Revoked), "{revocation:?}");
        let refused = both.check(&issued.lease).map(|_| ());
        assert_eq!(refused, Err(LeaseFault::Revoked), "{revocation:?}");
    }
}

#[test]
fn a_revoked_grant_does_not_come_back() {
    let mut both = Both::new();
    let issued = both.issue();
    let grant = issued.grant.expect("the first");
    both.receive(&grant).expect("a grant of this link");
    both.grants.handle_revocation(Revocation::Slot(binding().slot), both.now);
    assert_eq!(both.receive(&grant), Err(LeaseFault::Revoked));
    assert_eq!(both.check(&issued.lease).map(|_| ()), Err(LeaseFault::Revoked));
}

#[test]
fn what_is_allowed_again_works_with_a_new_grant() {
    let mut both = Both::new();
    let lease = both.deliver();
    let revocation = Revocation::Slot(binding().slot);
    both.issuer.handle_revocation(&revocation);
    both.grants.handle_revocation(revocation, both.now);
    both.advance(SECOND);
    assert_eq!(both.check(&lease).map(|_| ()), Err(LeaseFault::Revoked));
    let lease = both.deliver();
    assert!(both.check_and_open(&lease).is_ok());
}

#[test]
fn rotating_the_recipient_key_refuses_no_grant_that_is_on_its_way() {
    let mut both = Both::new();
    assert_eq!(both.grants.rotate(&Zeroizing::new([77; 32]), both.now), None, "too early");
    both.advance(Duration::from_secs(3600));
    let on_its_way = both.issue();
    let key = both.grants.rotate(&Zeroizing::new([77; 32]), both.now).expect("an hour has passed");
    let grant = on_its_way.grant.expect("the first");
    both.receive(&grant).expect("sealed to the key before");
    assert!(both.check(&on_its_way.lease).is_ok());

    both.issuer.handle_recipient_key(key);
    let next = both.issue();
    both.receive(&next.grant.expect("the first under this key")).expect("sealed to the new key");
    assert!(both.check(&on_its_way.lease).is_ok(), "a grant outlives the key it came under");
    let mut claims = both.grant_claims();
    claims.recipient = both.grants.recipient().kid();
    let (again, _) = both.grant(&claims);
    both.receive(&again).expect("the new key stays");
}

#[test]
fn the_key_before_is_dropped_once_a_grant_came_under_the_new_one() {
    let mut both = Both::new();
    both.advance(Duration::from_secs(3600));
    let (late, _) = both.grant(&both.grant_claims());
    let key = both.grants.rotate(&Zeroizing::new([77; 32]), both.now).expect("an hour has passed");
    both.issuer.handle_recipient_key(key);
    both.deliver();
    assert_eq!(both.receive(&late), Err(LeaseFault::WrongRecipient));
}

#[test]
fn a_recipient_key_is_believed_for_its_own_node_and_link_only() {
    let node = SigningKey::from_bytes(&[4; 32]);
    let public = Recipient::from_seed(&Zeroizing::new([5; 32])).public();
    let sign = |bytes: &[u8]| Ok::<_, UnprovenKey>(node.sign(bytes).to_bytes().to_vec());
    let key = public.prove(&link(), &[6; 32], sign).expect("signed");
    let node_public = node.verifying_key().to_bytes();
    let verify = |key: &RecipientKey, link: &ThisLink, exporter: u8, node: &[u8; 32]| {
        RecipientPublic::verify(key, link, &[exporter; 32], node)
    };
    assert_eq!(verify(&key, &link(), 6, &node_public), Ok(public));

    let other_node = SigningKey::from_bytes(&[3; 32]).verifying_key().to_bytes();
    let later = ThisLink { generation: Generation(5), ..link() };
    let rebooted = ThisLink { boot: boot_id(2), ..link() };
    let other_key = RecipientKey { public: flip(&key.public, 0), proof: key.proof.clone() };
    let other_proof = RecipientKey { public: key.public.clone(), proof: flip(&key.proof, 0) };
    let short = RecipientKey { public: key.public.slice(..31), proof: key.proof.clone() };
    assert_eq!(verify(&key, &link(), 7, &node_public), Err(UnprovenKey), "passed on");
    assert_eq!(verify(&key, &link(), 6, &other_node), Err(UnprovenKey));
    assert_eq!(verify(&key, &later, 6, &node_public), Err(UnprovenKey));
    assert_eq!(verify(&key, &rebooted, 6, &node_public), Err(UnprovenKey));
    for wrong in [other_key, other_proof, short] {
        assert_eq!(verify(&wrong, &link(), 6, &node_public), Err(UnprovenKey));
    }
}

#[test]
fn an_edge_uses_a_grant_until_a_minute_before_its_end() {
    let mut both = Both::new();
    assert!(both.issue().grant.is_some());
    both.advance(Duration::from_secs(540));
    assert!(both.issue().grant.is_none());
    both.advance(Duration::from_millis(1));
    assert!(both.issue().grant.is_some());
}

#[test]
fn a_lease_never_outlives_its_grant() {
    let mut both = Both::new();
    both.issue();
    both.advance(Duration::from_secs(481));
    let now_ms = both.now_ms();
    let mut random = |bytes: &mut [u8]| bytes.fill(3);
    let life = Duration::from_secs(9_999); // held to 120 s
    let issued = both.issuer.issue(&scope(), subject(), b"sk", life, now_ms, &mut random);
    assert!(issued.expect("issued").grant.is_some());
}

#[test]
fn an_edge_forgets_what_it_must_not_use_again() {
    let mut both = Both::new();
    let mut is_made_anew = |before: &dyn Fn(&mut Both)| {
        both.issue();
        before(&mut both);
        both.issue().grant.is_some()
    };
    for revocation in revocations_of_the_grant().into_iter().skip(1) {
        assert!(is_made_anew(&|both| both.issuer.handle_revocation(&revocation)));
    }
    assert!(is_made_anew(&|both| both.issuer.forget(&scope())));
    assert!(is_made_anew(&|both| both.issuer.handle_recipient_key(both.grants.recipient())));
    let other_slot = Revocation::Slot(Slot::from("other"));
    assert!(!is_made_anew(&|both| both.issuer.handle_revocation(&other_slot)));
}

#[test]
fn a_rotated_credential_has_a_grant_of_its_own_and_leases_of_the_old_live_on() {
    let mut both = Both::new();
    let before = both.deliver();
    let rotated = GrantScope { credential_revision: 3, ..scope() };
    let after = both.issue_for(&rotated, subject());
    both.receive(&after.grant.expect("of its own")).expect("a grant of this link");
    assert!(both.check_and_open(&before).is_ok());
    assert!(both.check_and_open(&after.lease).is_ok());
}

#[test]
fn a_node_that_trusts_nobody_takes_no_grant() {
    let mut both = Both::new();
    let (grant, _) = both.grant(&both.grant_claims());
    let time = EdgeTime::new(START_MS, both.start);
    let seed = Zeroizing::new([1; 32]);
    let mut grants = Grants::new(link(), Vec::new(), time, &seed, 4096, both.start);
    assert_eq!(grants.handle_grant(&grant, both.now), Err(LeaseFault::UntrustedSigner));
}

/// What hits the grant of [`scope`]; the first is by an id that only these tests give.
fn revocations_of_the_grant() -> Vec<Revocation> {
    let mut both = Both::new();
    let id = both.issue().grant_id;
    vec![
        Revocation::Grant(id.0),
        Revocation::Slot(binding().slot),
        Revocation::Profile(binding().profile.name),
        Revocation::Below { slot: binding().slot, revision: 3 },
    ]
}

fn proven(public: &[u8; 32], node: &SigningKey) -> RecipientPublic {
    let message = [
        &b"IOP/node-rk/v1\0"[..],
        &[6; 32],
        link().boot.as_bytes(),
        &link().generation.0.to_be_bytes(),
        public,
    ]
    .concat();
    let key = RecipientKey {
        public: Bytes::copy_from_slice(public),
        proof: node.sign(&message).to_bytes().to_vec().into(),
    };
    RecipientPublic::verify(&key, &link(), &[6; 32], &node.verifying_key().to_bytes())
        .expect("proven, whatever the key is")
}

/// Zero, one, and a point of order eight.
fn low_order() -> [[u8; 32]; 3] {
    let mut one = [0; 32];
    one[0] = 1;
    let eight = [
        0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4,
        0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49,
        0xb8, 0x00,
    ];
    [[0; 32], one, eight]
}

fn boot_id(byte: u8) -> EdgeBootId {
    EdgeBootId::from_slice(&[byte; 16]).expect("16 bytes")
}
