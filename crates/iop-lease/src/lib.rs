//! Credential grants and leases: how a provider's secret travels from an Edge to the one request that
//! needs it.
//!
//! Decides the bytes of a grant and of a lease, the order in which a Node checks them, what a replay is
//! and what a revocation hits. Holds no socket, reads no clock and draws no randomness: `now` is an
//! argument, and so is whatever must be random.
//!
//! Does not decide whether a request may have a credential (the Edge's host does, from its store), nor
//! where the secret goes once open (an adapter's business).
//!
//! # At an Edge
//!
//! ```text
//! once            time = EdgeTime::new(wall clock, now)
//!                 signer = Signer::vouched(seed, edge, from, until, |bytes| ca.sign(bytes))
//! registration    edge_time_ms: time.now_ms(now), lease_signers: [signer.statement()]
//! RecipientKey    recipient = RecipientPublic::verify(&key, &link, &exporter, &node's key)
//!                 first: issuer = Issuer::new(link, signer, recipient)
//!                 later: issuer.handle_recipient_key(recipient)
//! each attempt    issued = issuer.issue(&scope, subject, secret, life, time.now_ms(now), random)
//!                 queue issued.grant, then the head with issued.lease; only then the next attempt
//! refused         issuer.forget(&scope)
//! revocation      issuer.handle_revocation(&revocation), and the frame to the Node
//! ```
//!
//! # At a Node
//!
//! ```text
//! registered      time = EdgeTime::new(edge_time_ms, now)
//!                 signers = each TrustedSigner::verify(statement, edge, the CA's key)
//!                 grants = Grants::new(link, signers, time, seed, replay_bound(max_streams), now)
//!                 send grants.recipient().prove(&link, &exporter, |bytes| identity.sign(bytes))
//! heartbeat       grants.handle_edge_time(edge_time_ms, now)
//!                 grants.rotate(seed, now): send the proof of what it returns
//! grant           grants.handle_grant(&grant, now): log a fault
//! revocation      grants.handle_revocation(revocation, now)
//! each request    the entry has a slot and the head a lease: grants.check(&lease, &request, now)
//!                 neither: nothing to do; one of them: LeaseFault::Missing
//!                 after the gate: grants.open(checked, now, generation)
//!                 write secret.header() and secret.expose(), marked as sensitive; drop the secret
//! ```
//!
//! Read next: [`grants`] for the order of checks, [`claims`] for what is bound, [`seal`] for the bytes;
//! `docs/lease.md` for the construction as a whole.

pub mod claims;
mod domain;
mod grant_key;
pub mod grants;
mod id;
pub mod issuer;
mod link;
mod origin;
pub mod recipient;
pub mod seal;
pub mod secret;
pub mod signer;
pub mod time;
mod transcript;

pub use claims::{Binding, GrantClaims, GrantScope, LeaseClaims, Subject};
pub use grant_key::GrantKey;
pub use grants::{Checked, Grants, OpenScope, Opened, ThisRequest, replay_bound};
pub use id::{GrantId, Kid, LeaseId};
pub use issuer::{Issued, Issuer};
pub use link::ThisLink;
pub use origin::{NoOrigin, Origin};
pub use recipient::{Recipient, RecipientPublic, UnprovenKey};
pub use seal::SealError;
pub use secret::{OpenSecret, UnfitSecret, check_secret};
pub use signer::{Signer, TrustedSigner, UntrustedSigner};
pub use time::{EdgeTime, Validity};
