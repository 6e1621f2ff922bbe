//! A provider that plays a script: for demonstrations and tests. Runs only, no sockets.
//!
//! Everything it will do for a request is decided before the first step ([`plan`]) and is the same
//! for the same script, seed and input. Waits are tokio's, so that paused time drives them.

mod plan;
mod prompt;
mod script;

use std::time::Duration;

use bytes::Bytes;
use iop_execution::{
    BoxFuture, CallError, Cancelled, Completion, DiscoverError, Discovery, Fenced, Look, Outlet,
    Probe, ProbeOutcome, Provider, Sent, StartError,
};
use iop_types::{AdapterType, Capabilities, Event, HealthEvidence, RunKind, RunRequest};

use self::plan::{Step, plan};
use self::prompt::Prompt;
use self::script::Script;
pub use self::script::ScriptError;
use crate::settings::{ProviderSettings, Targets};

/// A provider that plays a script.
pub(crate) struct Mock {
    script: Script,
    targets: Targets,
    capabilities: Capabilities,
}

impl Mock {
    /// Makes the provider; without a script it plays the demonstration.
    pub(crate) fn new(settings: &ProviderSettings) -> Result<Self, ScriptError> {
        let script =
            settings.script.as_deref().map_or_else(|| Ok(Script::demo()), Script::parse)?;
        let capabilities = Capabilities {
            runs: vec![RunKind::Chat, RunKind::Completion, RunKind::Embedding],
            ..Capabilities::default()
        };
        Ok(Self { script, targets: settings.targets.clone(), capabilities })
    }
}

/// Checks a script without making a provider of it.
///
/// # Errors
/// Names the member at fault by its path.
pub fn check_script(text: &str) -> Result<(), ScriptError> {
    Script::parse(text).map(drop)
}

impl Provider for Mock {
    fn adapter(&self) -> AdapterType {
        AdapterType::Mock
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn start(&self) -> BoxFuture<'_, Result<(), StartError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn discover(&self) -> BoxFuture<'_, Result<Discovery, DiscoverError>> {
        let targets = self.targets.select(self.script.targets.iter().cloned());
        let discovery =
            Discovery { loaded: targets.clone(), targets, queued: Some(0), is_idle: false };
        Box::pin(std::future::ready(Ok(discovery)))
    }

    fn probe(&self) -> Option<&dyn Probe> {
        Some(self)
    }

    fn run<'a>(
        &'a self,
        request: RunRequest,
        input: Bytes,
        outlet: &'a mut dyn Outlet<Event>,
        cancelled: &'a mut Cancelled,
    ) -> BoxFuture<'a, Result<Completion, CallError>> {
        Box::pin(async move {
            let answer = self.script.answer_for(&request.head.target);
            let prompt = Prompt::read(request.kind, &input).map_err(CallError::Failed)?;
            let (steps, completion) = plan(answer, request.kind, &prompt);
            outlet.note_sent(Sent::Whole);
            let mut stage = Stage { outlet, cancelled, ignores_cancel: answer.ignore_cancel };
            for step in steps {
                stage.play(step).await?;
            }
            if stage.cancelled.is_cancelled() { Err(CallError::Cancelled) } else { Ok(completion) }
        })
    }
}

impl Probe for Mock {
    fn probe(&self, look: Look) -> BoxFuture<'_, ProbeOutcome> {
        let is_served = self.targets.select(self.script.targets.iter().cloned());
        let outcome = match self.script.answer_for(&look.target).health {
            _ if !is_served.contains(&look.target) => ProbeOutcome::Unavailable,
            HealthEvidence::Available => ProbeOutcome::Available,
            HealthEvidence::Unavailable => ProbeOutcome::Unavailable,
            HealthEvidence::Unknown => ProbeOutcome::Unknown,
        };
        Box::pin(std::future::ready(outcome))
    }
}

/// Where the steps of one call are played.
struct Stage<'a> {
    outlet: &'a mut dyn Outlet<Event>,
    cancelled: &'a mut Cancelled,
    ignores_cancel: bool,
}

impl Stage<'_> {
    async fn play(&mut self, step: Step) -> Result<(), CallError> {
        let playing = async {
            match step {
                Step::Wait(length) => tokio::time::sleep(length).await,
                Step::WaitForever => std::future::pending().await,
                Step::Emit(event) => match self.outlet.emit(event).await {
                    // The fenced output of a provider that goes on regardless is lost, no more.
                    Err(Fenced) if self.ignores_cancel => tokio::time::sleep(Duration::ZERO).await,
                    emitted => emitted?,
                },
                Step::Fail(failure) => return Err(CallError::Failed(failure)),
            }
            Ok(())
        };
        tokio::select! {
            biased;
            () = &mut *self.cancelled, if !self.ignores_cancel => Err(CallError::Cancelled),
            played = playing => played,
        }
    }
}
