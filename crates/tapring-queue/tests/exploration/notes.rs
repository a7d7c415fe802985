//! What a run did, step by step, in words. Taken only of a run that is to be shown.

#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Option<Vec<String>>);

impl Notes {
    pub(crate) fn begin(&mut self) {
        self.0 = Some(Vec::new());
    }

    pub(crate) fn step(&mut self, words: impl FnOnce() -> String) {
        if let Some(steps) = &mut self.0 {
            steps.push(words());
        }
    }

    pub(crate) fn steps(&self) -> Vec<String> {
        self.0.clone().unwrap_or_default()
    }
}
