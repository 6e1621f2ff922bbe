//! Where files belong on the machine at hand, from a snapshot of its environment.

use std::path::PathBuf;

/// Operating system, as far as paths differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Os {
    /// Linux and other Unix systems.
    Unix,
    /// macOS.
    Mac,
    /// Windows.
    Windows,
}

impl Os {
    /// The system that this program was built for.
    pub const CURRENT: Self = if cfg!(windows) {
        Self::Windows
    } else if cfg!(target_os = "macos") {
        Self::Mac
    } else {
        Self::Unix
    };
}

/// Which of the two hosts a directory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The Edge.
    Edge,
    /// A Node.
    Node,
}

impl Side {
    /// Returns the name of the directory.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Edge => "edge",
            Self::Node => "node",
        }
    }
}

/// The variables that say where a user's files are. Empty ones count as absent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    os: Os,
    home: Option<String>,
    data_home: Option<String>,
}

impl Environment {
    /// Takes a snapshot through `variable`, which looks one up by name.
    pub fn new(os: Os, variable: impl Fn(&str) -> Option<String>) -> Self {
        let filled = |name| variable(name).filter(|value| !value.is_empty());
        let (home, data_home) = match os {
            // A relative XDG directory is invalid and to be ignored, says its specification.
            Os::Unix => {
                (filled("HOME"), filled("XDG_DATA_HOME").filter(|path| path.starts_with('/')))
            }
            Os::Mac => (filled("HOME"), None),
            Os::Windows => (filled("USERPROFILE"), filled("LOCALAPPDATA")),
        };
        Self { os, home, data_home }
    }

    /// Returns the data directory: the configured one, with `~` resolved, or the usual place.
    ///
    /// # Errors
    /// Fails when the home directory is needed and the environment does not name it.
    pub fn data_dir(&self, configured: Option<&str>, side: Side) -> Result<PathBuf, NoHome> {
        match configured {
            Some(path) => self.resolve(path),
            None => self.default_data_dir(side),
        }
    }

    /// Replaces a leading `~` of a path by the home directory; everything else is taken verbatim.
    ///
    /// # Errors
    /// Fails when the home directory is needed and the environment does not name it.
    pub fn resolve(&self, path: &str) -> Result<PathBuf, NoHome> {
        let below = match path.strip_prefix('~') {
            Some("") => "",
            Some(below) if below.starts_with(self.is_separator()) => &below[1..],
            Some(_) | None => return Ok(PathBuf::from(path)),
        };
        let home = self.home()?;
        Ok(if below.is_empty() { PathBuf::from(home) } else { self.join(&[home, below]) })
    }

    fn default_data_dir(&self, side: Side) -> Result<PathBuf, NoHome> {
        let side = side.as_str();
        Ok(match (&self.data_home, self.os) {
            (Some(data_home), _) => self.join(&[data_home, "iop", side]),
            (None, Os::Unix) => self.join(&[self.home()?, ".local", "share", "iop", side]),
            (None, Os::Mac) => {
                self.join(&[self.home()?, "Library", "Application Support", "iop", side])
            }
            (None, Os::Windows) => self.join(&[self.home()?, "AppData", "Local", "iop", side]),
        })
    }

    fn home(&self) -> Result<&str, NoHome> {
        self.home.as_deref().ok_or(NoHome {
            variable: match self.os {
                Os::Unix | Os::Mac => "HOME",
                Os::Windows => "USERPROFILE",
            },
        })
    }

    fn is_separator(&self) -> fn(char) -> bool {
        match self.os {
            Os::Unix | Os::Mac => |c| c == '/',
            Os::Windows => |c| c == '/' || c == '\\',
        }
    }

    /// Joins by the separator of the given system, which need not be the one this runs on.
    fn join(&self, parts: &[&str]) -> PathBuf {
        let separator = match self.os {
            Os::Unix | Os::Mac => "/",
            Os::Windows => "\\",
        };
        let (first, below) = parts.split_first().expect("a path has parts");
        let mut path = first.trim_end_matches(self.is_separator()).to_owned();
        for part in below {
            path.push_str(separator);
            path.push_str(part);
        }
        PathBuf::from(path)
    }
}

/// The environment does not say where the user's files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no data directory: set `data_dir` to an absolute path, or the variable {variable}")]
pub struct NoHome {
    variable: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(os: Os, variables: &'static [(&str, &str)]) -> Environment {
        Environment::new(os, |name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_system_has_its_usual_place() {
        for (os, variables, place) in [
            (Os::Unix, &[("HOME", "/home/ann")] as &[_], "/home/ann/.local/share/iop/edge"),
            (Os::Unix, &[("HOME", "/"), ("XDG_DATA_HOME", "/data")], "/data/iop/edge"),
            (Os::Unix, &[("HOME", "/h"), ("XDG_DATA_HOME", "x")], "/h/.local/share/iop/edge"),
            (Os::Mac, &[("HOME", "/Users/a")], "/Users/a/Library/Application Support/iop/edge"),
            (Os::Windows, &[("LOCALAPPDATA", r"C:\Users\ü\Local")], r"C:\Users\ü\Local\iop\edge"),
            (Os::Windows, &[("USERPROFILE", r"C:\a b")], r"C:\a b\AppData\Local\iop\edge"),
        ] {
            let found = environment(os, variables).data_dir(None, Side::Edge);
            assert_eq!(found, Ok(PathBuf::from(place)));
        }
    }

    #[test]
    fn a_tilde_is_the_home_directory_only_where_it_stands_alone() {
        let unix = environment(Os::Unix, &[("HOME", "/home/ann")]);
        for (path, resolved) in
            [("~", "/home/ann"), ("~/x", "/home/ann/x"), ("~bob/x", "~bob/x"), ("/a~/b", "/a~/b")]
        {
            assert_eq!(unix.resolve(path), Ok(PathBuf::from(resolved)));
        }
        let windows = environment(Os::Windows, &[("USERPROFILE", r"C:\U\")]);
        assert_eq!(windows.resolve(r"~\x"), Ok(PathBuf::from(r"C:\U\x")));
    }

    #[test]
    fn a_windows_path_with_spaces_and_umlauts_is_taken_verbatim() {
        let path = r"C:\Program Data\IOP node\ü";
        let windows = environment(Os::Windows, &[]);
        assert_eq!(windows.data_dir(Some(path), Side::Node), Ok(PathBuf::from(path)));
    }

    #[test]
    fn a_missing_home_is_said_with_the_remedy() {
        let error = environment(Os::Unix, &[("HOME", "")]).data_dir(None, Side::Node);
        let text = error.expect_err("no home").to_string();
        assert!(text.contains("`data_dir`") && text.contains("HOME"), "{text}");
    }
}
