//! The tap of the simulation, and what the engine sees of it.

use std::cell::RefCell;
use std::collections::VecDeque;

use tapring_queue::{RxSource, TxFrame, TxSink};

use super::guest::Guest;

#[derive(Default)]
pub(super) struct Tap {
    pub(super) sent: Vec<usize>,
    /// Frames in flight, and whether their completions are in.
    pub(super) batch: Vec<Vec<u8>>,
    pub(super) done: bool,
    pub(super) full: bool,
    pub(super) pollout: bool,
    pub(super) pollin: bool,
    /// Frames of the host, made and not read; and read and not delivered.
    pub(super) made: usize,
    pub(super) queue: VecDeque<Vec<u8>>,
    pub(super) held: VecDeque<Vec<u8>>,
}

/// The guest acts between the frames of a batch.
pub(super) struct Sink<'w>(pub(super) &'w mut Tap, pub(super) &'w RefCell<Guest>);

impl TxSink for Sink<'_> {
    fn push(&mut self, frame: &TxFrame<'_>) -> bool {
        self.1.borrow_mut().step();
        let mut bytes = vec![0; frame.bytes()];
        frame.copy_to(&mut bytes);
        self.0.batch.push(bytes);
        true
    }
}

pub(super) struct Source<'w>(
    pub(super) &'w mut VecDeque<Vec<u8>>,
    pub(super) &'w RefCell<Guest>,
);

impl RxSource for Source<'_> {
    fn front(&self) -> Option<&[u8]> {
        self.1.borrow_mut().step();
        self.0.front().map(Vec::as_slice)
    }

    fn pop(&mut self) {
        self.0.pop_front().expect("a frame is held");
    }
}
