//! What is written next.

use iop_types::CloseReason;
use iop_wire::v1::{self, Envelope};
use iop_wire::{Message, frame};

use super::behaviour::Head;
use super::{Farewell, Link, Role};
use crate::outbox::{Control, FRAME_OVERHEAD, MAX_BATCH, QUANTUM, Urgent};
use crate::stream::StreamKey;

impl<R: Role> Link<R> {
    /// Appends the next batch to an empty `batch`, at most [`MAX_BATCH`] bytes unless one frame alone
    /// is longer. Leaves it empty when there is nothing to send.
    ///
    /// Everything in a batch is on its way: what is still queued can be overtaken or withdrawn, a
    /// batch cannot.
    pub fn transmit(&mut self, batch: &mut Vec<u8>) {
        self.transmit_within(MAX_BATCH, batch);
    }

    /// As [`Self::transmit`], with room for more (or less) than a usual batch.
    pub fn transmit_within(&mut self, room: usize, batch: &mut Vec<u8>) {
        // The first word of either end is about the registration. A heartbeat must not overtake it:
        // the Edge may be asked for one as soon as it has seated the Node.
        if self.sent_bytes == 0
            && let Some(frame) = self.outbox.pop_control()
        {
            self.write_control(frame, batch);
        }
        while batch.len() < room {
            let Some(frame) = self.outbox.pop_urgent() else { break };
            self.write_urgent(frame, batch);
        }
        while batch.len() < room {
            let Some(frame) = self.outbox.pop_control() else { break };
            self.write_control(frame, batch);
        }
        if batch.len() < room {
            self.write_streams(room, batch);
        }
        if self.outbox.is_empty()
            && batch.len() < room
            && let Some(close) = self.farewell.take()
        {
            self.write(link_message(Message::Close(close)), batch);
        }
        self.sent_bytes += batch.len() as u64;
        self.check_drained();
    }

    fn write_urgent(&mut self, frame: Urgent, batch: &mut Vec<u8>) {
        let message = match frame {
            Urgent::Heartbeat(id) => Message::HeartbeatRequest(v1::HeartbeatRequest { id }),
            Urgent::HeartbeatReply(id) => {
                Message::HeartbeatResponse(v1::HeartbeatResponse { id, edge_time_ms: 0 })
            }
            Urgent::Drain(drain) => Message::Drain(drain),
            Urgent::Credit(key) => {
                let Some(stream) = self.streams.get_mut(key) else { return };
                let bytes = std::mem::take(&mut stream.inn.grant);
                if bytes > 0 {
                    self.write_stream(key, Message::Credit(v1::Credit { bytes }), batch);
                }
                return;
            }
        };
        self.write(link_message(message), batch);
    }

    fn write_control(&mut self, frame: Control, batch: &mut Vec<u8>) {
        match frame {
            Control::Link(message) => self.write(link_message(*message), batch),
            Control::Head(key) => {
                let Some(head) = self.streams.get_mut(key).and_then(R::take_head) else { return };
                let Head { message, body_credit, answer_credit } = head;
                let seq = self.streams[key].out.next_seq();
                let message = Some(message);
                let envelope =
                    Envelope { body_credit, answer_credit, ..stream_message(key, seq, message) };
                self.write(envelope, batch);
                self.schedule(key);
            }
            Control::Cancel(key, reason) => {
                let Some(stream) = self.streams.get_mut(key) else { return };
                R::sent_cancel(stream);
                let reason = reason.into();
                self.write_stream(key, Message::Cancel(v1::Cancel { reason }), batch);
                self.retire(key);
            }
        }
    }

    /// Writes what the streams may send, a quantum each, until the batch is full.
    fn write_streams(&mut self, room: usize, batch: &mut Vec<u8>) {
        while let Some(key) = self.outbox.turn() {
            let Some(stream) = self.streams.get_mut(key) else {
                self.outbox.leave();
                continue;
            };
            let Some(len) = stream.out.next_len() else {
                stream.out.scheduled = false;
                self.outbox.leave();
                continue;
            };
            if stream.out.deficit <= 0 {
                stream.out.deficit += QUANTUM;
                self.outbox.next_turn();
                continue;
            }
            if !batch.is_empty() && batch.len() + len + FRAME_OVERHEAD > room {
                return;
            }
            self.write_piece(key, batch);
        }
    }

    fn write_piece(&mut self, key: StreamKey, batch: &mut Vec<u8>) {
        let before = batch.len();
        let Some(piece) = self.streams[key].out.pop() else { return };
        self.write_stream(key, piece.into(), batch);
        let written = i64::try_from(batch.len() - before).unwrap_or(i64::MAX);
        let out = &mut self.streams[key].out;
        out.deficit -= written;
        if out.is_ended() {
            R::sent_last(self, key);
        } else {
            self.signal_writable(key);
        }
    }

    fn write_stream(&mut self, key: StreamKey, message: Message, batch: &mut Vec<u8>) {
        let seq = self.streams[key].out.next_seq();
        self.write(stream_message(key, seq, Some(message)), batch);
    }

    /// Everything that can be too long was checked where it was queued, but for the lists of a
    /// configuration or a report: those end the link rather than arrive in part.
    fn write(&mut self, envelope: Envelope, batch: &mut Vec<u8>) {
        if frame::encode(&envelope, batch).is_err() {
            self.end(CloseReason::FrameTooLarge, Farewell::Fence);
        }
    }
}

fn link_message(message: Message) -> Envelope {
    Envelope { message: Some(message), ..Envelope::default() }
}

fn stream_message(key: StreamKey, seq: u64, message: Option<Message>) -> Envelope {
    Envelope { stream_id: key.id, seq, message, ..Envelope::default() }
}
