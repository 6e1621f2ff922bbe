//! Leases: one secret for one attempt, once.

use std::sync::Mutex;
use std::time::Duration;

use crate::both::{
    Both, SECOND, SECRET, START_MS, binding, flip, layout, link, scope, subject, trusted,
};
use bytes::Bytes;
use hpke::aead::ExportOnlyAead;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::{Deserializable, Kem, OpModeR, setup_receiver};
use iop_lease::{Binding, EdgeTime, Grants, LeaseClaims, Origin, Subject, ThisLink, seal};
use iop_types::{
    Attempt, Generation, LeaseFault, Principal, Profile, ProviderKey, ProviderRevision, Revocation,
    RouteName, RunId, SealedLease, Slot, Target, TunnelId, WorkKey,
};
use proptest::prelude::*;
use zeroize::Zeroizing;

#[test]
fn a_secret_reaches_the_attempt_that_it_was_issued_for() {
    let mut both = Both::new();
    let lease = both.deliver();
    let opened = both.check_and_open(&lease).expect("opened");
    assert_eq!(opened.secret.header(), "authorization");
    assert_eq!(opened.secret.expose(), b"Bearer sk-canary-0123456789");
    assert_eq!(lease.sealed.len(), 272);
}

#[test]
fn neither_a_lease_nor_what_checks_it_prints_the_secret() {
    let mut both = Both::new();
    let lease = both.deliver();
    let checked = both.check(&lease).expect("a lease of this request");
    let printed = format!("{lease:?} {checked:?}");
    let opened = format!("{:?}", both.open(checked).expect("opened"));
    assert!(!printed.contains("canary") && !opened.contains("canary"));
}

#[test]
fn a_normalized_run_has_a_lease_that_no_tunnel_can_use() {
    let mut both = Both::new();
    let run = Subject { tunnel: None, ..subject() };
    let issued = both.issue_for(&scope(), run.clone());
    both.receive(&issued.grant.expect("the first")).expect("a grant of this link");
    let nil = TunnelId::from_slice(&[0; 16]).expect("16 bytes");
    for tunnel in [subject().tunnel, Some(nil)] {
        let other = Subject { tunnel, ..run.clone() };
        let refused = both.check_for(&issued.lease, &other, &binding()).map(|_| ());
        assert_eq!(refused, Err(LeaseFault::Mismatch), "{tunnel:?}");
    }
    let checked = both.check_for(&issued.lease, &run, &binding()).expect("its own request");
    assert!(both.open(checked).is_ok());
}

#[test]
fn every_claim_of_a_lease_is_bound_to_its_request() {
    // Taken apart: a new claim does not compile without a row.
    let Subject { principal, route, target, work, tunnel } = subject();
    let WorkKey { run_id, attempt } = work;
    let _ = (principal, route, target, run_id, attempt, tunnel);
    type Change = fn(&mut Subject);
    let rows: &[(&str, Change)] = &[
        ("principal", |subject| subject.principal = Principal::from("team-b")),
        ("route", |subject| subject.route = RouteName::from("other")),
        ("target", |subject| subject.target = Target::from("other")),
        ("run", |subject| subject.work.run_id = RunId::from_slice(&[9; 16]).expect("16 bytes")),
        ("attempt", |subject| subject.work.attempt = Attempt(2)),
        ("tunnel", |subject| {
            subject.tunnel = Some(TunnelId::from_slice(&[9; 16]).expect("16 bytes"));
        }),
        ("form", |subject| subject.tunnel = None),
    ];
    for (claim, change) in rows {
        let mut both = Both::new();
        let lease = both.deliver();
        let mut other = subject();
        change(&mut other);
        // Caller and route come beside the claims, the rest is the request's own.
        let moved = SealedLease {
            principal: other.principal.clone(),
            route: other.route.clone(),
            ..lease.clone()
        };
        let refused = both.check_for(&moved, &other, &binding()).map(|_| ());
        assert_eq!(refused, Err(LeaseFault::Mismatch), "{claim}");
        assert!(both.check_and_open(&lease).is_ok(), "{claim}: nothing was consumed");
    }
}

#[test]
fn every_part_of_the_providers_entry_is_bound() {
    let Binding { slot, profile, provider, origin, revision } = binding();
    let Profile { name, header, scheme } = profile;
    let _ = (slot, name, header, scheme, provider, origin, revision);
    type Change = fn(&mut Binding);
    let rows: &[(&str, Change)] = &[
        ("slot", |entry| entry.slot = Slot::from("other")),
        ("profile", |entry| entry.profile.name = "other".into()),
        ("header", |entry| entry.profile.header = "x-api-key".into()),
        ("scheme", |entry| entry.profile.scheme = String::new()),
        ("provider", |entry| entry.provider = ProviderKey::from("other")),
        ("scheme of the origin", |entry| {
            entry.origin = Origin::of("http://api.example.com:443").expect("an origin");
        }),
        ("host", |entry| {
            entry.origin = Origin::of("https://api.example.org").expect("an origin");
        }),
        ("port", |entry| {
            entry.origin = Origin::of("https://api.example.com:444").expect("an origin");
        }),
        ("revision", |entry| entry.revision = ProviderRevision(4)),
    ];
    for (part, change) in rows {
        let mut both = Both::new();
        let lease = both.deliver();
        let mut entry = binding();
        change(&mut entry);
        let refused = both.check_for(&lease, &subject(), &entry).map(|_| ());
        assert_eq!(refused, Err(LeaseFault::Mismatch), "{part}");
    }
}

#[test]
fn a_lease_opens_once() {
    let mut both = Both::new();
    let lease = both.deliver();
    assert!(both.check_and_open(&lease).is_ok());
    assert_eq!(both.check_and_open(&lease).map(|_| ()), Err(LeaseFault::Replayed));
}

#[test]
fn a_checked_lease_that_is_dropped_consumes_nothing() {
    let mut both = Both::new();
    let lease = both.deliver();
    drop(both.check(&lease).expect("a lease of this request"));
    assert!(both.check_and_open(&lease).is_ok());
}

#[test]
fn of_two_openings_at_once_exactly_one_wins() {
    for _ in 0..50 {
        let mut both = Both::new();
        let lease = both.deliver();
        let checked = [both.check(&lease), both.check(&lease)];
        let (now, generation) = (both.now, both.link.generation);
        let grants = Mutex::new(both.grants);
        let opened = std::thread::scope(|scope| {
            checked
                .map(|checked| {
                    let checked = checked.expect("a lease of this request");
                    scope.spawn(|| {
                        let mut grants = grants.lock().expect("nobody panicked");
                        grants.open(checked, now, generation).map(|_| ())
                    })
                })
                .map(|thread| thread.join().expect("nobody panicked"))
        });
        let mut ends = opened.to_vec();
        ends.sort_by_key(Result::is_err);
        assert_eq!(ends, [Ok(()), Err(LeaseFault::Replayed)]);
    }
}

#[test]
fn a_lease_is_good_until_before_its_end() {
    for (millis, end) in [(29_999, Ok(())), (30_000, Err(LeaseFault::Expired))] {
        let mut both = Both::new();
        let lease = both.deliver();
        both.advance(Duration::from_millis(millis));
        assert_eq!(both.check_and_open(&lease).map(|_| ()), end, "{millis}");
    }
}

#[test]
fn a_lease_that_waited_at_the_gate_until_its_end_does_not_open() {
    let mut both = Both::new();
    let lease = both.deliver();
    let checked = both.check(&lease).expect("a lease of this request");
    both.advance(30 * SECOND);
    assert_eq!(both.open(checked).map(|_| ()), Err(LeaseFault::Expired));
}

#[test]
fn a_lease_from_the_future_is_good_within_the_skew_only() {
    for (ahead_ms, end) in [(10_000, Ok(())), (10_001, Err(LeaseFault::NotYetValid))] {
        let mut both = Both::new();
        let (grant, key) = both.grant(&both.grant_claims());
        both.receive(&grant).expect("a grant of this link");
        let mut claims = both.lease_claims();
        claims.validity.not_before_ms += ahead_ms;
        claims.validity.expires_ms += ahead_ms;
        let lease = seal::lease(&claims, SECRET, &key).expect("sealed");
        assert_eq!(both.check(&lease).map(|_| ()), end, "{ahead_ms}");
    }
}

#[test]
fn a_lease_may_neither_outlive_its_grant_nor_two_minutes() {
    let mut both = Both::new();
    let mut short = both.grant_claims();
    short.validity = both.validity(60);
    let (grant, key) = both.grant(&short);
    both.receive(&grant).expect("a grant of this link");
    for (seconds, fault) in [(61, LeaseFault::Mismatch), (121, LeaseFault::Malformed)] {
        let claims = LeaseClaims { validity: both.validity(seconds), ..both.lease_claims() };
        let lease = seal::lease(&claims, SECRET, &key).expect("sealed");
        assert_eq!(both.check(&lease).map(|_| ()), Err(fault), "{seconds}");
    }
}

#[test]
fn a_lease_of_an_expired_grant_is_expired_not_unknown() {
    let mut both = Both::new();
    let lease = both.deliver();
    both.advance(600 * SECOND);
    both.grants.handle_edge_time(both.now_ms(), both.now);
    assert_eq!(both.check(&lease).map(|_| ()), Err(LeaseFault::Expired));
}

#[test]
fn a_revocation_between_check_and_opening_cuts() {
    let mut both = Both::new();
    let issued = both.issue();
    let (lease_id, grant_id) = (issued.lease_id, issued.grant_id);
    for revocation in [
        Revocation::Lease(lease_id.0),
        Revocation::Grant(grant_id.0),
        Revocation::Slot(binding().slot),
        Revocation::Profile(binding().profile.name),
        Revocation::Principal(subject().principal),
        Revocation::Below { slot: binding().slot, revision: 3 },
    ] {
        let mut both = Both::new();
        let lease = both.deliver();
        let checked = both.check(&lease).expect("a lease of this request");
        both.grants.handle_revocation(revocation.clone(), both.now);
        assert_eq!(both.open(checked).map(|_| ()), Err(LeaseFault::Revoked), "{revocation:?}");
        assert_eq!(both.check(&lease).map(|_| ()), Err(LeaseFault::Revoked), "{revocation:?}");
    }
}

#[test]
fn a_revocation_of_something_else_cuts_nothing_and_one_of_this_tells_the_call() {
    let mut both = Both::new();
    let lease = both.deliver();
    for revocation in [
        Revocation::Lease([0; 16]),
        Revocation::Grant([0; 16]),
        Revocation::Slot(Slot::from("other")),
        Revocation::Profile("other".into()),
        Revocation::Principal(Principal::from("team-b")),
        Revocation::Below { slot: binding().slot, revision: 2 },
        Revocation::Below { slot: Slot::from("other"), revision: 9 },
    ] {
        both.grants.handle_revocation(revocation.clone(), both.now);
        let scope = both.check(&lease).map(|_| ());
        assert_eq!(scope, Ok(()), "{revocation:?}");
    }
    let scope = both.check_and_open(&lease).expect("opened").scope;
    assert!(scope.is_hit_by(&Revocation::Lease(scope.lease.0)));
    assert!(scope.is_hit_by(&Revocation::Grant(scope.grant.0)));
    assert!(scope.is_hit_by(&Revocation::Principal(subject().principal)));
    assert!(scope.is_hit_by(&Revocation::Below { slot: binding().slot, revision: 3 }));
    assert!(!scope.is_hit_by(&Revocation::Below { slot: binding().slot, revision: 2 }));
}

#[test]
fn a_flood_of_revocations_voids_everything_made_so_far_rather_than_forget_one() {
    let mut both = Both::new();
    let lease = both.deliver();
    for number in 0..=4096_u128 {
        let revocation = Revocation::Lease(number.to_be_bytes());
        both.grants.handle_revocation(revocation, both.now);
    }
    assert_eq!(both.check(&lease).map(|_| ()), Err(LeaseFault::Revoked));
    both.advance(SECOND);
    both.issuer.forget(&scope());
    let lease = both.deliver();
    assert!(both.check_and_open(&lease).is_ok());
}

#[test]
fn a_lease_that_was_checked_does_not_open_on_a_later_generation() {
    let mut both = Both::new();
    let lease = both.deliver();
    let checked = both.check(&lease).expect("a lease of this request");
    let opened = both.grants.open(checked, both.now, Generation(5));
    assert_eq!(opened.map(|_| ()), Err(LeaseFault::Stale));
}

#[test]
fn a_lease_means_nothing_on_the_next_link() {
    let mut before = Both::new();
    let lease = before.deliver();
    let checked = before.check(&lease).expect("a lease of this request");
    let mut after = Both::on(ThisLink { generation: Generation(5), ..link() }, 4096);
    assert_eq!(after.check(&lease).map(|_| ()), Err(LeaseFault::UnknownGrant));
    assert_eq!(after.open(checked).map(|_| ()), Err(LeaseFault::UnknownGrant));
}

#[test]
fn a_full_replay_memory_refuses_and_forgets_nothing_that_lives() {
    let mut both = Both::with_replay_bound(2);
    let leases = [both.deliver(), both.deliver(), both.deliver()];
    assert!(both.check_and_open(&leases[0]).is_ok());
    assert!(both.check_and_open(&leases[1]).is_ok());
    let full = both.check_and_open(&leases[2]).map(|_| ());
    assert_eq!(full, Err(LeaseFault::ReplayCacheFull));
    assert_eq!(both.check_and_open(&leases[0]).map(|_| ()), Err(LeaseFault::Replayed));
    both.advance(35 * SECOND);
    let lease = both.deliver();
    assert!(both.check_and_open(&lease).is_ok());
}

#[test]
fn the_replay_memory_grows_with_what_may_be_in_flight() {
    assert_eq!(iop_lease::replay_bound(4096), 262_144);
    assert_eq!(iop_lease::replay_bound(100_000), 400_000);
    assert_eq!(iop_lease::replay_bound(usize::MAX), usize::MAX);
}

#[test]
fn every_bit_of_a_lease_counts() {
    let mut both = Both::new();
    let lease = both.deliver();
    let mut refuse = |lease: SealedLease| {
        assert!(both.check_and_open(&lease).is_err(), "{lease:?}");
    };
    for bit in 0..lease.claims.len() * 8 {
        refuse(SealedLease { claims: flip(&lease.claims, bit), ..lease.clone() });
    }
    for bit in 0..lease.sealed.len() * 8 {
        refuse(SealedLease { sealed: flip(&lease.sealed, bit), ..lease.clone() });
    }
}

#[test]
fn a_truncated_lease_is_refused() {
    let mut both = Both::new();
    let lease = both.deliver();
    for end in 0..lease.claims.len() {
        let cut = SealedLease { claims: lease.claims.slice(..end), ..lease.clone() };
        assert_eq!(both.check(&cut).map(|_| ()), Err(LeaseFault::Malformed), "{end}");
    }
    // On a link of its own each, so that no opening is taken for a replay.
    for end in 0..lease.sealed.len() {
        let mut both = Both::new();
        let lease = both.deliver();
        let cut = SealedLease { sealed: lease.sealed.slice(..end), ..lease };
        assert_eq!(both.check_and_open(&cut).map(|_| ()), Err(LeaseFault::OpenFailed), "{end}");
    }
}

#[test]
fn an_oversized_lease_is_refused_unread() {
    let mut both = Both::new();
    let lease = both.deliver();
    let claims = SealedLease { claims: vec![0; 4097].into(), ..lease.clone() };
    let sealed = SealedLease { sealed: vec![0; 8 * 1024 + 17].into(), ..lease };
    for large in [claims, sealed] {
        assert_eq!(both.check(&large).map(|_| ()), Err(LeaseFault::Unsupported));
    }
}

#[test]
fn unknown_claims_that_somebody_adds_are_noticed_by_the_seal() {
    let mut both = Both::new();
    let lease = both.deliver();
    let mut claims = lease.claims.to_vec();
    claims.extend([0x58, 7]); // 11: 7
    let added = SealedLease { claims: claims.into(), ..lease };
    assert_eq!(both.check_and_open(&added).map(|_| ()), Err(LeaseFault::OpenFailed));
}

#[test]
fn a_lease_under_another_grants_key_does_not_open() {
    let mut both = Both::new();
    let (grant, _) = both.grant(&both.grant_claims());
    both.receive(&grant).expect("a grant of this link");
    let (_, other_key) = both.grant(&both.grant_claims());
    let lease = seal::lease(&both.lease_claims(), SECRET, &other_key).expect("sealed");
    assert_eq!(both.check_and_open(&lease).map(|_| ()), Err(LeaseFault::OpenFailed));
}

#[test]
fn the_bytes_are_those_of_the_documentation() {
    let (mut both, seed) = seeded();
    let (grant, key) = both.grant(&both.grant_claims());
    let lease = seal::lease(&both.lease_claims(), SECRET, &key).expect("sealed");
    let grant_key = second_opinion(&both, &grant.claims, &grant.encapsulation, &seed);

    let padded = layout::open(&grant_key, &grant.claims, &lease.claims, &lease.sealed)
        .expect("the same key, nonce and authenticated bytes");
    let mut expected = vec![0, u8::try_from(SECRET.len()).expect("short")];
    expected.extend_from_slice(SECRET);
    expected.resize(256, 0);
    assert_eq!(padded, expected);
    let signed =
        layout::sign(grant.claims.clone(), &grant.encapsulation[..].try_into().expect("32"));
    assert_eq!(signed, grant);
}

#[test]
fn an_edge_that_seals_what_is_no_header_value_is_refused() {
    for padded in [
        padded(0, b""),
        padded(5, b"sk\r\nx"),
        padded(3, b"s\0k"),
        padded(2, b"skx"),
        padded(300, b"sk"),
        vec![0, 2, b's', b'k'],
        Vec::new(),
    ] {
        let (mut both, seed) = seeded();
        let (grant, _) = both.grant(&both.grant_claims());
        both.receive(&grant).expect("a grant of this link");
        let claims = both.lease_claims().encode();
        let key = second_opinion(&both, &grant.claims, &grant.encapsulation, &seed);
        let sealed = layout::seal(&key, &grant.claims, &claims, &padded).into();
        let Subject { principal, route, .. } = subject();
        let lease = SealedLease { principal, route, claims, sealed };
        assert_eq!(both.check_and_open(&lease).map(|_| ()), Err(LeaseFault::OpenFailed));
    }
}

proptest! {
    #[test]
    fn no_bytes_are_a_lease_but_those_that_were_issued(
        claims in proptest::collection::vec(any::<u8>(), 0..300),
        sealed in proptest::collection::vec(any::<u8>(), 0..600),
        takes_claims in any::<bool>(),
    ) {
        let mut both = Both::new();
        let lease = both.deliver();
        let claims = if takes_claims { lease.claims.clone() } else { Bytes::from(claims) };
        let forged = SealedLease { claims, sealed: sealed.into(), ..lease };
        prop_assert!(both.check_and_open(&forged).is_err());
    }

    #[test]
    fn any_secret_that_fits_a_header_comes_through(
        secret in proptest::collection::vec(0x20_u8..0x7f, 1..1000),
    ) {
        let mut both = Both::new();
        let (grant, key) = both.grant(&both.grant_claims());
        both.receive(&grant).expect("a grant of this link");
        let lease = seal::lease(&both.lease_claims(), &secret, &key).expect("sealed");
        let opened = both.check_and_open(&lease).expect("opened");
        prop_assert_eq!(&opened.secret.expose()[b"Bearer ".len()..], &secret[..]);
    }
}

fn padded(length: u16, secret: &[u8]) -> Vec<u8> {
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend_from_slice(secret);
    bytes.resize(256, 0);
    bytes
}

/// A link whose recipient seed is known.
fn seeded() -> (Both, [u8; 32]) {
    let mut both = Both::new();
    let seed = [42; 32];
    let time = EdgeTime::new(START_MS, both.start);
    let trusted = vec![trusted(&both.signer)];
    both.grants = Grants::new(link(), trusted, time, &Zeroizing::new(seed), 4096, both.start);
    (both, seed)
}

/// The grant key as anybody with the recipient's seed derives it from the documentation.
fn second_opinion(both: &Both, claims: &[u8], encapsulation: &[u8], seed: &[u8; 32]) -> [u8; 32] {
    let (secret, public) = X25519HkdfSha256::derive_keypair(seed);
    let public: [u8; 32] = hpke::Serializable::to_bytes(&public).into();
    let encapsulation =
        <X25519HkdfSha256 as Kem>::EncappedKey::from_bytes(encapsulation).expect("32 bytes");
    let info = layout::info(&both.link.trust_domain, &public, claims);
    let context = setup_receiver::<ExportOnlyAead, HkdfSha256, X25519HkdfSha256>(
        &OpModeR::Base,
        &secret,
        &encapsulation,
        &info,
    )
    .expect("a key");
    let mut key = [0; 32];
    context.export(b"IOP/grant/key/v1\0", &mut key).expect("32 bytes");
    key
}
