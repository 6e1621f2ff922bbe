//! Figures for providers that report none.

use iop_types::{Usage, UsageSource};

/// Bytes of a request body that are taken for one token: the usual ratio of English prose.
const BYTES_PER_TOKEN: u64 = 4;

/// Estimates what a request consumed when its provider did not say.
///
/// The prompt counts a token per four bytes of the request body, JSON syntax included; the output
/// counts a token per content delta, which is what token-by-token servers send. Both are estimates
/// and must be shown as such ([`UsageSource::Estimated`]).
pub const fn estimate(request_bytes: u64, deltas: u64) -> Usage {
    Usage { input_tokens: request_bytes.div_ceil(BYTES_PER_TOKEN), output_tokens: deltas }
}

/// Takes the provider's figures where there are any, else an [`estimate`].
pub fn settle(reported: Option<Usage>, request_bytes: u64, deltas: u64) -> (Usage, UsageSource) {
    match reported {
        Some(usage) => (usage, UsageSource::Provider),
        None => (estimate(request_bytes, deltas), UsageSource::Estimated),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_the_provider_win_over_the_estimate() {
        let reported = Usage { input_tokens: 9, output_tokens: 1 };
        assert_eq!(settle(Some(reported), 400, 20), (reported, UsageSource::Provider));
        let estimated = Usage { input_tokens: 101, output_tokens: 20 };
        assert_eq!(settle(None, 401, 20), (estimated, UsageSource::Estimated));
    }
}
