//! A tap that does as it is told.

use std::collections::VecDeque;

use tapring_queue::{RxSource, TxFrame, TxOutcome, TxSink};

#[derive(Default)]
pub(crate) struct Tap {
    /// Frames the host received, in order.
    pub(crate) sent: Vec<Vec<u8>>,
    /// The batch being built or in flight.
    pub(crate) batch: Vec<Vec<u8>>,
    /// Most frames in a batch; none given, any number.
    pub(crate) batch_limit: Option<usize>,
    /// Frames it still takes before it is full; none given, any number.
    pub(crate) room: Option<usize>,
    /// Frames read and not delivered.
    pub(crate) held: VecDeque<Vec<u8>>,
    /// Pieces of guest memory each frame of the batch came in; none if it was gathered.
    pub(crate) pieces: Vec<Option<usize>>,
}

impl Tap {
    /// The batch's writes complete: as many as there is room for, in order.
    pub(crate) fn write(&mut self) -> Vec<TxOutcome> {
        let room = self.room;
        let frames = self.batch.len();
        self.write_as((0..frames).map(|i| match room {
            Some(room) if i >= room => TxOutcome::NotSent,
            _ => TxOutcome::Sent,
        }))
    }

    /// The batch's writes complete as told.
    pub(crate) fn write_as(
        &mut self,
        outcomes: impl IntoIterator<Item = TxOutcome>,
    ) -> Vec<TxOutcome> {
        self.pieces.clear();
        let mut result = Vec::new();
        for (frame, outcome) in self.batch.drain(..).zip(outcomes) {
            if outcome == TxOutcome::Sent {
                self.sent.push(frame);
                self.room = self.room.map(|room| room - 1);
            }
            result.push(outcome);
        }
        result
    }
}

impl TxSink for Tap {
    fn push(&mut self, frame: &TxFrame<'_>) -> bool {
        if self
            .batch_limit
            .is_some_and(|limit| self.batch.len() >= limit)
        {
            return false;
        }
        assert_eq!(frame.header()[..10], [0; 10], "only plain headers pass");
        let mut bytes = vec![0; frame.bytes()];
        frame.copy_to(&mut bytes);
        if let Some(parts) = frame.parts() {
            assert_eq!(gathered(parts), bytes);
        }
        self.pieces.push(frame.parts().map(<[_]>::len));
        self.batch.push(bytes);
        true
    }
}

fn gathered(parts: &[vm_memory::VolatileSlice<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        let at = bytes.len();
        bytes.resize(at + part.len(), 0);
        part.copy_to(&mut bytes[at..]);
    }
    bytes
}

impl RxSource for Tap {
    fn front(&self) -> Option<&[u8]> {
        self.held.front().map(Vec::as_slice)
    }

    fn pop(&mut self) {
        self.held.pop_front().expect("a frame was held");
    }
}
