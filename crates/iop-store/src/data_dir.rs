//! The directory in which a host keeps its state, owned by one process at a time.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// A data directory that this process holds. Dropping it lets the next process in.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Holds the lock; the operating system takes it back however the process ends.
    _lock: File,
}

impl DataDir {
    /// Creates the directory where it is missing (mode 0700) and takes hold of it.
    ///
    /// # Errors
    /// Fails when another process holds the directory, and when it cannot be created or written.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DataDirError> {
        let path = path.into();
        let broken = |source| DataDirError::Unusable { path: path.clone(), source };
        create(&path).map_err(broken)?;
        let mut lock = private(OpenOptions::new().create(true).truncate(false))
            .open(path.join(LOCK_FILE))
            .map_err(broken)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // The number is a courtesy: without it the message is still right.
                let _ = lock.read_to_string(&mut holder);
                return Err(DataDirError::InUse { path, holder: holder.trim().parse().ok() });
            }
            Err(TryLockError::Error(source)) => return Err(broken(source)),
        }
        let note = |lock: &mut File| {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "{}", std::process::id())
        };
        note(&mut lock).map_err(broken)?;
        Ok(Self { path, _lock: lock })
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A data directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process holds it.
    #[error(
        "data directory `{}` is in use by another iop process{}: stop it, or set another `data_dir`",
        path.display(),
        holder.map(|pid| format!(" ({pid})")).unwrap_or_default()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Process id of the holder, where it could be read.
        holder: Option<u32>,
    },
    /// It cannot be created or written.
    #[error("data directory `{}` cannot be used: make it writable, or set another `data_dir`", path.display())]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
}

impl DataDirError {
    /// Says whether another process holds the directory: then this one must not start. Without a
    /// usable directory it may, without history.
    pub const fn is_in_use(&self) -> bool {
        match self {
            Self::InUse { .. } => true,
            Self::Unusable { .. } => false,
        }
    }
}

const LOCK_FILE: &str = "lock";

/// Opens a file that only its owner may read.
pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.read(true).write(true)
}

fn create(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    // A directory that existed before keeps its mode when it is somebody else's to decide, as with
    // one that a service manager made; the files in it are private either way.
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_holds_a_directory_and_the_next_gets_it_afterwards() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("below").join("edge");
        let held = DataDir::open(&path).expect("free");
        let refused = DataDir::open(&path).expect_err("held");
        assert!(refused.is_in_use());
        let text = refused.to_string();
        assert!(text.contains(&path.display().to_string()), "{text}");
        assert!(text.contains(&format!("({})", std::process::id())), "{text}");
        assert!(text.contains("`data_dir`"), "{text}");
        drop(held);
        assert_eq!(DataDir::open(&path).expect("free again").path(), path);
    }

    #[test]
    fn a_directory_that_cannot_be_made_says_which() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("writes");
        let refused = DataDir::open(file.join("edge")).expect_err("below a file");
        assert!(!refused.is_in_use());
        assert!(refused.to_string().contains("edge"), "{refused}");
    }

    #[cfg(unix)]
    #[test]
    fn directory_and_files_are_their_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("edge");
        let _held = DataDir::open(&path).expect("free");
        let mode = |path: &Path| path.metadata().expect("exists").permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join("lock")), 0o600);
    }
}
