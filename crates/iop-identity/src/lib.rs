//! Who is who in an execution group.
//!
//! Decides what a certificate of the group looks like and whom one that a peer showed stands for; what
//! a join token is and whether an attempt to use one succeeds; when an identity renews and when a
//! renewal tells that a key was copied. Holds no socket, reads no clock and draws no randomness: keys,
//! serial numbers and `now` come in.
//!
//! Does not decide whether a peer's chain is valid (rustls does, in `iop-net`), stores nothing
//! (`iop-store` does) and knows nothing of credentials (`iop-lease`).
//!
//! The life of an identity:
//!
//! ```text
//!  Edge: Authority::create ── issue ──▶ its own certificate (7 days)
//!          │ JoinToken::from_random ──────────────────────────▶ a person ──▶ Node: JoinToken::from_str
//!          │                                                                 IdentityKey::from_seed
//!          │ Attempts::admit                  id, secret, request            SigningRequest::write
//!          │ Invitation::recognise ◀──── TLS to a CA that has the pin ───────┘
//!          │ burn in the store, Burn::settle, Joining::with_own_key
//!          └ issue ── chain, roots, renewal_seq 0 ─────────────────────────▶ keeps key and chain
//!
//!  every link:  PeerIdentity::read at both ends, once rustls has verified
//!  half a life: renewal::due ── renewal::prove ──▶ renewal::is_proved, Renewals::judge ── issue ──▶
//! ```
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use iop_identity::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let now = SystemTime::now();
//! let domain = TrustDomain::new("home")?;
//! let authority = Authority::create(domain.clone(), &[1; 32], &Serial::from_random([2; 16]), now)?;
//!
//! let node = IdentityKey::from_seed(&[3; 32]);
//! let asked = SigningRequest::read(&SigningRequest::write(&node))?;
//! let id = SpiffeId::new(domain.clone(), Kind::Node, "workstation")?;
//! let serial = Serial::from_random([4; 16]);
//! let leaf = authority.issue(&id, &asked.key(), &serial, Duration::from_secs(86_400), now)?;
//!
//! let peer = PeerIdentity::read(&leaf, &domain, Kind::Node)?;
//! assert_eq!(peer.id.to_string(), "spiffe://home/iop/node/workstation");
//! # Ok(())
//! # }
//! ```
//!
//! Read next: [`spiffe`] for names, [`authority`] for what is issued, [`certificate`] for what is
//! believed, [`token`] and [`invitation`] for how a Node joins, [`renewal`] for how it stays.

pub mod attempts;
pub mod authority;
pub mod certificate;
pub mod invitation;
pub mod key;
pub mod renewal;
pub mod request;
pub mod roots;
pub mod spiffe;
mod statement;
pub mod token;

pub use attempts::Attempts;
pub use authority::{Authority, IssueError};
pub use certificate::{IdentityError, PeerIdentity, Serial};
pub use invitation::{Attempt, Burn, Invitation, JoinRefusal, Joining};
pub use key::{IdentityKey, Pin, PublicKey};
pub use renewal::Renewals;
pub use request::{RequestError, SigningRequest};
pub use roots::{Roll, Root, RootError, Roots, Stage};
pub use spiffe::{Kind, NameError, SpiffeId, TrustDomain};
pub use token::{InvitationId, JoinSecret, JoinToken, SecretHash, TokenError};
