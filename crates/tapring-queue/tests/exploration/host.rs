//! The host: a tap that is full at times, and the kernel that completes writes to it.

use std::cell::RefCell;
use std::collections::VecDeque;

use tapring_queue::{RxSource, TxFrame, TxOutcome, TxSink};

use crate::case::Case;
use crate::frames::number_of;
use crate::guest::Guest;

#[derive(Clone, Debug, Hash)]
pub(crate) struct Host {
    /// Frames to the guest that it may still send, and those it has sent.
    left: u8,
    sent: u8,
    /// Frames in the tap, and read by the worker and not delivered, by their numbers.
    pub(crate) queue: VecDeque<u8>,
    pub(crate) held: VecDeque<u8>,
    pub(crate) delivered: u16,
    /// The tap takes no more, and how often it may yet become full.
    pub(crate) full: bool,
    fills: u8,
    /// Frames behind one that was not sent may be sent.
    holes: bool,
    /// The batch with the kernel, by the frames' numbers.
    pub(crate) batch: Vec<u8>,
    /// Whether each was sent, once all is complete.
    pub(crate) done: Option<Vec<bool>>,
    /// Frames from the guest that arrived: one bit each, and how many.
    arrived: u32,
    pub(crate) received: u16,
    /// The one-shot polls that are armed.
    pub(crate) pollin: bool,
    pub(crate) pollout: bool,
}

/// What the host, its tap or its kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happens {
    Send,
    Fill,
    Drain,
    Complete,
}

impl Host {
    pub(crate) fn new(case: &Case) -> Self {
        Self {
            left: case.frames,
            sent: case.queued,
            queue: (0..case.queued).collect(),
            held: VecDeque::new(),
            delivered: 0,
            full: false,
            fills: case.tap_fills,
            holes: case.holes,
            batch: Vec::new(),
            done: None,
            arrived: 0,
            received: 0,
            pollin: false,
            pollout: false,
        }
    }

    pub(crate) const fn in_flight(&self) -> bool {
        !self.batch.is_empty()
    }

    pub(crate) fn can(&self, happens: Happens) -> bool {
        match happens {
            Happens::Send => self.left > 0,
            Happens::Fill => !self.full && self.fills > 0,
            Happens::Drain => self.full,
            Happens::Complete => self.in_flight() && self.done.is_none(),
        }
    }

    pub(crate) fn happens(&mut self, happens: Happens, guest: &mut Guest<'_>) {
        match happens {
            Happens::Send => {
                self.queue.push_back(self.sent);
                guest
                    .notes
                    .step(|| format!("host sends frame {}", self.sent));
                self.left -= 1;
                self.sent += 1;
            }
            Happens::Fill => {
                self.fills -= 1;
                self.full = true;
                guest.notes.step(|| "tap becomes full".to_owned());
            }
            Happens::Drain => {
                self.full = false;
                guest.notes.step(|| "tap drains".to_owned());
            }
            Happens::Complete => self.complete(guest),
        }
    }

    /// A full tap takes some of the batch, and where writes are not linked maybe one behind the
    /// first it did not take.
    fn complete(&mut self, guest: &mut Guest<'_>) {
        let frames = self.batch.len();
        let mut sent = vec![true; frames];
        if self.full {
            let taken = guest.choices.choose(frames);
            sent[taken..].fill(false);
            let behind = frames - taken - 1;
            if self.holes && behind > 0 {
                let hole = guest.choices.choose(behind + 1);
                if hole > 0 {
                    sent[taken + hole] = true;
                }
            }
        }
        for (at, _) in sent.iter().enumerate().filter(|(_, sent)| **sent) {
            self.arrive(self.batch[at]);
        }
        guest
            .notes
            .step(|| format!("writes complete: {}", words_of(&sent)));
        self.done = Some(sent);
    }

    /// No frame is doubled, and without holes none is out of order.
    fn arrive(&mut self, frame: u8) {
        assert!(
            self.arrived & (1 << frame) == 0,
            "frame {frame} is sent twice"
        );
        let next = u16::from(frame) == self.received;
        assert!(next || self.holes, "frame {frame} is out of order");
        self.arrived |= 1 << frame;
        self.received += 1;
    }

    /// Whether an event is on its way to a worker that sleeps.
    pub(crate) fn has_event(&self) -> bool {
        self.done.is_some() || self.is_writable() || self.is_readable()
    }

    pub(crate) const fn is_writable(&self) -> bool {
        self.pollout && !self.full
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.pollin && !self.queue.is_empty()
    }
}

fn words_of(sent: &[bool]) -> String {
    let words: Vec<_> = sent
        .iter()
        .map(|sent| if *sent { "sent" } else { "EAGAIN" })
        .collect();
    words.join(", ")
}

/// What became of a batch, in the engine's words. The guest may act between any two.
pub(crate) fn outcomes<'w>(
    sent: &'w [bool],
    guest: &'w RefCell<Guest<'_>>,
) -> impl Iterator<Item = TxOutcome> {
    sent.iter().map(|sent| {
        guest.borrow_mut().may_act();
        match sent {
            true => TxOutcome::Sent,
            false => TxOutcome::NotSent,
        }
    })
}

/// The batch that is built. The guest may act while a frame is copied.
pub(crate) struct Sink<'w, 's> {
    pub(crate) batch: &'w mut Vec<u8>,
    pub(crate) guest: &'w RefCell<Guest<'s>>,
}

impl TxSink for Sink<'_, '_> {
    fn push(&mut self, frame: &TxFrame<'_>) -> bool {
        self.guest.borrow_mut().may_act();
        let mut bytes = vec![0; frame.bytes()];
        frame.copy_to(&mut bytes);
        self.batch.push(u8::try_from(number_of(&bytes)).unwrap());
        true
    }
}

/// The frames held. The guest may act when the engine looks for one.
pub(crate) struct Source<'w, 's> {
    pub(crate) held: &'w mut VecDeque<u8>,
    /// Frames by their numbers.
    pub(crate) frames: &'w [Vec<u8>],
    /// The frames that left.
    pub(crate) left: Vec<u8>,
    pub(crate) guest: &'w RefCell<Guest<'s>>,
}

impl RxSource for Source<'_, '_> {
    fn front(&self) -> Option<&[u8]> {
        self.guest.borrow_mut().may_act();
        let number = self.held.front()?;
        Some(&self.frames[usize::from(*number)])
    }

    fn pop(&mut self) {
        let frame = self.held.pop_front().expect("a frame is held");
        self.left.push(frame);
    }
}
