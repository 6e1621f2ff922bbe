use super::*;
use crate::certificate::{IdentityError, PeerIdentity};

const DAY: Duration = Duration::from_secs(86_400);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn domain() -> TrustDomain {
    TrustDomain::new("home").unwrap()
}

fn authority() -> Authority {
    Authority::create(domain(), &[1; 32], &Serial::from_random([1; 16]), now()).unwrap()
}

fn key() -> IdentityKey {
    IdentityKey::from_seed(&[2; 32])
}

fn id(kind: Kind, id: &str) -> SpiffeId {
    SpiffeId::new(domain(), kind, id).unwrap()
}

fn issue(kind: Kind, life: Duration) -> Result<CertificateDer<'static>, IssueError> {
    let serial = Serial::from_random([9; 16]);
    authority().issue(&id(kind, "lab"), &key().public(), &serial, life, now())
}

#[test]
fn an_issued_certificate_names_whom_it_was_issued_to() {
    for kind in [Kind::Edge, Kind::Node] {
        let leaf = issue(kind, DAY).unwrap();
        let peer = PeerIdentity::read(&leaf, &domain(), kind).unwrap();
        assert_eq!(peer.id, id(kind, "lab"));
        assert_eq!(peer.key, key().public());
        assert_eq!(peer.serial, Serial::from_random([9; 16]));
        assert_eq!(peer.not_before, now() - BACK_DATED);
        assert_eq!(peer.not_after, now() + DAY);
    }
}

#[test]
fn a_certificate_is_for_its_own_group_and_its_own_side_of_the_link() {
    let leaf = issue(Kind::Node, DAY).unwrap();
    let wrong_kind = PeerIdentity::read(&leaf, &domain(), Kind::Edge).unwrap_err();
    assert_eq!(wrong_kind.as_str(), "wrong_kind");
    let other = TrustDomain::new("work").unwrap();
    let foreign = PeerIdentity::read(&leaf, &other, Kind::Node).unwrap_err();
    assert_eq!(foreign.as_str(), "foreign_group");
}

#[test]
fn a_life_out_of_range_is_refused() {
    for life in [Duration::ZERO, Duration::from_millis(999), LONGEST_LIFE + DAY] {
        assert!(matches!(issue(Kind::Node, life), Err(IssueError::Life(_))), "{life:?}");
    }
    assert!(issue(Kind::Node, Duration::from_secs(1)).is_ok());
}

#[test]
fn no_certificate_outlives_its_ca() {
    let late = now() + ROOT_LIFE - DAY;
    let serial = Serial::from_random([9; 16]);
    let issue =
        |life| authority().issue(&id(Kind::Node, "lab"), &key().public(), &serial, life, late);
    assert!(issue(DAY).is_ok());
    assert!(matches!(issue(2 * DAY), Err(IssueError::RootEnds)));
}

#[test]
fn a_ca_is_taken_up_with_its_own_key_only() {
    let made = authority();
    let root = made.root().der().clone();
    let again = Authority::restore(domain(), &[1; 32], root.clone()).unwrap();
    assert_eq!((again.pin(), again.public_key()), (made.pin(), made.public_key()));
    let refused = Authority::restore(domain(), &[2; 32], root).unwrap_err();
    assert_eq!(refused, RootError::OtherKey);
    let leaf = issue(Kind::Node, DAY).unwrap();
    assert_eq!(Authority::restore(domain(), &[2; 32], leaf).unwrap_err(), RootError::NoAuthority);
}

#[test]
fn the_group_signs_statements_that_its_public_key_verifies() {
    let authority = authority();
    let signature = authority.sign(b"statement");
    assert!(PublicKey(authority.public_key()).verifies(b"statement", &signature));
}

#[test]
fn the_pin_of_a_root_is_that_of_its_key() {
    let authority = authority();
    assert_eq!(crate::certificate::pin(authority.root().der()).unwrap(), authority.pin());
    assert_eq!(PublicKey(authority.public_key()).pin(), authority.pin());
}

/// Issues what an [`Authority`] never would.
fn forged(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
    let authority = authority();
    let mut params = blank(&Serial::from_random([9; 16]), now(), DAY).unwrap();
    params.subject_alt_names = vec![uri("spiffe://home/iop/node/lab")];
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    change(&mut params);
    params.signed_by(&key(), &authority.issuer).unwrap().into()
}

fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().unwrap())
}

fn refused(change: impl FnOnce(&mut CertificateParams)) -> &'static str {
    PeerIdentity::read(&forged(change), &domain(), Kind::Node).unwrap_err().as_str()
}

#[test]
fn every_departure_from_the_shape_of_an_identity_has_its_own_word() {
    assert!(PeerIdentity::read(&forged(|_| {}), &domain(), Kind::Node).is_ok());
    assert_eq!(refused(|params| params.subject_alt_names.clear()), "no_uri_name");
    let dns = || SanType::DnsName("lab".try_into().unwrap());
    assert_eq!(refused(|params| params.subject_alt_names = vec![dns()]), "no_uri_name");
    let second = || uri("spiffe://home/iop/node/den");
    assert_eq!(refused(|params| params.subject_alt_names.push(second())), "several_uri_names");
    let web = || uri("https://home/iop/node/lab");
    assert_eq!(refused(|params| params.subject_alt_names = vec![web()]), "not_an_identity");
    let any = || IsCa::Ca(BasicConstraints::Unconstrained);
    assert_eq!(refused(|params| params.is_ca = any()), "certificate_of_ca");
    assert_eq!(refused(|params| params.key_usages.clear()), "key_usage");
    let sign = KeyUsagePurpose::KeyCertSign;
    assert_eq!(refused(|params| params.key_usages.push(sign)), "key_usage");
    assert_eq!(refused(|params| params.extended_key_usages.clear()), "extended_key_usage");
    assert_eq!(refused(|params| drop(params.extended_key_usages.pop())), "extended_key_usage");
}

#[test]
fn a_key_of_another_kind_is_refused() {
    let authority = authority();
    let other = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = blank(&Serial::from_random([9; 16]), now(), DAY).unwrap();
    params.subject_alt_names = vec![uri("spiffe://home/iop/node/lab")];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let leaf: CertificateDer<'_> = params.signed_by(&other, &authority.issuer).unwrap().into();
    let refused = PeerIdentity::read(&leaf, &domain(), Kind::Node);
    assert_eq!(refused, Err(IdentityError::KeyType));
}

#[test]
fn a_certificate_that_was_cut_is_refused() {
    let leaf = issue(Kind::Node, DAY).unwrap();
    for length in 0..leaf.len() {
        let refused = PeerIdentity::read(&leaf[..length], &domain(), Kind::Node);
        assert_eq!(refused, Err(IdentityError::Malformed), "{length} bytes");
    }
}
