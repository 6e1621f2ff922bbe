//! What to do when the system has no descriptor left for another connection.

use std::io;

/// Names the limit that an accept has run into, and how to raise it.
#[cfg(unix)]
pub(super) fn remedy(error: &io::Error) -> Option<String> {
    use rustix::io::Errno;
    use rustix::process::{Resource, getrlimit};

    match Errno::from_io_error(error)? {
        Errno::MFILE => {
            let limit = getrlimit(Resource::Nofile).current;
            let limit = limit.map_or_else(|| "all".to_owned(), |limit| limit.to_string());
            Some(format!(
                "this process has {limit} files open and may have no more (RLIMIT_NOFILE): raise \
                 `ulimit -Hn` or the service's `LimitNOFILE`, or lower `limits.client_connections`"
            ))
        }
        Errno::NFILE => Some(
            "the system has no file left to open (fs.file-max): raise it, or end what holds them"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Knows no such limit.
#[cfg(not(unix))]
pub(super) fn remedy(_: &io::Error) -> Option<String> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn being_out_of_descriptors_names_the_limit_and_how_to_raise_it() {
        let told = remedy(&rustix::io::Errno::MFILE.into()).unwrap();
        for part in ["files open", "RLIMIT_NOFILE", "ulimit -Hn", "LimitNOFILE"] {
            assert!(told.contains(part), "{told}");
        }
        assert!(remedy(&rustix::io::Errno::NFILE.into()).unwrap().contains("fs.file-max"));
        assert_eq!(remedy(&io::ErrorKind::ConnectionAborted.into()), None);
    }
}
