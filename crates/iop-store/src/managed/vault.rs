//! The keys that the store works with while it is open.

use iop_vault::audit::AuditKey;
use iop_vault::{
    FingerprintKey, MasterKey, MasterKeyCheck, MasterKeyId, Pepper, Place, Purpose, Sealed,
    WrappingKeys,
};
use rusqlite::{Connection, OptionalExtension};
use zeroize::Zeroizing;

use super::error::StoreError;

/// Keys that are random themselves, and sealed: another master key leaves them as they are.
pub(super) const STANDING: [Purpose; 3] =
    [Purpose::ClientKeyPepper, Purpose::AuditMac, Purpose::Fingerprint];

/// The group and the keys of its store.
#[derive(Debug)]
pub(super) struct Vault {
    pub(super) group: String,
    pub(super) edge: String,
    pub(super) wrapping: WrappingKeys,
    pub(super) pepper: Pepper,
    pub(super) audit: AuditKey,
    pub(super) fingerprints: FingerprintKey,
}

impl Vault {
    /// Opens the standing keys of a store that `master` was checked for.
    pub(super) fn read(connection: &Connection, master: &MasterKey) -> Result<Self, StoreError> {
        let (group, edge): (String, String) =
            connection.query_one("SELECT group_name, edge FROM vault", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        let wrapping = master.wrapping_keys();
        let open = |purpose| standing(connection, &wrapping, &group, purpose);
        let pepper = Pepper::new(&*open(Purpose::ClientKeyPepper)?);
        let audit = AuditKey::new(&*open(Purpose::AuditMac)?);
        let fingerprints = FingerprintKey::new(&*open(Purpose::Fingerprint)?);
        Ok(Self { group, edge, wrapping, pepper, audit, fingerprints })
    }
}

/// What a store says of itself before it is unlocked.
pub(super) struct Lock {
    pub(super) group: String,
    pub(super) id: MasterKeyId,
    pub(super) check: MasterKeyCheck,
}

impl Lock {
    /// Reads it; a file in which no group was founded has none.
    pub(super) fn read(connection: &Connection) -> Result<Option<Self>, StoreError> {
        let lock = connection
            .query_row("SELECT group_name, master_key_id, master_key_check FROM vault", [], |row| {
                Ok(Self {
                    group: row.get(0)?,
                    id: MasterKeyId::from_bytes(row.get(1)?),
                    check: MasterKeyCheck::from_bytes(row.get(2)?),
                })
            })
            .optional()?;
        Ok(lock)
    }
}

/// Makes the standing keys of a new store.
pub(super) fn make_standing(
    connection: &Connection,
    keys: &WrappingKeys,
    group: &str,
) -> Result<(), StoreError> {
    for purpose in STANDING {
        let (key, row) = (Zeroizing::new(random::<32>()?), random()?);
        let place = Place::key(purpose, group, name(purpose), &row);
        let sealed = Sealed::seal(
            keys,
            &place,
            key.as_ref(),
            &Zeroizing::new(random::<{ Sealed::RANDOM_BYTES }>()?),
        );
        connection.execute(
            "INSERT INTO standing_keys (name, row_id, sealed) VALUES (?, ?, ?)",
            (name(purpose), row, sealed.as_bytes()),
        )?;
    }
    Ok(())
}

fn standing(
    connection: &Connection,
    keys: &WrappingKeys,
    group: &str,
    purpose: Purpose,
) -> Result<Zeroizing<[u8; 32]>, StoreError> {
    let (row, sealed): ([u8; 16], Vec<u8>) = connection.query_one(
        "SELECT row_id, sealed FROM standing_keys WHERE name = ?",
        [name(purpose)],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let damaged = |error| StoreError::damaged(format!("key `{}`", name(purpose)), error);
    let place = Place::key(purpose, group, name(purpose), &row);
    let secret =
        Sealed::from_bytes(sealed).and_then(|sealed| sealed.open(keys, &place)).map_err(damaged)?;
    let mut key = Zeroizing::new([0; 32]);
    if secret.expose().len() != key.len() {
        return Err(damaged(iop_vault::OpenError::Malformed));
    }
    key.copy_from_slice(secret.expose());
    Ok(key)
}

/// What a purpose is called in the tables.
pub(super) const fn name(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Credential => "credential",
        Purpose::CaKey => "ca",
        Purpose::EdgeKey => "edge",
        Purpose::LeaseSigner => "lease_signer",
        Purpose::ClientKeyPepper => "client_key_pepper",
        Purpose::AuditMac => "audit_mac",
        Purpose::Fingerprint => "fingerprint",
    }
}

/// Draws from the operating system.
pub(super) fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(StoreError::NoRandomness)?;
    Ok(bytes)
}
