//! A call's output on its way to the link.

use std::task::{Context, Poll};

use iop_execution::{Fenced, Outlet, Terminus};
use iop_net::link::{Answer, AnswerSender};
use iop_types::{CommandFrame, CommandId, Event, Refusal, SessionId, TunnelFrame};
use iop_wire::answer::{
    command_frame, command_refusal, run_event, run_refusal, tunnel_frame, tunnel_refusal,
};

/// The answers of one normalized run.
pub(crate) struct Events {
    sender: AnswerSender,
    session: Option<SessionId>,
    echoed: bool,
}

impl Events {
    pub(crate) const fn new(sender: AnswerSender, session: Option<SessionId>) -> Self {
        Self { sender, session, echoed: false }
    }

    /// Ends the run before it began.
    pub(crate) fn refuse(self, refusal: &Refusal) -> Result<(), Fenced> {
        let answer = Answer::Event(run_refusal(refusal, self.session.as_ref()));
        self.sender.finish(answer).map_err(|_| Fenced)
    }
}

impl Outlet<Event> for Events {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fenced>> {
        self.sender.poll_ready(cx).map_err(|_| Fenced)
    }

    fn put(&mut self, event: Event) -> Result<(), Fenced> {
        let session = if self.echoed { None } else { self.session.as_ref() };
        let event = run_event(event, session);
        self.echoed = true;
        self.sender.send(Answer::Event(event)).map_err(|_| Fenced)
    }
}

impl Terminus<Event> for Events {
    fn finish(self, terminal: Event) -> Result<(), Fenced> {
        let answer = Answer::Event(run_event(terminal, self.session.as_ref()));
        self.sender.finish(answer).map_err(|_| Fenced)
    }
}

/// The answers of one tunnel.
pub(crate) struct Frames {
    sender: AnswerSender,
    session: Option<SessionId>,
}

impl Frames {
    pub(crate) const fn new(sender: AnswerSender, session: Option<SessionId>) -> Self {
        Self { sender, session }
    }

    /// Ends the tunnel before it began.
    pub(crate) fn refuse(self, refusal: &Refusal) -> Result<(), Fenced> {
        let answer = Answer::Frame(tunnel_refusal(refusal, self.session.as_ref()));
        self.sender.finish(answer).map_err(|_| Fenced)
    }

    fn answer(&self, frame: TunnelFrame) -> Answer {
        Answer::Frame(tunnel_frame(frame, self.session.as_ref()))
    }
}

impl Outlet<TunnelFrame> for Frames {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fenced>> {
        self.sender.poll_ready(cx).map_err(|_| Fenced)
    }

    fn put(&mut self, frame: TunnelFrame) -> Result<(), Fenced> {
        let answer = self.answer(frame);
        self.sender.send(answer).map_err(|_| Fenced)
    }
}

impl Terminus<TunnelFrame> for Frames {
    fn finish(self, terminal: TunnelFrame) -> Result<(), Fenced> {
        let answer = self.answer(terminal);
        self.sender.finish(answer).map_err(|_| Fenced)
    }
}

/// The answers of one command.
pub(crate) struct Steps {
    sender: AnswerSender,
    id: CommandId,
    session: Option<SessionId>,
}

impl Steps {
    pub(crate) const fn new(
        sender: AnswerSender,
        id: CommandId,
        session: Option<SessionId>,
    ) -> Self {
        Self { sender, id, session }
    }

    /// Ends the command before it began.
    pub(crate) fn refuse(self, refusal: &Refusal) -> Result<(), Fenced> {
        let answer = Answer::Command(command_refusal(self.id, refusal, self.session.as_ref()));
        self.sender.finish(answer).map_err(|_| Fenced)
    }

    fn answer(&self, frame: CommandFrame) -> Answer {
        Answer::Command(command_frame(self.id, frame, self.session.as_ref()))
    }
}

impl Outlet<CommandFrame> for Steps {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Fenced>> {
        self.sender.poll_ready(cx).map_err(|_| Fenced)
    }

    fn put(&mut self, frame: CommandFrame) -> Result<(), Fenced> {
        let answer = self.answer(frame);
        self.sender.send(answer).map_err(|_| Fenced)
    }
}

impl Terminus<CommandFrame> for Steps {
    fn finish(self, terminal: CommandFrame) -> Result<(), Fenced> {
        let answer = self.answer(terminal);
        self.sender.finish(answer).map_err(|_| Fenced)
    }
}
