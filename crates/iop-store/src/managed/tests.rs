//! The store as a whole: what is refused, what survives, and what lies on the disk.

mod race;

use std::path::{Path, PathBuf};

use iop_types::{NodeId, Profile, Slot};
use iop_vault::audit::Broken;
use iop_vault::{MasterKey, PresentedKey, Secret};
use jiff::Timestamp;
use rusqlite::Connection;

use super::*;

const CANARY: &str = "sk-canary-7f3a91c2d4e5";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("in range")
}

fn act() -> Act {
    Act { who: "admin".into(), at: at(0) }
}

fn key(byte: u8) -> Found {
    Found::given(MasterKey::from_bytes([byte; 32]))
}

fn founding() -> Founding {
    let authority = |kind, name: &str| Authority {
        kind,
        name: name.into(),
        role: AuthorityRole::Current,
        public: b"public".to_vec(),
        secret: Secret::from(format!("{CANARY}-{name}")),
        valid_from: at(0),
        valid_until: at(1000),
    };
    Founding {
        group: "home".into(),
        edge: "edge-1".into(),
        authorities: vec![
            authority(AuthorityKind::Ca, "ca-1"),
            authority(AuthorityKind::Edge, "edge-1"),
            authority(AuthorityKind::LeaseSigner, "signer-1"),
        ],
    }
}

struct Home {
    store: ManagedStore,
    file: PathBuf,
    _dir: tempfile::TempDir,
}

fn home() -> Home {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join(FILE);
    let store =
        ManagedStore::initialise_at(&file, key(1), founding(), &act()).expect("initialises");
    Home { store, file, _dir: dir }
}

impl Home {
    /// Does to the file what somebody beside the process might.
    fn tamper(&self, sql: &str) {
        let other = Connection::open(&self.file).expect("opens");
        other.execute_batch(sql).expect("runs");
    }
}

fn slot(name: &str) -> Slot {
    Slot::from(name)
}

fn bearer() -> Profile {
    Profile { name: "bearer".into(), header: "authorization".into(), scheme: "Bearer".into() }
}

async fn set(store: &ManagedStore, name: &str, secret: &str) -> Credential {
    store
        .set_credential(&act(), &slot(name), bearer(), Secret::from(secret.to_owned()))
        .await
        .expect("set")
}

async fn secret_of(store: &ManagedStore, name: &str) -> Vec<u8> {
    store.open_credential(&slot(name)).await.expect("opens").secret.expose().to_vec()
}

fn new_key() -> NewKey {
    NewKey {
        name: "laptop".into(),
        scope: KeyScope::default(),
        limits: KeyLimits::default(),
        expires: Some(at(100)),
    }
}

fn certificate(number: u8) -> Certificate {
    Certificate {
        serial: vec![number; 16],
        key_hash: [number; 32],
        der: vec![number; 40],
        not_before: at(0),
        not_after: at(500),
    }
}

async fn enrol(store: &ManagedStore, name: &str, number: u8) -> Result<Enrolled, IdentityError> {
    let new = NewIdentity {
        name: name.into(),
        kind: IdentityKind::Node,
        egress: vec!["127.0.0.0/8".into()],
        certificate: certificate(number),
    };
    store.enrol(&act(), new).await
}

async fn renew(store: &ManagedStore, seq: u64, number: u8) -> Result<Renewed, IdentityError> {
    let certificate = certificate(number);
    store.renew(&act(), Renewal { name: "lab".into(), renewal_seq: seq, certificate }).await
}

fn invitation(number: u8, attempts: u32) -> NewInvitation {
    NewInvitation {
        id: InvitationId([number; 16]),
        secret_hash: [number; 32],
        node: "lab".into(),
        egress: Vec::new(),
        expires: at(60),
        attempts,
    }
}

#[tokio::test]
async fn what_was_kept_is_there_after_a_restart() {
    let Home { store, file, _dir } = home();
    set(&store, "openrouter", CANARY).await;
    enrol(&store, "lab", 1).await.expect("enrols");
    let made = store.create_key(&act(), new_key()).await.expect("made");
    let before = store.verify_audit().await.expect("whole");
    store.close().await;

    let store = ManagedStore::open_at(&file, key(1)).expect("opens");
    assert_eq!((store.group(), store.edge()), ("home", "edge-1"));
    assert_eq!(secret_of(&store, "openrouter").await, CANARY.as_bytes());
    let signers = store.authorities(AuthorityKind::LeaseSigner).await.expect("opens");
    assert_eq!(signers[0].secret.expose(), format!("{CANARY}-signer-1").as_bytes());
    assert!(store.snapshot().is_active(&NodeId::from("lab")));
    let presented = PresentedKey::parse(made.key.reveal()).expect("a key");
    let known = store.snapshot().recognise(store.pepper(), &presented, at(1)).expect("known");
    assert_eq!(*known, made.info);
    assert_eq!(store.verify_audit().await.expect("whole"), before);
}

#[tokio::test]
async fn another_master_key_opens_nothing_and_changes_nothing() {
    let Home { store, file, _dir } = home();
    store.close().await;
    let error = ManagedStore::open_at(&file, key(2)).expect_err("another key");
    assert!(matches!(error, OpenError::WrongMasterKey { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("managed.db") && text.contains("backup"), "{text}");
    let error = ManagedStore::initialise_at(&file, key(2), founding(), &act()).expect_err("there");
    assert!(matches!(error, OpenError::AlreadyInitialised { .. }), "{error}");
    ManagedStore::open_at(&file, key(1)).expect("still opens");
}

#[test]
fn a_store_that_is_not_there_is_not_made_by_opening() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join(FILE);
    let error = ManagedStore::open_at(&file, key(1)).expect_err("nothing there");
    assert!(error.to_string().contains("iop edge init"), "{error}");
    assert!(!file.exists());
}

#[tokio::test]
async fn rows_exchanged_between_slots_do_not_open() {
    let home = home();
    set(&home.store, "one", "first-secret").await;
    set(&home.store, "two", "second-secret").await;
    home.tamper(
        "CREATE TEMP TABLE t AS SELECT slot, sealed, row_id FROM credentials;
         UPDATE credentials SET (sealed, row_id) = (SELECT sealed, row_id FROM t WHERE t.slot =
             CASE credentials.slot WHEN 'one' THEN 'two' ELSE 'one' END);",
    );
    for name in ["one", "two"] {
        let error = home.store.open_credential(&slot(name)).await.expect_err("exchanged");
        let damaged = matches!(error, CredentialError::Store(StoreError::Damaged { .. }));
        assert!(damaged, "{error}");
    }
}

#[tokio::test]
async fn a_column_put_back_alone_does_not_open_nor_does_the_whole_row() {
    let home = home();
    set(&home.store, "one", "first-secret").await;
    home.tamper("CREATE TABLE old AS SELECT * FROM credentials");
    let rotated = home
        .store
        .rotate_credential(&act(), &slot("one"), Secret::from("second-secret".to_owned()))
        .await
        .expect("rotates");
    assert_eq!(rotated.revision, 2);
    home.tamper("CREATE TABLE new AS SELECT * FROM credentials");
    for columns in ["sealed", "row_id", "sealed, row_id", "revision"] {
        home.tamper(&format!("UPDATE credentials SET ({columns}) = (SELECT {columns} FROM old)"));
        home.store.open_credential(&slot("one")).await.expect_err(columns);
        home.tamper("UPDATE credentials SET (sealed, row_id, revision) = (SELECT sealed, row_id, revision FROM new)");
        assert_eq!(secret_of(&home.store, "one").await, b"second-secret");
    }
    home.tamper("DELETE FROM credentials; INSERT INTO credentials SELECT * FROM old");
    let error = home.store.open_credential(&slot("one")).await.expect_err("put back");
    assert!(matches!(error, CredentialError::PutBack { found: 1, known: 2, .. }), "{error}");
}

#[tokio::test]
async fn a_slot_goes_its_way_and_its_revision_never_falls() {
    let Home { store, .. } = home();
    let one = slot("one");
    assert_eq!(set(&store, "one", CANARY).await.revision, 1);
    store.disable_credential(&act(), &one).await.expect("disables");
    let error = store.open_credential(&one).await.expect_err("disabled");
    assert!(matches!(error, CredentialError::NotActive { state: CredentialState::Disabled, .. }));
    let secret = || Secret::from("another".to_owned());
    let rotated = store.rotate_credential(&act(), &one, secret()).await.expect("rotates");
    assert_eq!((rotated.revision, rotated.state), (2, CredentialState::Disabled));
    store.enable_credential(&act(), &one).await.expect("enables");
    assert_eq!(secret_of(&store, "one").await, b"another");
    store.revoke_credential(&act(), &one).await.expect("revokes");
    store.enable_credential(&act(), &one).await.expect_err("revoked");
    store.rotate_credential(&act(), &one, secret()).await.expect_err("revoked");
    store.open_credential(&one).await.expect_err("revoked");
    assert_eq!(set(&store, "one", "third").await.revision, 3);
}

#[tokio::test]
async fn what_cannot_stand_in_a_header_is_no_secret_and_no_profile() {
    let Home { store, .. } = home();
    for secret in ["", "a b", "a\r\nx: y", "a\0", "ü", &"x".repeat(4097)] {
        let secret = Secret::from(secret.to_owned());
        let refused = store.set_credential(&act(), &slot("one"), bearer(), secret).await;
        assert!(matches!(refused, Err(CredentialError::Malformed { .. })), "{refused:?}");
    }
    for (header, scheme) in [("", ""), ("Authorization", ""), ("a b", ""), ("x", "Bearer x")] {
        let profile = Profile { name: "p".into(), header: header.into(), scheme: scheme.into() };
        let secret = Secret::from("secret".to_owned());
        let refused = store.set_credential(&act(), &slot("one"), profile, secret).await;
        assert!(matches!(refused, Err(CredentialError::MalformedProfile { .. })), "{refused:?}");
    }
    assert!(store.snapshot().credentials.is_empty());
}

#[tokio::test]
async fn neither_file_nor_log_nor_write_ahead_log_holds_a_secret() {
    let home = home();
    set(&home.store, "one", CANARY).await;
    let made = home.store.create_key(&act(), new_key()).await.expect("made");
    let secret = made.key.reveal().rsplit('_').next().expect("parts").to_owned();
    let names = std::fs::read_dir(home.file.parent().expect("a directory")).expect("lists");
    let mut files = 0;
    for name in names {
        let bytes = std::fs::read(name.expect("a name").path()).expect("reads");
        for canary in [CANARY, &secret[..43]] {
            assert!(!bytes.windows(canary.len()).any(|part| part == canary.as_bytes()));
        }
        files += 1;
    }
    assert!(files >= 2, "the write-ahead log is there: {files}");
    let page = home.store.audit_page(None, 100).await.expect("reads");
    let shown = format!("{page:?} {:?}", home.store.snapshot());
    assert!(!shown.contains(CANARY) && !shown.contains(&secret[..43]), "{shown}");
}

#[cfg(unix)]
#[tokio::test]
async fn files_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let home = home();
    for suffix in ["", "-wal"] {
        let path = format!("{}{suffix}", home.file.display());
        let mode = Path::new(&path).metadata().expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{path}");
    }
}

#[tokio::test]
async fn a_full_disk_and_a_read_only_file_refuse_every_change_and_keep_what_is() {
    for pragma in ["PRAGMA query_only = 1", "PRAGMA max_page_count = 1"] {
        let Home { store, .. } = home();
        let made = store.create_key(&act(), new_key()).await.expect("made");
        store
            .ask(move |keeper| Ok::<_, StoreError>(keeper.connection.execute_batch(pragma)?))
            .await
            .expect("set");
        let before = store.snapshot().number;
        // Enough to need new pages where only some are free.
        let secret = || Secret::from("x".repeat(4096));
        let mut refused = 0;
        for number in 0..20 {
            let slot = slot(&format!("slot-{number}"));
            match store.set_credential(&act(), &slot, bearer(), secret()).await {
                Err(CredentialError::Store(error)) => {
                    assert!(error.is_retryable(), "{error}");
                    store.open_credential(&slot).await.expect_err("nothing was changed");
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
                Ok(_) => {}
            }
        }
        assert!(refused > 0, "{pragma}");
        let presented = PresentedKey::parse(made.key.reveal()).expect("a key");
        store.snapshot().recognise(store.pepper(), &presented, at(1)).expect("still known");
        let written = store.snapshot().number - before;
        assert_eq!(written + refused, 20, "{pragma}");
        store.verify_audit().await.expect("no half entry");
    }
}

#[tokio::test]
async fn a_revoked_key_lets_in_nobody_once_that_is_answered() {
    let Home { store, .. } = home();
    let made = store.create_key(&act(), new_key()).await.expect("made");
    let presented = PresentedKey::parse(made.key.reveal()).expect("a key");
    let ask = |now| store.snapshot().recognise(store.pepper(), &presented, now).map(|_| ());
    assert_eq!(ask(at(99)), Ok(()));
    assert_eq!(ask(at(100)), Err(KeyRefusal::Expired));
    store.revoke_key(&act(), made.key.id()).await.expect("revokes");
    assert_eq!(ask(at(1)), Err(KeyRefusal::Revoked));
    store.revoke_key(&act(), made.key.id()).await.expect("twice is as good as once");
    let unknown = "000000000000".parse().expect("an id");
    store.revoke_key(&act(), &unknown).await.expect_err("unknown");
}

#[tokio::test]
async fn an_identity_is_enrolled_with_a_key_of_its_own() {
    let Home { store, .. } = home();
    let first = enrol(&store, "lab", 1).await.expect("enrols");
    assert_eq!(first, Enrolled { renewal_seq: 1, replaced: false });
    let error = enrol(&store, "attic", 1).await.expect_err("another's key");
    assert!(matches!(error, IdentityError::KeyOfAnother { .. }), "{error}");
    assert!(!store.snapshot().is_active(&NodeId::from("attic")));
    let again = enrol(&store, "lab", 2).await.expect("invited anew");
    assert_eq!(again, Enrolled { renewal_seq: 2, replaced: true });
    assert!(store.snapshot().is_void(&[1; 16]) && !store.snapshot().is_void(&[2; 16]));
}

#[tokio::test]
async fn a_copied_identity_is_locked_and_a_lost_answer_is_not_a_copy() {
    let Home { store, .. } = home();
    enrol(&store, "lab", 1).await.expect("enrols");
    assert_eq!(renew(&store, 1, 2).await.expect("renews"), Renewed::Issued { renewal_seq: 2 });
    let repeated = Renewed::Repeated { renewal_seq: 2, der: vec![2; 40] };
    assert_eq!(renew(&store, 1, 2).await.expect("asks again"), repeated);
    assert!(store.snapshot().is_active(&NodeId::from("lab")));
    assert_eq!(renew(&store, 1, 3).await.expect("the other one"), Renewed::Locked);
    assert!(!store.snapshot().is_active(&NodeId::from("lab")));
    let error = renew(&store, 2, 4).await.expect_err("locked");
    assert!(matches!(error, IdentityError::NotActive { .. }), "{error}");
    store.unlock_identity(&act(), &"lab".into()).await.expect("unlocks");
    assert_eq!(renew(&store, 2, 4).await.expect("renews"), Renewed::Issued { renewal_seq: 3 });
}

#[tokio::test]
async fn what_is_revoked_stays_so_until_it_is_invited_again() {
    let Home { store, .. } = home();
    enrol(&store, "lab", 1).await.expect("enrols");
    store.revoke_identity(&act(), &"lab".into()).await.expect("revokes");
    assert!(store.snapshot().is_void(&[1; 16]));
    let error = store.unlock_identity(&act(), &"lab".into()).await.expect_err("revoked");
    assert!(matches!(error, IdentityError::Revoked { .. }), "{error}");
    enrol(&store, "lab", 1).await.expect_err("the key is known");
    enrol(&store, "lab", 2).await.expect("invited again");
    assert!(store.snapshot().is_active(&NodeId::from("lab")));
}

#[tokio::test]
async fn an_invitation_lets_in_once_in_time_and_bears_few_wrong_secrets() {
    let Home { store, .. } = home();
    let burn = |number: u8, secret: u8, now| {
        let act = Act { who: "192.0.2.1".into(), at: now };
        let store = store.clone();
        async move { store.burn_invitation(&act, InvitationId([number; 16]), [secret; 32]).await }
    };
    for number in 1..=3 {
        store.invite(&act(), invitation(number, 2)).await.expect("invites");
    }
    store.invite(&act(), invitation(1, 2)).await.expect_err("taken");
    let wrong = burn(1, 9, at(1)).await.expect_err("wrong");
    assert!(matches!(wrong, BurnError::WrongSecret { attempts_left: 1, .. }), "{wrong}");
    assert_eq!(burn(1, 1, at(1)).await.expect("right").node, NodeId::from("lab"));
    assert!(matches!(burn(1, 1, at(1)).await, Err(BurnError::Unknown)));
    burn(2, 9, at(1)).await.expect_err("wrong");
    burn(2, 9, at(1)).await.expect_err("wrong again");
    assert!(matches!(burn(2, 2, at(1)).await, Err(BurnError::Unknown)), "ended by wrong secrets");
    assert!(matches!(burn(3, 3, at(60)).await, Err(BurnError::Expired { .. })));
    assert!(matches!(burn(3, 3, at(1)).await, Err(BurnError::Unknown)), "gone all the same");
}

#[tokio::test]
async fn another_master_key_keeps_everything_readable_and_the_old_one_is_refused() {
    let Home { store, file, _dir } = home();
    set(&store, "one", CANARY).await;
    let made = store.create_key(&act(), new_key()).await.expect("made");
    let next = MasterKey::from_bytes([2; 32]);
    store.rotate_master_key(&act(), next).await.expect("rotates");
    assert_eq!(secret_of(&store, "one").await, CANARY.as_bytes());
    set(&store, "two", "sealed-with-the-new-key").await;
    store.close().await;

    let error = ManagedStore::open_at(&file, key(1)).expect_err("the old key");
    assert!(matches!(error, OpenError::WrongMasterKey { .. }), "{error}");
    let store = ManagedStore::open_at(&file, key(2)).expect("opens");
    assert_eq!(secret_of(&store, "one").await, CANARY.as_bytes());
    assert_eq!(secret_of(&store, "two").await, b"sealed-with-the-new-key");
    let cas = store.authorities(AuthorityKind::Ca).await.expect("opens");
    assert_eq!(cas[0].secret.expose(), format!("{CANARY}-ca-1").as_bytes());
    let presented = PresentedKey::parse(made.key.reveal()).expect("a key");
    store.snapshot().recognise(store.pepper(), &presented, at(1)).expect("still a key");
    store.verify_audit().await.expect("the log is whole");
}

#[tokio::test]
async fn a_record_that_does_not_open_stops_the_change_of_the_master_key() {
    let home = home();
    set(&home.store, "one", CANARY).await;
    home.tamper("UPDATE credentials SET row_id = zeroblob(16)");
    let next = MasterKey::from_bytes([2; 32]);
    let error = home.store.rotate_master_key(&act(), next).await.expect_err("damaged");
    assert!(error.to_string().contains("slot `one`"), "{error}");
    home.store.close().await;
    ManagedStore::open_at(&home.file, key(1)).expect("as it was");
}

#[tokio::test]
async fn a_key_file_is_replaced_and_a_process_killed_in_between_finds_its_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join(FILE);
    let none = crate::master_key::Environment::default();
    let found = crate::master_key::create(dir.path()).expect("creates");
    let store = ManagedStore::initialise_at(&file, found, founding(), &act()).expect("initialises");
    let key_file = dir.path().join(crate::master_key::FILE);
    let old = std::fs::read(&key_file).expect("reads");
    store.rotate_key_file(&act()).await.expect("rotates");
    let new = std::fs::read(&key_file).expect("reads");
    assert_ne!(old, new);
    store.close().await;

    // As if the process had been killed after the change and before the file was replaced.
    let next = dir.path().join("master.key.next");
    std::fs::rename(&key_file, &next).expect("renames");
    std::fs::write(&key_file, &old).expect("writes");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&key_file, private).expect("private");
    }
    let found = crate::master_key::find(dir.path(), &none).expect("found");
    ManagedStore::open_at(&file, found).expect("opens with the next key").close().await;
    assert_eq!(std::fs::read(&key_file).expect("reads"), new);
    assert!(!next.exists());
}

#[tokio::test]
async fn the_key_in_use_is_never_lost_to_the_next_replacement() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join(FILE);
    let found = crate::master_key::create(dir.path()).expect("creates");
    let store = ManagedStore::initialise_at(&file, found, founding(), &act()).expect("initialises");
    let key_file = dir.path().join(crate::master_key::FILE);
    let old = std::fs::read(&key_file).expect("reads");
    store.rotate_key_file(&act()).await.expect("rotates");
    let present = std::fs::read(&key_file).expect("reads");
    // As if the file could not be replaced: the key in use lies beside the old one.
    std::fs::write(dir.path().join("master.key.next"), &present).expect("writes");
    std::fs::write(&key_file, &old).expect("writes");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(dir.path().join("master.key.next"), private).expect("private");
    }
    // A change that fails after the next key was put there.
    store
        .ask(|keeper| {
            Ok::<_, StoreError>(keeper.connection.execute_batch("PRAGMA query_only = 1")?)
        })
        .await
        .expect("set");
    store.rotate_key_file(&act()).await.expect_err("read-only");
    assert_eq!(std::fs::read(&key_file).expect("reads"), present);
    store.close().await;
    let none = crate::master_key::Environment::default();
    let found = crate::master_key::find(dir.path(), &none).expect("found");
    ManagedStore::open_at(&file, found).expect("opens with the key in use");
}

#[tokio::test]
async fn a_log_that_was_tampered_with_is_found() {
    // Founding a group leaves four entries.
    for (sql, broken) in [
        ("UPDATE audit SET who = 'nobody' WHERE number = 2", Broken::Altered { number: 2 }),
        ("DELETE FROM audit WHERE number = 2", Broken::Missing { number: 2 }),
        (
            "UPDATE audit SET number = 99 WHERE number = 2;
             UPDATE audit SET number = 2 WHERE number = 3;
             UPDATE audit SET number = 3 WHERE number = 99;",
            Broken::Altered { number: 2 },
        ),
        ("DELETE FROM audit WHERE number = 4", Broken::Missing { number: 4 }),
    ] {
        let home = home();
        assert_eq!(home.store.verify_audit().await.expect("whole"), 4);
        home.tamper(sql);
        match home.store.verify_audit().await.expect_err(sql) {
            VerifyError::Broken(found) => assert_eq!(found, broken, "{sql}"),
            VerifyError::Store(error) => panic!("{sql}: {error}"),
        }
    }
}

#[tokio::test]
async fn a_log_cut_off_with_its_head_is_found_by_who_saw_it_longer() {
    let home = home();
    home.tamper("CREATE TABLE old AS SELECT * FROM audit_head");
    set(&home.store, "one", CANARY).await;
    home.tamper(
        "DELETE FROM audit WHERE number > (SELECT number FROM old);
         DELETE FROM audit_head; INSERT INTO audit_head SELECT * FROM old",
    );
    let error = home.store.verify_audit().await.expect_err("put back");
    assert!(matches!(error, VerifyError::Store(StoreError::Damaged { .. })), "{error}");
    home.store.create_key(&act(), new_key()).await.expect_err("nothing is built on it");
}

#[tokio::test]
async fn every_change_has_its_entry() {
    let Home { store, .. } = home();
    set(&store, "one", CANARY).await;
    let note = AuditNote {
        action: "tls.refuse".into(),
        object: "192.0.2.1".into(),
        detail: serde_json::json!({ "why": "expired" }),
    };
    store.append_audit(&act(), note).await.expect("appends");
    let page = store.audit_page(None, 3).await.expect("reads");
    let actions: Vec<_> = page.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["tls.refuse", "credential.set", "profile.set"]);
    let older = store.audit_page(Some(page[2].number), 100).await.expect("reads");
    assert_eq!(older.last().map(|entry| entry.action.as_str()), Some("group.found"));
}

#[tokio::test]
async fn the_key_in_use_is_promoted_and_only_others_are_removed() {
    let Home { store, .. } = home();
    let kind = AuthorityKind::LeaseSigner;
    let new = |role| Authority {
        kind,
        name: "signer-2".into(),
        role,
        public: Vec::new(),
        secret: Secret::from("seed".to_owned()),
        valid_from: at(0),
        valid_until: at(1000),
    };
    store.add_authority(&act(), new(AuthorityRole::Current)).await.expect_err("two current");
    store.add_authority(&act(), new(AuthorityRole::Next)).await.expect("adds");
    store.promote_authority(&act(), kind, "signer-2").await.expect("promotes");
    let roles: Vec<_> = store
        .authorities(kind)
        .await
        .expect("opens")
        .into_iter()
        .map(|authority| (authority.name, authority.role))
        .collect();
    assert_eq!(
        roles,
        [
            ("signer-1".to_owned(), AuthorityRole::Previous),
            ("signer-2".to_owned(), AuthorityRole::Current)
        ]
    );
    store.remove_authority(&act(), kind, "signer-2").await.expect_err("in use");
    store.remove_authority(&act(), kind, "signer-1").await.expect("removes");
    store.promote_authority(&act(), kind, "signer-1").await.expect_err("gone");
    assert_eq!(store.authorities(kind).await.expect("opens").len(), 1);
}
