//! What a message of a stream means to the account, read off the schema.

use iop_wire::v1::{Failure, provider_tunnel_frame, run_error, run_event, tunnel_error};
use iop_wire::{Message, frame};

/// What the smallest paid message costs, as the protocol has it.
const MIN_CHARGE: u64 = 64;

/// Returns the credit that a message costs.
pub(super) fn charge(message: &Message) -> u64 {
    let payload = frame::payload(message).map_or(0, |payload| payload.len() as u64);
    let is_free = match message {
        Message::RequestBody(body) => body.last && payload == 0,
        Message::RunEvent(event) => {
            let starts = matches!(event.kind, Some(run_event::Kind::Start(_)));
            (starts || is_last(message)) && payload == 0
        }
        Message::ProviderTunnelFrame(frame) => {
            !matches!(frame.kind, Some(provider_tunnel_frame::Kind::Body(_)))
        }
        _ => true,
    };
    if is_free { 0 } else { payload.max(MIN_CHARGE) }
}

/// Says whether its direction of a stream ends with this message.
pub(super) fn is_last(message: &Message) -> bool {
    match message {
        Message::RequestBody(body) => body.last,
        Message::Cancel(_) => true,
        Message::RunEvent(event) => matches!(
            event.kind,
            Some(
                run_event::Kind::Complete(_)
                    | run_event::Kind::Error(_)
                    | run_event::Kind::Cancelled(_)
            )
        ),
        Message::ProviderTunnelFrame(frame) => matches!(
            frame.kind,
            Some(
                provider_tunnel_frame::Kind::End(_)
                    | provider_tunnel_frame::Kind::Error(_)
                    | provider_tunnel_frame::Kind::Cancelled(_)
            )
        ),
        _ => false,
    }
}

/// Returns the number of the health observation that a message carries.
pub(super) fn observation(message: &Message) -> Option<u64> {
    if let Message::HealthObservation(observation) = message {
        return Some(observation.health_observation_seq);
    }
    failure(message)?.stall.as_ref()?.health_observation_seq
}

fn failure(message: &Message) -> Option<&Failure> {
    match message {
        Message::RunEvent(event) => match event.kind.as_ref()? {
            run_event::Kind::Error(error) => match error.error.as_ref()? {
                run_error::Error::Failure(failure) => Some(failure),
                run_error::Error::Refused(_) => None,
            },
            _ => None,
        },
        Message::ProviderTunnelFrame(frame) => match frame.kind.as_ref()? {
            provider_tunnel_frame::Kind::Error(error) => match error.error.as_ref()? {
                tunnel_error::Error::Failure(failure) => Some(failure),
                tunnel_error::Error::Refused(_) => None,
            },
            _ => None,
        },
        _ => None,
    }
}
