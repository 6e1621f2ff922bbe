//! What a client asked for.

use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, Version};
use iop_admission::AffinityKey;
use iop_dialect::splice::Routing;
use iop_store::Receipt;
use iop_types::SessionId;

use super::upload::Upload;
use crate::surface::openai::Operation;

/// What a client asked for, read once.
pub(crate) struct Call {
    /// The operation of the surface.
    pub(crate) operation: &'static Operation,
    /// What history was told at receipt.
    pub(crate) receipt: Receipt,
    /// When it was received.
    pub(crate) received: Instant,
    /// Correlation value, echoed.
    pub(crate) session_id: Option<SessionId>,
    /// Path and query as the client sent them.
    pub(crate) path_and_query: String,
    /// HTTP version in which the client speaks.
    pub(crate) version: Version,
    /// What routing needs of the body.
    pub(crate) routing: Routing,
    /// Length of the body.
    pub(crate) body_bytes: usize,
    /// Ties calls with a common prefix to one provider.
    pub(crate) affinity: Option<AffinityKey>,
}

/// What may have to be sent more than once; let go as soon as it cannot be any more, because a stream
/// may live long.
pub(crate) struct Original {
    /// Headers as the client sent them.
    pub(crate) headers: HeaderMap,
    /// The body.
    pub(crate) payload: Payload,
}

/// The body as the client sends it.
pub(crate) enum Payload {
    /// All of it.
    Whole(Bytes),
    /// It passes while it arrives.
    Arriving(Box<Upload>),
}

impl Payload {
    /// Says whether all of it is here and can be sent any number of times.
    pub(super) const fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_))
    }
}

impl Call {
    /// Says whether the client wants its answer piece by piece; vectors come whole whatever it says.
    pub(super) fn is_stream(&self) -> bool {
        self.operation.text.is_some() && self.routing.is_stream()
    }
}
