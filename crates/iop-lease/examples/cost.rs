//! What a grant and a lease cost, beside SHA-256 of 1 KiB on the same machine.
//!
//! `cargo run --release -p iop-lease --example cost`

#![expect(clippy::print_stdout, reason = "it is for reading")]

use std::convert::Infallible;
use std::hint::black_box;
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{ChaCha20Poly1305, KeyInit};
use ed25519_dalek::{Signer as _, SigningKey};
use hkdf::Hkdf;
use iop_lease::{
    Binding, EdgeTime, GrantScope, Grants, Issuer, Origin, Recipient, Signer, Subject, ThisLink,
    ThisRequest, TrustedSigner,
};
use iop_types::{
    Attempt, EdgeBootId, Generation, NodeId, Principal, Profile, ProviderKey, ProviderRevision,
    RouteName, RunId, Slot, Target, WorkKey,
};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

const ROUNDS: u32 = 2_000;
const NOW_MS: i64 = 1_800_000_000_000;

fn main() {
    let unit = measure(ROUNDS * 20, || {
        let _ = black_box(Sha256::digest(black_box([7; 1024])));
    });
    println!("{:<44} {:>9} {:>10}", "", "us", "x SHA-256");
    let print = |what: &str, took: Duration| {
        let micros = took.as_secs_f64() * 1e6;
        println!("{what:<44} {micros:>9.2} {:>10.1}", took.as_secs_f64() / unit.as_secs_f64());
    };
    print("SHA-256 of 1 KiB", unit);

    let now = Instant::now();
    let (mut issuer, mut grants) = ends(now);
    let mut rng = fastrand::Rng::with_seed(1);
    let (scope, subject) = (scope(), subject());
    let seed = Zeroizing::new([3; 32]);
    print(
        "recipient key (Node, a link and each hour)",
        measure(ROUNDS, || {
            drop(black_box(Recipient::from_seed(&seed)));
        }),
    );

    let mut made = Vec::new();
    let mut issue = |issuer: &mut Issuer| {
        let mut random = |bytes: &mut [u8]| rng.fill(bytes);
        let life = Duration::from_secs(30);
        let subject = subject.clone();
        issuer.issue(&scope, subject, b"sk-0123456789", life, NOW_MS, &mut random).expect("issued")
    };
    print(
        "grant and lease (Edge, a scope and 9 minutes)",
        measure(ROUNDS, || {
            issuer.forget(&scope);
            made.push(issue(&mut issuer));
        }),
    );
    let mut received = made.iter();
    print(
        "grant (Node)",
        measure(ROUNDS, || {
            let issued = received.next().expect("one a round");
            grants.handle_grant(issued.grant.as_ref().expect("made anew"), now).expect("good");
        }),
    );

    let mut leases = Vec::new();
    print("lease (Edge, each attempt)", measure(ROUNDS, || leases.push(issue(&mut issuer).lease)));
    let request = ThisRequest {
        work: subject.work,
        tunnel: None,
        target: &subject.target,
        binding: &scope.binding,
    };
    let mut checked = Vec::new();
    let mut next = leases.iter();
    print(
        "lease checked (Node, each attempt)",
        measure(ROUNDS, || {
            checked.push(
                grants.check(next.next().expect("one a round"), &request, now).expect("good"),
            );
        }),
    );
    print(
        "lease opened (Node, each attempt)",
        measure(ROUNDS, || {
            let checked = checked.pop().expect("one a round");
            drop(grants.open(checked, now, Generation(1)).expect("opened"));
        }),
    );

    println!("\nHKDF-Expand of 44 bytes and the seal of 256:");
    print("aws-lc-rs", measure(ROUNDS * 10, aws));
    print("RustCrypto", measure(ROUNDS * 10, rust_crypto));
}

/// The mean of so many rounds.
fn measure(rounds: u32, mut round: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..rounds {
        round();
    }
    start.elapsed() / rounds
}

fn aws() {
    struct Length;
    impl KeyType for Length {
        fn len(&self) -> usize {
            44
        }
    }
    let mut okm = [0; 44];
    let key = Prk::new_less_safe(HKDF_SHA256, &black_box([1; 32]));
    key.expand(&[&[2; 49]], Length).and_then(|derived| derived.fill(&mut okm)).expect("44 bytes");
    let (key, nonce) = okm.split_at(32);
    let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key).expect("32 bytes"));
    let nonce = Nonce::try_assume_unique_for_key(nonce).expect("12 bytes");
    let mut padded = [0; 256];
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from([3; 150]), &mut padded);
    let _ = black_box((padded, tag.expect("sealed")));
}

fn rust_crypto() {
    let mut okm = [0; 44];
    let key = Hkdf::<Sha256>::from_prk(&black_box([1; 32])).expect("32 bytes");
    key.expand(&[2; 49], &mut okm).expect("44 bytes");
    let (key, nonce) = okm.split_at(32);
    let key = ChaCha20Poly1305::new_from_slice(key).expect("32 bytes");
    let nonce: [u8; 12] = nonce.try_into().expect("12 bytes");
    let mut padded = [0; 256];
    let tag = key.encrypt_inout_detached(&nonce.into(), &[3; 150], padded[..].as_mut().into());
    let _ = black_box((padded, tag.expect("sealed")));
}

fn ends(now: Instant) -> (Issuer, Grants) {
    let ca = SigningKey::from_bytes(&[9; 32]);
    let sign = |bytes: &[u8]| Ok::<_, Infallible>(ca.sign(bytes).to_bytes().to_vec());
    let Ok(signer) = Signer::vouched(&[1; 32], "edge", NOW_MS - 1_000, NOW_MS + 600_000, sign);
    let public = ca.verifying_key().to_bytes();
    let trusted = TrustedSigner::verify(signer.statement(), "edge", &public).expect("vouched for");
    let link = ThisLink {
        trust_domain: "home".into(),
        edge: "edge".into(),
        boot: EdgeBootId::from_slice(&[1; 16]).expect("16 bytes"),
        node: NodeId::from("node"),
        generation: Generation(1),
    };
    let time = EdgeTime::new(NOW_MS, now);
    let seed = Zeroizing::new([2; 32]);
    let bound = iop_lease::replay_bound(0);
    let grants = Grants::new(link.clone(), vec![trusted], time, &seed, bound, now);
    (Issuer::new(link, signer.into(), grants.recipient()), grants)
}

fn scope() -> GrantScope {
    GrantScope {
        binding: Binding {
            slot: Slot::from("openai"),
            profile: Profile {
                name: "bearer".into(),
                header: "authorization".into(),
                scheme: "Bearer".into(),
            },
            provider: ProviderKey::from("cloud"),
            origin: Origin::of("https://api.example.com/v1").expect("an origin"),
            revision: ProviderRevision(3),
        },
        credential_revision: 2,
    }
}

fn subject() -> Subject {
    Subject {
        principal: Principal::from("team-a"),
        route: RouteName::from("chat"),
        target: Target::from("gpt-x"),
        work: WorkKey {
            run_id: RunId::from_slice(&[5; 16]).expect("16 bytes"),
            attempt: Attempt::FIRST,
        },
        tunnel: None,
    }
}
