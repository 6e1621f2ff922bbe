//! Which link a grant belongs to.

use iop_types::{EdgeBootId, Generation, NodeId};

/// The two ends of one link as their certificates name them, and which of their links it is.
///
/// Both ends make it when the link is registered. Grants carry all of it, so that nothing made for one
/// link is good on another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThisLink {
    /// Trust domain of the group: the host part of its SPIFFE ids.
    pub trust_domain: String,
    /// The Edge, as its certificate names it.
    pub edge: String,
    /// Which start of the Edge.
    pub boot: EdgeBootId,
    /// The Node, as its certificate names it.
    pub node: NodeId,
    /// Which link of the Node.
    pub generation: Generation,
}
