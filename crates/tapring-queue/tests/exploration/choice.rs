//! Where a run can go on in more than one way.
//!
//! A world is deterministic but for the questions it asks here. The answers to all questions of a
//! step are its *script*; a run is the scripts of its steps. So a run is played again by its
//! scripts, and all continuations are found by asking for each script that was not tried yet.

/// Questions a step may ask. One more is a mistake in the world.
const MOST: usize = 12;

/// The answers to the questions of one step, in order; those left out are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Script {
    answers: [u8; MOST],
    len: u8,
}

impl Script {
    fn answers(&self) -> &[u8] {
        &self.answers[..usize::from(self.len)]
    }

    fn then(mut self, zeros: usize, answer: u8) -> Self {
        let at = usize::from(self.len) + zeros;
        self.answers[at] = answer;
        self.len = u8::try_from(at + 1).unwrap();
        self
    }
}

/// The questions of one step, answered by a script.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choices {
    script: Script,
    /// The number of possible answers to each question that was asked.
    asked: [u8; MOST],
    len: usize,
}

impl Choices {
    /// Answers the next step's questions by `script`.
    pub(crate) fn follow(&mut self, script: Script) {
        self.script = script;
        self.len = 0;
    }

    /// One of `answers`, which are at least one.
    pub(crate) fn choose(&mut self, answers: usize) -> usize {
        let answer = self.script.answers().get(self.len).copied();
        self.asked[self.len] = u8::try_from(answers).unwrap();
        self.len += 1;
        usize::from(answer.unwrap_or(0))
    }

    /// The scripts that agree with the one followed and go on differently behind it.
    pub(crate) fn siblings(&self) -> impl Iterator<Item = Script> {
        let given = usize::from(self.script.len);
        let behind = self.asked[given..self.len].iter().enumerate();
        behind.flat_map(move |(zeros, &answers)| {
            (1..answers).map(move |answer| self.script.then(zeros, answer))
        })
    }
}
