//! What identifies a thing: newtypes, so that one id can never be passed for another.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Declares a cheap-to-clone name: text that people chose, compared byte for byte.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

name! {
    /// Names a Node within its execution group.
    NodeId
}
name! {
    /// Names one provider on a Node; the wire's `adapter` field carries it.
    ProviderKey
}
name! {
    /// Names what an adapter executes. Clients call it a model; nothing below the surfaces does.
    Target
}
name! {
    /// Names a route: the model name that clients use.
    RouteName
}
name! {
    /// Names a caller: the id of a client key, or `local` where none is asked for.
    Principal
}
name! {
    /// Names a place for a provider's credential at the Edge.
    Slot
}
name! {
    /// Correlates one client call with logs; echoed as `x-request-id`.
    RequestId
}

/// Declares a random 128-bit id.
macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Wraps an id that was minted elsewhere.
            pub const fn from_uuid(id: Uuid) -> Self {
                Self(id)
            }

            /// Reads an id from its 16 bytes.
            ///
            /// # Errors
            /// Fails when `bytes` is not exactly 16 bytes long.
            pub fn from_slice(bytes: &[u8]) -> Result<Self, MalformedId> {
                Uuid::from_slice(bytes).map(Self).map_err(|_| MalformedId)
            }

            /// Reads an id from its text form.
            ///
            /// # Errors
            /// Fails when `text` is not a UUID.
            pub fn parse(text: &str) -> Result<Self, MalformedId> {
                Uuid::parse_str(text).map(Self).map_err(|_| MalformedId)
            }

            /// Returns the 16 bytes that travel on the wire.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_id! {
    /// Identifies one accepted request over all its attempts. Minted by the Edge as UUID v7, so that
    /// ids sort by time of receipt.
    RunId
}
uuid_id! {
    /// Identifies one tunnel attempt on one link.
    TunnelId
}
uuid_id! {
    /// Identifies one command on its way to a Node and back.
    CommandId
}
uuid_id! {
    /// Identifies one start of a Node process: random, never stored.
    ///
    /// It tells a reconnect of the same process from a second machine with a copied identity.
    InstanceId
}
uuid_id! {
    /// Identifies one start of an Edge process. Generations compare only within one boot.
    EdgeBootId
}

/// An id that is not a UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id is 16 bytes or a UUID in text form")]
pub struct MalformedId;

/// The number that the Edge mints for each accepted link of a Node; larger is newer.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of one dispatch of a run, starting at 1; grows with every send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(pub u32);

impl Attempt {
    /// The first dispatch of a run.
    pub const FIRST: Self = Self(1);

    /// Returns the number of the following dispatch.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Says which configuration of a Node is meant; counters compare only within one Edge boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConfigRevision {
    /// The Edge process that counted.
    pub boot: EdgeBootId,
    /// Larger is newer.
    pub counter: u64,
}

/// The configuration counter at which one provider's entry last changed.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ProviderRevision(pub u64);

/// An opaque correlation value of the client, echoed unchanged on the first and the terminal event.
///
/// It is never a look-up key: two runs with the same one are independent.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// The longest value that is carried, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Accepts a correlation value.
    ///
    /// # Errors
    /// Fails when `text` is empty or longer than [`Self::MAX_BYTES`].
    pub fn new(text: &str) -> Result<Self, SessionIdError> {
        match text.len() {
            0 => Err(SessionIdError::Empty),
            1..=Self::MAX_BYTES => Ok(Self(text.into())),
            bytes => Err(SessionIdError::TooLong { bytes }),
        }
    }

    /// Returns the value as the client sent it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// A session id that cannot be carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionIdError {
    /// Nothing to echo.
    #[error("session id is empty")]
    Empty,
    /// More than the wire carries.
    #[error("session id is {bytes} bytes long, at most 128 are carried")]
    TooLong {
        /// Length of the refused value.
        bytes: usize,
    },
}
