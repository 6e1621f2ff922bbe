//! Tables of the managed store. Whatever is secret is in a column named `sealed`.

use crate::database::Schema;

/// The tables of the managed store.
pub(super) struct Managed;

impl Schema for Managed {
    const STEPS: &[&str] = &[FIRST];
    /// Nothing here is ever half done.
    const INTERRUPT: &str = "";
}

const FIRST: &str = "
    CREATE TABLE vault (
        only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
        group_name TEXT NOT NULL,
        edge TEXT NOT NULL,
        master_key_id BLOB NOT NULL,
        master_key_check BLOB NOT NULL,
        created INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE standing_keys (
        name TEXT NOT NULL PRIMARY KEY,
        row_id BLOB NOT NULL,
        sealed BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE authorities (
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        role TEXT NOT NULL,
        public BLOB NOT NULL,
        row_id BLOB NOT NULL,
        sealed BLOB NOT NULL,
        valid_from INTEGER NOT NULL,
        valid_until INTEGER NOT NULL,
        created INTEGER NOT NULL,
        PRIMARY KEY (kind, name)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE invitations (
        id BLOB NOT NULL PRIMARY KEY,
        secret_hash BLOB NOT NULL,
        node TEXT NOT NULL,
        egress TEXT NOT NULL,
        expires INTEGER NOT NULL,
        attempts_left INTEGER NOT NULL,
        created INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE identities (
        name TEXT NOT NULL PRIMARY KEY,
        kind TEXT NOT NULL,
        status TEXT NOT NULL,
        renewal_seq INTEGER NOT NULL,
        egress TEXT NOT NULL,
        created INTEGER NOT NULL,
        last_seen INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE certificates (
        serial BLOB NOT NULL PRIMARY KEY,
        identity TEXT NOT NULL REFERENCES identities (name) ON DELETE RESTRICT,
        key_hash BLOB NOT NULL,
        certificate BLOB NOT NULL,
        not_before INTEGER NOT NULL,
        not_after INTEGER NOT NULL,
        renewal_seq INTEGER NOT NULL,
        is_void INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX certificates_by_key ON certificates (key_hash);
    CREATE INDEX certificates_by_identity ON certificates (identity, renewal_seq);
    CREATE TABLE profiles (
        name TEXT NOT NULL PRIMARY KEY,
        header TEXT NOT NULL,
        scheme TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE credentials (
        slot TEXT NOT NULL PRIMARY KEY,
        profile TEXT NOT NULL REFERENCES profiles (name) ON DELETE RESTRICT,
        revision INTEGER NOT NULL,
        state TEXT NOT NULL,
        row_id BLOB NOT NULL,
        sealed BLOB,
        last4 TEXT,
        fingerprint TEXT NOT NULL,
        created INTEGER NOT NULL,
        changed INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE client_keys (
        id TEXT NOT NULL PRIMARY KEY,
        hash BLOB NOT NULL,
        name TEXT NOT NULL,
        scope TEXT NOT NULL,
        limits TEXT NOT NULL,
        created INTEGER NOT NULL,
        expires INTEGER,
        revoked INTEGER,
        last_used INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE audit (
        number INTEGER NOT NULL PRIMARY KEY,
        at INTEGER NOT NULL,
        who TEXT NOT NULL,
        action TEXT NOT NULL,
        object TEXT NOT NULL,
        detail TEXT NOT NULL,
        tag BLOB NOT NULL
    ) STRICT;
    CREATE TABLE audit_head (
        only_row INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
        number INTEGER NOT NULL,
        tag BLOB NOT NULL,
        proof BLOB NOT NULL
    ) STRICT;
";
