//! Where the master key of the managed store comes from.
//!
//! | source | what it is |
//! |---|---|
//! | systemd credential | `$CREDENTIALS_DIRECTORY/iop-master` (`LoadCredential=`, `LoadCredentialEncrypted=`) |
//! | key file | `master.key` in the Edge's data directory, readable by its owner alone |
//! | environment | `IOP_MASTER_KEY`; others of this user can read it in `/proc`, so that it comes with a warning |
//!
//! Each holds the same text: 32 bytes in base64. All that are present are read. When they agree, the
//! first of the table is named; when two differ nothing is chosen, since the wrong choice would seal new
//! secrets with a key that somebody is about to throw away. None is ever made but by [`create`].
//!
//! No OS keyring: those that exist need a session of a logged-in person, which a server has not.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use iop_vault::{MasterKey, MasterKeyCheck, MasterKeyId};
use zeroize::Zeroizing;

use crate::data_dir::private;

/// Name of the key file in the data directory.
pub const FILE: &str = "master.key";
/// Where the next key lies while everything is put under it.
const NEXT: &str = "master.key.next";
/// Name of the systemd credential.
const CREDENTIAL: &str = "iop-master";
/// A key is 44 characters; a file with much more is another one.
const LONGEST: u64 = 256;

/// What of the process's environment matters here.
#[derive(Default)]
pub struct Environment {
    /// `CREDENTIALS_DIRECTORY`.
    pub credentials_directory: Option<PathBuf>,
    /// `IOP_MASTER_KEY`.
    pub master_key: Option<Zeroizing<String>>,
}

impl Environment {
    /// Reads this process's.
    pub fn of_process() -> Self {
        Self {
            credentials_directory: std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from),
            master_key: std::env::var_os("IOP_MASTER_KEY")
                .map(OsString::into_string)
                // What is no text is no key either: it is refused like any other.
                .map(|text| Zeroizing::new(text.unwrap_or_default())),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("credentials_directory", &self.credentials_directory)
            .field("master_key", &self.master_key.as_ref().map(|_| ".."))
            .finish()
    }
}

/// Where a key was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A systemd credential.
    Systemd(PathBuf),
    /// The key file.
    File(PathBuf),
    /// `IOP_MASTER_KEY`.
    Environment,
    /// The caller, by other means.
    Given,
}

impl Source {
    /// Says what speaks against this source.
    pub const fn warning(&self) -> Option<&'static str> {
        match self {
            Self::Environment => Some(
                "IOP_MASTER_KEY can be read by every process of this user: prefer a systemd credential or the key file",
            ),
            Self::Systemd(_) | Self::File(_) | Self::Given => None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Systemd(path) => write!(f, "systemd credential `{}`", path.display()),
            Self::File(path) => write!(f, "key file `{}`", path.display()),
            Self::Environment => f.write_str("IOP_MASTER_KEY"),
            Self::Given => f.write_str("the caller"),
        }
    }
}

/// A master key, and where it was.
#[derive(Debug)]
pub struct Found {
    key: MasterKey,
    source: Source,
    file: Option<KeyFile>,
    next: Option<MasterKey>,
}

impl Found {
    /// A key that the caller has by other means.
    pub const fn given(key: MasterKey) -> Self {
        Self { key, source: Source::Given, file: None, next: None }
    }

    /// The key.
    pub const fn key(&self) -> &MasterKey {
        &self.key
    }

    /// Where it was.
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// The key file, when the key was found in it.
    pub(crate) fn key_file(&self) -> Option<KeyFile> {
        self.file.clone()
    }

    pub(crate) fn replace(&mut self, key: MasterKey) {
        self.key = key;
        self.next = None;
    }

    /// Says whether this is the key that `check` was made with, and finishes a replacement of the key
    /// file that was cut off.
    pub(crate) fn settle(&mut self, check: &MasterKeyCheck) -> bool {
        let next = self.next.take();
        if check.is_of(&self.key) {
            return true;
        }
        let Some((next, file)) = next.filter(|next| check.is_of(next)).zip(self.file.as_ref())
        else {
            return false;
        };
        if let Err(error) = file.settle() {
            tracing::warn!(%error, "the next master key is in use, but not yet in its file");
        }
        self.key = next;
        true
    }
}

/// Finds the master key.
///
/// # Errors
/// Fails when there is none, when one is no key or can be read by others, and when two differ.
pub fn find(data_dir: &Path, environment: &Environment) -> Result<Found, FindKeyError> {
    let mut found: Option<Found> = None;
    for source in sources(data_dir, environment) {
        let Some(candidate) = read(data_dir, source, environment)? else { continue };
        match &found {
            None => found = Some(candidate),
            Some(first) if first.key.id() == candidate.key.id() => {}
            Some(first) => {
                return Err(FindKeyError::Differ {
                    one: first.source.clone(),
                    one_id: first.key.id(),
                    two: candidate.source,
                    two_id: candidate.key.id(),
                });
            }
        }
    }
    found.ok_or_else(|| FindKeyError::None { file: data_dir.join(FILE) })
}

/// Makes a key file for a new group, where no source holds a key.
///
/// Tell the operator to copy the file to a safe place apart from backups of the data directory:
/// [`BACKUP_HINT`].
///
/// # Errors
/// Fails when the file exists or cannot be written.
pub fn create(data_dir: &Path) -> Result<Found, KeyFileError> {
    let file = KeyFile { directory: data_dir.to_owned() };
    let mut bytes = Zeroizing::new([0; 32]);
    getrandom::fill(bytes.as_mut()).map_err(|error| file.broken(io::Error::other(error)))?;
    let key = MasterKey::from_bytes(*bytes);
    write(&file.path(), &key).map_err(|error| file.broken(error))?;
    Ok(Found { key, source: Source::File(file.path()), file: Some(file), next: None })
}

/// What to tell whoever made a key file.
pub const BACKUP_HINT: &str = "copy the master key to a safe place, apart from backups of the data directory: without it nothing in managed.db can be opened, and with both everything can";

fn sources<'a>(
    data_dir: &'a Path,
    environment: &'a Environment,
) -> impl Iterator<Item = Source> + use<'a> {
    let systemd = environment
        .credentials_directory
        .as_ref()
        .map(|directory| Source::Systemd(directory.join(CREDENTIAL)));
    let variable = environment.master_key.as_ref().map(|_| Source::Environment);
    systemd.into_iter().chain([Source::File(data_dir.join(FILE))]).chain(variable)
}

fn read(
    data_dir: &Path,
    source: Source,
    environment: &Environment,
) -> Result<Option<Found>, FindKeyError> {
    let key_of = |text: &str, source: &Source| {
        MasterKey::from_text(text)
            .map_err(|error| FindKeyError::NoKey { origin: source.clone(), source: error })
    };
    match &source {
        Source::Systemd(path) => {
            let Some(text) = read_text(path, false)? else { return Ok(None) };
            Ok(Some(Found { key: key_of(&text, &source)?, source, file: None, next: None }))
        }
        Source::File(path) => {
            let Some(text) = read_text(path, true)? else { return Ok(None) };
            let key = key_of(&text, &source)?;
            let next = match read_text(&data_dir.join(NEXT), true)? {
                Some(text) => MasterKey::from_text(&text).ok(),
                None => None,
            };
            let file = Some(KeyFile { directory: data_dir.to_owned() });
            Ok(Some(Found { key, source, file, next }))
        }
        Source::Environment => {
            let text = environment.master_key.as_deref().map_or("", String::as_str);
            Ok(Some(Found { key: key_of(text, &source)?, source, file: None, next: None }))
        }
        Source::Given => Ok(None),
    }
}

/// Reads a file of a key's size, if there is one.
fn read_text(path: &Path, ours: bool) -> Result<Option<Zeroizing<String>>, FindKeyError> {
    let broken = |source| FindKeyError::Unreadable { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(broken(error)),
    };
    // Asked of the open file, so that nobody exchanges it in between.
    if ours {
        refuse_shared(path, &file)?;
    }
    let mut text = Zeroizing::new(String::with_capacity(256));
    file.take(LONGEST).read_to_string(&mut text).map_err(broken)?;
    Ok(Some(text))
}

#[cfg(unix)]
fn refuse_shared(path: &Path, file: &File) -> Result<(), FindKeyError> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file
        .metadata()
        .map_err(|source| FindKeyError::Unreadable { path: path.to_owned(), source })?;
    if metadata.mode() & 0o077 != 0 {
        return Err(FindKeyError::Shared { path: path.to_owned(), mode: metadata.mode() & 0o777 });
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        return Err(FindKeyError::OtherOwner {
            path: path.to_owned(),
            owner: metadata.uid(),
            user,
        });
    }
    Ok(())
}

/// Who may read a file is a matter of the directory's access list there.
#[cfg(not(unix))]
fn refuse_shared(_: &Path, _: &File) -> Result<(), FindKeyError> {
    Ok(())
}

/// The key file and the one that is to replace it.
#[derive(Debug, Clone)]
pub(crate) struct KeyFile {
    directory: PathBuf,
}

impl KeyFile {
    fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Puts the next key beside the present one, which is in use.
    pub(crate) fn stage(&self, present: &MasterKey, key: &MasterKey) -> Result<(), KeyFileError> {
        let next = self.directory.join(NEXT);
        // After a replacement that was cut off, the present key may lie in the other file alone.
        let holds_present = read_text(&self.path(), true)
            .map_err(|error| self.broken(io::Error::other(error)))?
            .and_then(|text| MasterKey::from_text(&text).ok())
            .is_some_and(|kept| kept.id() == present.id());
        if !holds_present {
            self.settle()?;
        }
        // One that is left over is of no use now: the present key is in its place.
        match fs::remove_file(&next) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(self.broken(error)),
        }
        write(&next, key).map_err(|error| self.broken(error))
    }

    /// Puts the next key in the place of the present one.
    pub(crate) fn settle(&self) -> Result<(), KeyFileError> {
        fs::rename(self.directory.join(NEXT), self.path())
            .and_then(|()| keep_names(&self.directory))
            .map_err(|error| self.broken(error))
    }

    fn broken(&self, source: io::Error) -> KeyFileError {
        KeyFileError { path: self.path(), source }
    }
}

/// Writes a file that was not there, durably.
fn write(path: &Path, key: &MasterKey) -> io::Result<()> {
    let mut file = private(OpenOptions::new().create_new(true)).open(path)?;
    file.write_all(key.to_text().as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    path.parent().map_or(Ok(()), keep_names)
}

/// Makes durable which names a directory has.
#[cfg(unix)]
fn keep_names(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Directories cannot be opened as files there.
#[cfg(not(unix))]
fn keep_names(_: &Path) -> io::Result<()> {
    Ok(())
}

/// The key file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("master key file `{}` cannot be written: it must not exist yet, in a directory that this user may write", path.display())]
pub struct KeyFileError {
    /// The file.
    pub path: PathBuf,
    /// What the operating system says.
    #[source]
    pub source: io::Error,
}

/// There is no master key to use.
#[derive(Debug, thiserror::Error)]
pub enum FindKeyError {
    /// No source holds one.
    #[error("no master key: bring back `{}` from its backup, or give it as systemd credential `{CREDENTIAL}` or IOP_MASTER_KEY", file.display())]
    None {
        /// Where it would be kept.
        file: PathBuf,
    },
    /// A source holds something else.
    #[error("{origin} holds no master key")]
    NoKey {
        /// The source.
        origin: Source,
        /// What a key is.
        #[source]
        source: iop_vault::master::MasterKeyError,
    },
    /// Two sources hold different keys.
    #[error(
        "{one} holds master key {one_id}, but {two} holds {two_id}: take away the one that does not belong to the store"
    )]
    Differ {
        /// The first source.
        one: Source,
        /// Its key.
        one_id: MasterKeyId,
        /// The second source.
        two: Source,
        /// Its key.
        two_id: MasterKeyId,
    },
    /// Others may read it.
    #[error("master key file `{}` has mode {mode:03o}: others may have read it; `chmod 600` it, and replace the key if they have", path.display())]
    Shared {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It belongs to another user.
    #[error("master key file `{}` belongs to user {owner}, but this is user {user}: `chown` it", path.display())]
    OtherOwner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who runs this.
        user: u32,
    },
    /// It cannot be read.
    #[error("master key `{}` cannot be read: make it readable for this user", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> MasterKey {
        MasterKey::from_bytes([byte; 32])
    }

    fn variable(byte: u8) -> Environment {
        Environment { master_key: Some(key(byte).to_text()), ..Environment::default() }
    }

    #[test]
    fn each_source_alone_is_found_and_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let credentials = tempfile::tempdir().expect("a directory");
        let nothing = Environment::default();
        let error = find(dir.path(), &nothing).expect_err("nothing there");
        assert!(matches!(error, FindKeyError::None { .. }), "{error}");

        let found = find(dir.path(), &variable(1)).expect("found");
        assert_eq!((found.key().id(), found.source()), (key(1).id(), &Source::Environment));
        assert!(found.source().warning().is_some());

        fs::write(credentials.path().join(CREDENTIAL), key(2).to_text().as_bytes())
            .expect("writes");
        let systemd = Environment {
            credentials_directory: Some(credentials.path().to_owned()),
            ..Environment::default()
        };
        let found = find(dir.path(), &systemd).expect("found");
        assert_eq!(found.key().id(), key(2).id());
        assert!(matches!(found.source(), Source::Systemd(_)) && found.source().warning().is_none());

        let made = create(dir.path()).expect("creates");
        let found = find(dir.path(), &nothing).expect("found");
        assert_eq!(found.key().id(), made.key().id());
        assert!(matches!(found.source(), Source::File(_)));
        create(dir.path()).expect_err("never in the place of another");
    }

    #[test]
    fn two_sources_that_agree_are_one_and_two_that_differ_are_none() {
        let dir = tempfile::tempdir().expect("a directory");
        write(&dir.path().join(FILE), &key(1)).expect("writes");
        let found = find(dir.path(), &variable(1)).expect("they agree");
        assert!(matches!(found.source(), Source::File(_)));
        let error = find(dir.path(), &variable(2)).expect_err("they differ");
        let text = error.to_string();
        assert!(text.contains(FILE) && text.contains("IOP_MASTER_KEY"), "{text}");
    }

    #[test]
    fn what_is_no_key_is_refused_without_being_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        let environment = Environment {
            master_key: Some(Zeroizing::new("hunter2".to_owned())),
            ..Environment::default()
        };
        let error = find(dir.path(), &environment).expect_err("no key");
        assert!(!format!("{error} {error:?} {environment:?}").contains("hunter2"));
    }

    #[cfg(unix)]
    #[test]
    fn a_key_file_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        create(dir.path()).expect("creates");
        let path = dir.path().join(FILE);
        let mode = path.metadata().expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for mode in [0o640, 0o604, 0o660] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("sets");
            let error = find(dir.path(), &Environment::default()).expect_err("shared");
            assert!(matches!(error, FindKeyError::Shared { .. }), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_key_file_of_another_user_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        create(dir.path()).expect("creates");
        let path = dir.path().join(FILE);
        // Only the superuser can give a file away; others cannot get into this case here.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        std::os::unix::fs::chown(&path, Some(65534), None).expect("gives away");
        let error = find(dir.path(), &Environment::default()).expect_err("another user's");
        assert!(matches!(error, FindKeyError::OtherOwner { owner: 65534, .. }), "{error}");
    }
}
